# Objects that are kept.
keep = []; stop = Time.now + 300
while Time.now < stop
  5000.times { |n| keep << { n: n, s: "item #{n}" } }
  rss = File.read("/proc/self/statm").split[1].to_i * 4096
  puts "#{Process.clock_gettime(Process::CLOCK_MONOTONIC)} #{GC.stat(:heap_live_slots) * 40} #{rss}"; $stdout.flush
  sleep 0.1
end
