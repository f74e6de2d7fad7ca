// Grows by objects of V8 until it is killed. Prints what it holds, as grow.c does.
const rate = Number(process.argv[2]) * 1e6;
const fs = require('fs');
fs.readSync(0, Buffer.alloc(1));
const kept = [];
let held = 0;
const begin = process.hrtime.bigint();
const elapsed = () => Number(process.hrtime.bigint() - begin) / 1e9;
function step() {
  while (held < elapsed() * rate) {
    for (let i = 0; i < 1000; i++) kept.push({ a: i, b: held, c: [i, i + 1, i + 2, i + 3], d: 'x' + i });
    held += 1000 * 200;
    if (held % 2000000 === 0) fs.writeSync(1, `runtime ${process.memoryUsage().heapUsed}\n`);
  }
  setTimeout(step, 1);
}
step();
