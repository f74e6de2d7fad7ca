-- Tables that nothing refers to any more, and a collector that is stopped.
collectgarbage("stop")
local all = {}
for i = 1, 600000 do
    all[i] = { i, i, i, text = "x" .. i }
end
all = nil
print("ready")
io.flush()
io.read()
collectgarbage()
collectgarbage()
print("done")
io.flush()
io.read()
