// A report service: each request builds a table of 50,000 rows and returns it as JSON.
const app = require('express')();
app.get('/', (request, response) => {
  const rows = Array.from({ length: 50000 }, (_, n) => ({ id: n, name: `customer ${n}`, total: n * 1.5, tags: ['a', 'b', `${n}`] }));
  response.json(rows);
});
app.listen(3000, '127.0.0.1');
