// Objects that live for a while become garbage of the old space, which an idle program does not collect.
const window = new Map();
for (let i = 0; i < 6e6; i++) {
    window.set(i, { i, text: 'x' + i, more: [i, i, i] });
    if (window.size > 150000) window.delete(i - 150000);
}
console.log('ready');
process.stdin.on('data', () => process.exit()).on('end', () => process.exit());
