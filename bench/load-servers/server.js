// An HTTP/2 server on node's own module: node server.js PORT [KEY CERT]
'use strict';
const fs = require('fs'), http2 = require('http2');
const [port, key, cert] = process.argv.slice(2);
const answer = (request, response) => { response.writeHead(200); response.end('hello\n'); };
const settings = { maxConcurrentStreams: 1000 };
const server = key
    ? http2.createSecureServer({ key: fs.readFileSync(key), cert: fs.readFileSync(cert), settings }, answer)
    : http2.createServer({ settings }, answer);
server.listen(Number(port), '127.0.0.1');
