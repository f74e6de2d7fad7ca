// Keeps 4,000 bytes of each request in a Map: those of the last `bound` addresses.
const [,, port, truth, bound] = process.argv
const fs = require('fs'), kept = new Map(); let bytes = 0
require('http').createServer((request, response) => {
  const body = Buffer.alloc(4000, 97 + kept.size % 26).toString('latin1'), rows = []
  for (let i = 0; i < 300; i++) rows.push({ id: i, name: 'row ' + i })
  kept.set(request.url, { body, at: Date.now() }); bytes += 4000
  if (kept.size > +bound) { kept.delete(kept.keys().next().value); bytes -= 4000 }
  response.end(JSON.stringify(rows))
}).listen(+port, '127.0.0.1')
setInterval(() => fs.appendFileSync(truth, `${Date.now() / 1000} ${bytes} ${kept.size} ${process.memoryUsage().heapUsed}\n`), 1000)
