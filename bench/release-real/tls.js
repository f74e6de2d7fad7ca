// A TLS server that sends back what it gets.   node tls.js PORT KEY CERT
const [port, key, cert] = process.argv.slice(2);
const fs = require('fs');
const server = require('tls').createServer({ key: fs.readFileSync(key), cert: fs.readFileSync(cert) }, (stream) => {
  stream.on('error', () => {});
  stream.pipe(stream);
});
server.listen({ port: +port, host: '127.0.0.1', backlog: 1024 });
