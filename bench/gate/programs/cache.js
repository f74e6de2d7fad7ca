// A burst of objects, of which a part stays: cache.js KEEP_KIB. Then it prints `done` and waits.
const keep = Number(process.argv[2]) * 1024;
const kept = new Map();
let held = 0;
let burst = [];
while (held < keep) {
  burst.push(new Array(1 + Math.floor(Math.random() * 60)).fill(Math.random()));
  const value = Buffer.alloc(400 + Math.floor(Math.random() * 800), 1);
  kept.set(kept.size, value);
  held += value.length + 100;
}
burst = null;
console.log("done");
setTimeout(() => process.exit(0), 300000);
