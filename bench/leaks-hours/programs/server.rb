# Keeps sessions for 5 minutes, each with 40 strings.
require 'webrick'
sessions, lock = {}, Mutex.new
server = WEBrick::HTTPServer.new(Port: ARGV[0].to_i, BindAddress: '127.0.0.1', AccessLog: [], Logger: WEBrick::Log.new(File::NULL))
server.mount_proc('/') do |request, response|
  now = Time.now.to_f
  lock.synchronize do
    sessions[request.path] = [now, Array.new(40) { |i| ('item ' + i.to_s) * 8 }]
    sessions.shift while sessions.first && sessions.first[1][0] < now - 300
  end
  response.body = (0..200).map { |i| "<li>#{i}</li>" }.join
end
Thread.new { loop { File.write(ARGV[1], "#{Time.now.to_f} #{sessions.size * 40 * 60} #{sessions.size} #{GC.stat[:heap_live_slots]}\n", mode: 'a'); sleep 1 } }
trap('TERM') { server.shutdown }
server.start
