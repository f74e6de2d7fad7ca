// At each line on stdin, makes 1,500 TLS contexts, and drops them.
const tls = require('tls');
const readline = require('readline');
console.log('ready');
readline.createInterface({ input: process.stdin }).on('line', () => {
    let contexts = Array.from({ length: 1500 }, () => tls.createSecureContext());
    contexts = null;
    setImmediate(() => {
        gc();
        console.log('done');
    });
});
