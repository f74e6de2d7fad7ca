# A report service: each request builds a table of 50,000 rows and returns it as JSON.
require 'json'
run lambda { |_environment|
  rows = Array.new(50_000) { |n| { id: n, name: "customer #{n}", total: n * 1.5, tags: ['a', 'b', n.to_s] } }
  [200, { 'content-type' => 'application/json' }, [JSON.generate(rows)]]
}
