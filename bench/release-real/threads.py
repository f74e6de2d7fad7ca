"""ThreadingHTTPServer, a thread for each connection: the same paths as single.py, filled by 8 threads (so in
several arenas)."""
import random, sys
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

held = [[] for _ in range(8)]
pool = ThreadPoolExecutor(8)


def fill(part, rest):
    while rest > 0:
        size = random.randint(600, 20_000)
        held[part].append(b"x" * size)
        rest -= size


def drop(part):
    held[part] = held[part][::20]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        _, verb, text = self.path.split("/")
        if verb == "fill":
            list(pool.map(fill, range(8), [int(text) << 17] * 8))
        elif verb == "drop":
            list(pool.map(drop, range(8)))
        body = text.encode() if verb == "echo" else b"done"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 100


Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
