// Objects that are kept.
const keep = []; let n = 0;
setTimeout(() => process.exit(0), 300e3);
setInterval(() => { for (let i = 0; i < 400; i++) keep.push({ n: n++, s: "k".repeat(10) + n, l: [n, n + 1, n + 2] });
  console.log(Number(process.hrtime.bigint()) / 1e9, process.memoryUsage().heapUsed, process.memoryUsage().rss); }, 100);
