"""Keeps sessions for 10 minutes; from the 60th minute on, 4,000 bytes of each request stay in a list."""
import http.server, sys, threading, time
begin, late, sessions = time.time(), [], {}
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def log_message(self, *words): pass
    def do_GET(self):
        now = time.time()
        sessions[self.path] = (now, [str(i) * 3 for i in range(100)])
        for old in [key for key, (at, _) in sessions.items() if at < now - 600]: sessions.pop(old, None)
        if now > begin + 3600: late.append(bytes(4000))
        body = b'x' * 3000
        self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers(); self.wfile.write(body)
def count():
    while True:
        with open(sys.argv[2], 'a') as f: f.write(f'{time.time()} {len(late) * 4000} {len(late)} {len(sessions)}\n')
        time.sleep(1)
threading.Thread(target=count, daemon=True).start()
http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
