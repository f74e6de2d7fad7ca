"""A server on selectors, in one thread: /fill/MIB makes bytes of 600 to 20,000 bytes, /drop forgets 19 of 20,
/echo/TEXT answers TEXT."""
import random, selectors, socket, sys

held = []


def answer(path):
    global held
    _, verb, text = path.split("/")
    if verb == "fill":
        rest = int(text) << 20
        while rest > 0:
            size = random.randint(600, 20_000)
            held.append(b"x" * size)
            rest -= size
    elif verb == "drop":
        held = held[::20]
    else:
        return text
    return "done"


def readable(stream):
    data = stream.recv(65536)
    if not data:
        selector.unregister(stream)
        stream.close()
        return
    buffers[stream] = buffers.get(stream, b"") + data
    while b"\r\n\r\n" in buffers[stream]:
        request, buffers[stream] = buffers[stream].split(b"\r\n\r\n", 1)
        body = answer(request.split()[1].decode()).encode()
        stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


buffers = {}
selector = selectors.DefaultSelector()
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
selector.register(listener, selectors.EVENT_READ)
while True:
    for key, _ in selector.select():
        if key.fileobj is listener:
            selector.register(listener.accept()[0], selectors.EVENT_READ)
        else:
            readable(key.fileobj)
