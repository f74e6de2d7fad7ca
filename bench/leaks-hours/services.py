#!/usr/bin/env python3
"""Runs 13 services under a modest load beside `lowtide leaks` and `lowtide inspect --watch`. Each service counts its own bytes.

Usage, as root: services.py LOWTIDE MINUTES DIRECTORY. SIGTERM and Ctrl-C end it early, with a summary. DIRECTORY receives what each
service counts once a second (*.truth), the RSS every 10 s (rss.jsonl), the answers of lowtide, and summary.jsonl.
Needs redis-server, PostgreSQL 15, nghttpd, h2load, node, ruby with WEBrick, php, a JDK, Go, Erlang and prometheus. Three of the
services grow: `redis-grows` and `node-grows` steadily, `python-late` from the 60th minute after its start on."""

import http.client, json, math, os, random, re, shutil, signal, socket, subprocess, sys, threading, time

lowtide, minutes, out = os.path.abspath(sys.argv[1]), float(sys.argv[2]), os.path.abspath(sys.argv[3])
programs = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs")
truth = lambda name: os.path.join(out, name + ".truth")
POSTGRES = "/usr/lib/postgresql/15/bin/"
WARM_UP_S = 150
STACKS = ("redis-grows", "nghttpd", "python-late")
started, watchers, services, is_over = [], [], {}, threading.Event()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(name, *words, **others):
    with open((name or "load") + ".log", "ab") as log:
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **others)
    started.append(child)
    if name:
        services[name] = child.pid


def connect(port):
    for _ in range(600):
        try:
            return socket.create_connection(("127.0.0.1", port), 10)
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"nothing listens at port {port}")


def background(work):
    def repeat():
        while not is_over.is_set():
            try:
                work()
            except (OSError, TypeError, http.client.HTTPException) as error:  # TypeError: not ready yet
                print(work.__qualname__, repr(error), file=sys.stderr, flush=True)
                is_over.wait(1)
    threading.Thread(target=repeat, daemon=True).start()


def browse(port, per_second, keys=10**9, waves=False, requests=30):
    """Requests pages, several on a connection. With waves, the rate goes up and down by a half in 40 minutes."""
    def work():
        connect(port).close()
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        for _ in range(requests):
            client.request("GET", f"/user/{random.randrange(keys)}")
            client.getresponse().read()
            rate = per_second * (1 + (0.5 * math.sin(time.time() * 2 * math.pi / 2400) if waves else 0))
            if is_over.wait(random.expovariate(rate)):
                break
        client.close()
    background(work)


def serve(name, *words, environment=None, **load):
    """Starts a server. PORT and TRUTH in its words stand for its port and for the file that it counts in."""
    port = free_port()
    fill = lambda word: word.replace("PORT", str(port)).replace("TRUTH", truth(name))
    start(name, *map(fill, words), env={**os.environ, **(environment or {})})
    browse(port, **load)


def redis(name, per_second, keys, *flags):
    port, sent = free_port(), 0
    start(name, "redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", *flags)
    def work():
        nonlocal sent
        client = connect(port)
        while not is_over.wait(1):
            text = b""
            for _ in range(per_second):
                key = b"session:%d" % (sent if keys is None else random.randrange(keys))
                value = b"v" * (400 if keys is None else random.randrange(100, 700))
                text += b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(key), key, len(value), value)
                sent += 1
            client.sendall(text + b"INFO memory\r\nDBSIZE\r\n")
            reply = b""
            while not re.search(rb"\r\n:\d+\r\n$", reply):
                reply += client.recv(100_000)
            used, count = re.search(rb"used_memory:(\d+)", reply), re.search(rb":(\d+)\r\n$", reply)
            with open(truth(name), "a") as file:
                print(time.time(), int(used[1]), int(count[1]), 0, file=file)
    background(work)


def nghttpd():
    port = free_port()
    start("nghttpd", "nghttpd", "--no-tls", "-a", "127.0.0.1", "-d", ".", str(port))
    def work():
        words = ["h2load", "-n", "300", "-c", str(random.randrange(1, 60)), "-m", "10", f"http://127.0.0.1:{port}/server.py"]
        subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
        is_over.wait(10)
    connect(port).close()
    background(work)


def postgres():
    data, port, user = os.path.abspath("postgres"), free_port(), ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    os.mkdir(data)
    shutil.chown(data, "postgres", "postgres")
    tool = lambda name, *words: subprocess.run([*user, POSTGRES + name, *words], check=True, capture_output=True, text=True, cwd="/").stdout
    tool("initdb", "-D", data)
    start(None, *user, POSTGRES + "postgres", "-D", data, "-p", str(port), "-c", "listen_addresses=127.0.0.1", "-k", data,
          "-c", "shared_buffers=64MB", cwd="/")
    connect(port).close()
    where = ["-h", data, "-p", str(port)]
    sql = lambda text: tool("psql", *where, "-Atc", text, "postgres").strip()
    tool("pgbench", *where, "-i", "-q", "-s", "5", "postgres")
    sql("create table events (id bigserial primary key, aid int, text text)")
    load = ["-n", "-c", "1", "-R", "15", "-T", "86400", "-f", os.path.abspath("events.sql")]
    start(None, *user, POSTGRES + "pgbench", *where, *load, "postgres", cwd="/")
    while not (pid := sql("select pid from pg_stat_activity where application_name = 'pgbench' and query like '%events%'")):
        time.sleep(1)
    services["postgres-backend"] = int(pid)
    def work():  # The backend writes the sum of its memory contexts to the log of the server.
        sql(f"select pg_log_backend_memory_contexts({pid})")
        with open("load.log", errors="replace") as log:
            found = re.findall(r"Grand total: (\d+) bytes in \d+ blocks; \d+ free \(\d+ chunks\); (\d+) used", log.read())
        with open(truth("postgres-backend"), "a") as file:
            print(time.time(), *(found or [(0, 0)])[-1][::-1], sql("select count(*) from events"), file=file)
        is_over.wait(60)
    background(work)


def prometheus():
    port = free_port()
    subprocess.run(["sed", "-i", f"s/PORT/{port}/", "prometheus.yml"], check=True)
    start("prometheus", "prometheus", "--config.file", "prometheus.yml", "--storage.tsdb.path", "tsdb",
          "--web.listen-address", f"127.0.0.1:{port}")
    def get(address):
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        client.request("GET", address)
        return client.getresponse().read().decode()
    def work():
        connect(port).close()
        now = time.time()
        get(f"/api/v1/query_range?query=rate(go_memstats_alloc_bytes_total[1m])&start={now - 600}&end={now}&step=5")
        text = get("/metrics")
        names = ("go_memstats_heap_alloc_bytes", "prometheus_tsdb_head_series", "go_memstats_heap_inuse_bytes")
        with open(truth("prometheus"), "a") as file:
            print(now, *(int(float(re.search(rf"^{name} (\S+)", text, re.M)[1])) for name in names), file=file)
        is_over.wait(2)
    background(work)


def start_all():
    build = lambda *words: subprocess.run(words, check=True, env={**os.environ, "GO111MODULE": "off"})
    build("go", "build", "-o", "server-go", "server.go")
    build("javac", "Server.java")
    build("erlc", "server.erl")
    redis("redis-bounded", 200, 10**6, "--maxmemory", "48mb", "--maxmemory-policy", "allkeys-lru")
    redis("redis-grows", 20, None)
    nghttpd()
    serve("node-grows", "node", "server.js", "PORT", "TRUTH", "1e9", per_second=3)
    serve("node-bounded", "node", "server.js", "PORT", "TRUTH", "2000", per_second=4, keys=10**5)
    serve("python-late", sys.executable, "server.py", "PORT", "TRUTH", per_second=3)
    serve("ruby-sessions", "ruby", "server.rb", "PORT", "TRUTH", per_second=3, waves=True)
    serve("php", "php", "-S", "127.0.0.1:PORT", "index.php", environment={"TRUTH": truth("php")}, per_second=3, requests=1)
    serve("java-cache", "java", "-Xms32m", "-Xmx96m", "Server", "PORT", "TRUTH", per_second=5, keys=20000)
    serve("go-sessions", "./server-go", "PORT", "TRUTH", per_second=5, waves=True)
    serve("erlang-sessions", "erl", "-noinput", "-run", "server", "main", "PORT", "TRUTH", per_second=5, waves=True)
    prometheus()
    postgres()


def rss(pid):
    try:
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            return int(re.search(r"^Rss:\s+(\d+)", rollup.read(), re.M)[1]) * 1024
    except (OSError, TypeError):
        return None


def end(children, how, patience):
    for child in children:
        if child.poll() is None:
            child.send_signal(how)
    late = time.time() + patience
    for child in children:
        try:
            child.wait(max(0.1, late - time.time()))
        except subprocess.TimeoutExpired:
            child.kill()


def watch(name, pid):
    stacks = [] if name in STACKS else ["--no-stacks"]
    for verb, words in (("leaks", [str(pid), "--json", "--duration", f"{minutes:g}m", *stacks]),
                        ("inspect", [str(pid), "--watch", f"{minutes:g}m"])):
        with open(f"{name}.{verb}", "wb") as output, open(f"{name}.{verb}.err", "wb") as errors:
            watchers.append(subprocess.Popen([lowtide, verb, *words], stdout=output, stderr=errors))


def summarize(first, last):
    """What each service counted and its RSS at the beginning and at the end of the run, and the answers of lowtide."""
    samples = [json.loads(sample) for sample in open("rss.jsonl")]
    with open("summary.jsonl", "w") as summary:
        for name in services:
            counts = open(truth(name)).read().splitlines() if os.path.exists(truth(name)) else []
            counts = [list(map(float, line.split())) for line in counts if len(line.split()) == 4]
            counts = [line[1:] for line in counts if first <= line[0] <= last]
            sizes = [sample[name] for sample in samples if sample[name]]
            line = {"service": name, "rss": [sizes[0], sizes[-1], min(sizes), max(sizes)], "truth": counts[:1] + counts[-1:]}
            try:
                report = json.load(open(name + ".leaks"))
                line["leaks"] = {key: report[key] for key in ("verdict", "bytes_per_hour", "looks", "torn_looks", "elapsed_s", "cpu_s")}
            except ValueError as error:
                line["leaks"] = repr(error)
            line["inspect"] = open(name + ".inspect", errors="replace").read().split("\n\n")[1:2]
            print(json.dumps(line), file=summary)


def main():
    try:
        start_all()
        time.sleep(WARM_UP_S)
        first = time.time()
        for name, pid in services.items():
            watch(name, pid)
        while any(watcher.poll() is None for watcher in watchers):
            with open("rss.jsonl", "a") as samples:
                print(json.dumps({name: rss(pid) for name, pid in services.items()}), file=samples)
            time.sleep(10)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        last = time.time()
        end(watchers, signal.SIGINT, 60)
        if watchers:
            summarize(first, last)
        is_over.set()
        end(started[::-1], signal.SIGTERM, 20)


shutil.copytree(programs, out)
os.chdir(out)
signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
main()
