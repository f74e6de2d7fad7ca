"""Answers /burst with a hash over objects that it makes, keeps one in 500 of them, and checks those at /check. Most of
the memory of CPython's own objects is not malloc's; that of TLS contexts is."""
import hashlib, ssl, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse

kept = {}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        url = urlparse(self.path)
        if url.path == "/check":
            wrong = [key for key, (text, digest) in kept.items() if hashlib.sha256(text).digest() != digest]
            reply = "%d of %d are damaged" % (len(wrong), len(kept)) if wrong else "intact: %d" % len(kept)
        else:
            query = parse_qs(url.query)
            seed, count = int(query["seed"][0]), int(query["count"][0])
            contexts = [ssl.create_default_context() for _ in range(25)]
            objects = []
            for index in range(count):
                text = b"%d-%d" % (seed, index)
                digest = hashlib.sha256(text).digest()
                objects.append({"text": text * (1 + index % 60), "digest": digest, "words": [str(index)] * 10})
                if index % 500 == 0:
                    long = text * 50
                    kept[text] = (long, hashlib.sha256(long).digest())
            whole = hashlib.sha256()
            for one in objects:
                whole.update(one["digest"])
            reply = whole.hexdigest()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(reply.encode())

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("ready", flush=True)
server.serve_forever()
