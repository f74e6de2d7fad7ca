# Long-lived objects among short-lived ones.
kept = []
short = (0...2_000_000).map { |i| kept << Object.new if i % 200 == 0; Object.new }
short = nil
GC.start
puts 'ready'
$stdout.flush
$stdin.gets
GC.compact
GC.start
puts 'done'
$stdout.flush
$stdin.gets
