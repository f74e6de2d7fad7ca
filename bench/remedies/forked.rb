# Workers that are forked after the data was loaded. With an argument, it is compacted before.
table = {}
300_000.times { |i| table[i] = ["key#{i}", [i, i.to_s]] }
GC.compact unless ARGV.empty?
reader, writer = IO.pipe
3.times do
  fork do
    own = 100_000.times.map { |i| [i.to_s] }
    3.times { GC.start }
    writer.write 'x'
    $stdin.read
    exit!
  end
end
reader.read(3)
puts 'ready'
$stdout.flush
$stdin.read
