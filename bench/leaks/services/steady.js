// Parses documents into objects, keeps the last 500, and drops the others.
const kept = []
let calls = 0
setInterval(() => {
  const text = JSON.stringify(Array.from({ length: 200 }, (_, i) => ({ id: calls + i, name: 'name ' + i })))
  kept[calls++ % 500] = JSON.parse(text)
}, 20)
