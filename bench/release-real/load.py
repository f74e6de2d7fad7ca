"""Asks a server at a steady rate on several connections and verifies every answer, until its standard input
ends; then prints a JSON object: `answers`, a [due, took, connection] each in seconds of the monotonic clock, and `failures`.
What a request took is counted from when it was due: one that has to wait behind another is late too.
   load.py redis|http|tls|h2 PORT CONNECTIONS REQUESTS_PER_SECOND"""
import http.client, json, os, random, socket, ssl, subprocess, sys, threading, time

kind, port, connections, rate = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
stop = threading.Event()
answers, failures = [], []


class Redis:
    """SET of a value of 1 to 4,000 bytes and GET of one set before, in turns."""

    def __init__(self, number):
        self.number, self.turn, self.values = number, 0, {}
        self.file = socket.create_connection(("127.0.0.1", port)).makefile("rwb")

    def command(self, *parts):
        self.file.write(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts))
        self.file.flush()
        line = self.file.readline()
        if line.startswith(b"$") and line != b"$-1\r\n":
            return self.file.read(int(line[1:]) + 2)[:-2]
        return line.strip()

    def ask(self):
        self.turn += 1
        if self.turn % 2:
            key, value = b"load:%d:%d" % (self.number, self.turn % 200), random.randbytes(random.randint(1, 4000))
            self.values[key] = value
            return self.command(b"SET", key, value) == b"+OK"
        key = random.choice(list(self.values))
        return self.command(b"GET", key) == self.values[key]


class Http:
    """/echo/TEXT, which has to be answered with TEXT."""

    def __init__(self, number):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self):
        text = random.randbytes(random.randint(1, 1000)).hex()
        self.connection.request("GET", "/echo/" + text)
        return self.connection.getresponse().read() == text.encode()


class Tls:
    """A line on a new TLS connection each time for odd numbers, on one that stays open for even ones."""

    def __init__(self, number):
        self.number, self.file = number, None
        self.context = ssl._create_unverified_context()

    def ask(self):
        text = random.randbytes(random.randint(1, 1000)).hex().encode() + b"\n"
        if self.file is None or self.number % 2:
            self.stream = self.context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=60))
            self.file = self.stream.makefile("rwb")
        self.file.write(text)
        self.file.flush()
        answer = self.file.readline()
        if self.number % 2:
            self.file.close()
            self.stream.close()
        return answer == text


class H2:
    """20 requests at once, on 8 new connections of HTTP/2."""

    def __init__(self, number):
        self.command = [os.environ["LOWTIDE"], "demo-load", f"127.0.0.1:{port}", "20", "0", "--json"]

    def ask(self):
        told = subprocess.run(self.command, capture_output=True, text=True, check=True)
        round_ = json.loads(told.stdout.splitlines()[-1])["rounds"][0]
        return round_["failed"] == 0 and round_["succeeded"] == 20


def run(number):
    client = None
    due = time.monotonic() + number / rate
    while not stop.is_set():
        time.sleep(max(0, due - time.monotonic()))
        try:
            client = client or {"redis": Redis, "http": Http, "tls": Tls, "h2": H2}[kind](number)
            if client.ask():
                answers.append((due, time.monotonic() - due, number))
            else:
                failures.append((due, "wrong answer"))
        except Exception as error:
            failures.append((due, repr(error)))
            client = None
        due += connections / rate


threads = [threading.Thread(target=run, args=(number,)) for number in range(connections)]
for thread in threads:
    thread.start()
sys.stdin.read()
stop.set()
for thread in threads:
    thread.join()
print(json.dumps({"answers": sorted(answers), "failures": failures}))
