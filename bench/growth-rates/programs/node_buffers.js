// Buffers outside of V8's heap that are kept.
const keep = []; let n = 0;
setTimeout(() => process.exit(0), 300e3);
setInterval(() => { for (let i = 0; i < 10; i++) { keep.push(Buffer.alloc(20000, 1)); n += 20000; }
  console.log(Number(process.hrtime.bigint()) / 1e9, n, process.memoryUsage().rss); }, 100);
