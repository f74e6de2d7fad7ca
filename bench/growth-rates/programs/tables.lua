-- Tables that are kept.
local ffi = require "ffi"
ffi.cdef [[ int usleep(unsigned); struct ts { long s, n; }; int clock_gettime(int, struct ts*); ]]
local t, keep = ffi.new("struct ts"), {}
for _ = 1, 2500 do
  for n = 1, 4000 do keep[#keep + 1] = { n = n, s = "item " .. #keep } end
  ffi.C.clock_gettime(1, t)
  local f = io.open("/proc/self/statm"); local _, rss = f:read("*n", "*n"); f:close()
  print(tonumber(t.s) + tonumber(t.n) / 1e9, collectgarbage("count") * 1024, rss * 4096); io.stdout:flush()
  ffi.C.usleep(100000)
end
