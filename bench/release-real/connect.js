// Opens TLS connections, 50 handshakes at a time, holds them for two seconds, and closes them all.
//   node connect.js PORT COUNT
const [port, count] = process.argv.slice(2).map(Number);
const tls = require('tls');
const open = [];
let begun = 0;
function next() {
  if (begun === count) return;
  begun += 1;
  const stream = tls.connect({ port, host: '127.0.0.1', rejectUnauthorized: false }, () => {
    open.push(stream);
    if (open.length === count) setTimeout(() => open.forEach((s) => s.end()), 2000);
    next();
  });
  stream.on('error', (error) => { console.error(error.message); process.exit(1); });
  stream.resume();
}
for (let i = 0; i < 50; i++) next();
