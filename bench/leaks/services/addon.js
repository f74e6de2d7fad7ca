// Calls the addon 20 times a second, and keeps the Buffers of the last 2,000 calls.
const addon = require(process.argv[2])
const kept = []
let calls = 0
setInterval(() => {
  addon.lose()
  kept[calls++ % 2000] = Buffer.alloc(20000, calls)
}, 50)
