// Answers /burst with a hash over objects that it makes, keeps one in 500 of them, and checks those at /check.
const http = require('http');
const tls = require('tls');
const { createHash } = require('crypto');
const hash = (data) => createHash('sha256').update(data).digest();
const kept = new Map();

http.createServer((request, response) => {
    const url = new URL(request.url, 'http://localhost');
    if (url.pathname === '/check') {
        let damaged = 0;
        for (const [long, digest] of kept.values()) if (!hash(long).equals(digest)) damaged++;
        return response.end(damaged ? `${damaged} of ${kept.size} are damaged` : `intact: ${kept.size}`);
    }
    const seed = url.searchParams.get('seed');
    const count = Number(url.searchParams.get('count'));
    const contexts = Array.from({ length: 300 }, () => tls.createSecureContext());
    const objects = [];
    for (let index = 0; index < count; index++) {
        const text = `${seed}-${index}`;
        objects.push({ text: Buffer.from(text.repeat(1 + (index % 60))), digest: hash(text) });
        if (index % 500 === 0) {
            const long = Buffer.from(text.repeat(50));
            kept.set(text, [long, hash(long)]);
        }
    }
    const whole = createHash('sha256');
    for (const one of objects) whole.update(one.digest);
    response.end(whole.digest('hex'));
}).listen(Number(process.argv[2]), '127.0.0.1', () => console.log('ready'));
