#!/usr/bin/env python3
"""Looks at real services, beside what their runtimes say of themselves, and releases what can be released.

run.py NAME=LOWTIDE … > raw.jsonl: a line for each service, state of lowtide and act. NAME names a state of lowtide, such
as `before`; the last one releases as well. Services that are not installed are told on stderr.
"""
import json, os, re, shutil, signal, socket, subprocess, sys, tempfile, time, urllib.request

tools = [pair.split("=", 1) for pair in sys.argv[1:]]
home = tempfile.mkdtemp(prefix="services-")
MIB = 1 << 20
CACHE = os.path.expanduser("~/.cache/lowtide")
started = []


def preload(which):
    if which == "glibc":
        return {}
    names = sorted(n for n in os.listdir(CACHE) if n.startswith(f"lib{which}-"))
    return {"LD_PRELOAD": os.path.join(CACHE, names[-1])}


def start(command, env={}, ready=None, **how):
    out = open(os.path.join(home, f"{len(started)}.out"), "wb+")
    child = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env={**os.environ, **env},
                             start_new_session=True, **how)
    started.append(child)
    end = time.time() + 60
    while time.time() < end:
        text = open(out.name, errors="replace").read()
        if child.poll() is not None and ready != "":
            raise RuntimeError(f"{command[0]} ended: {text[-300:]}")
        if isinstance(ready, int):
            try:
                socket.create_connection(("127.0.0.1", ready), 1).close()
                return child.pid, text
            except OSError:
                pass
        elif ready is not None and ready in text:
            return child.pid, text
        time.sleep(0.1)
    raise RuntimeError(f"{command[0]} is not ready: {text[-300:]}")


def write(name, text):
    path = os.path.join(home, name)
    open(path, "w").write(text)
    return path


def port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(*command, **how):
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **how).stdout


# Each service: (pid, what its runtime says, whether it still serves).

def pyarrow(which):
    python = os.environ.get("PYTHON", "python3")
    text = """
import pyarrow as pa, gc, sys, time
n = 3_000_000
t = pa.table({'k': pa.array([i % 1000 for i in range(n)]), 'v': pa.array([float(i) for i in range(n)])})
df = t.to_pandas().sort_values('v', ascending=False)
g = t.group_by('k').aggregate([('v', 'sum')]).to_pandas()
m = df.merge(g, on='k')
del t, df, m, g; gc.collect()
sys._debugmallocstats(); sys.stderr.flush()
pool = pa.default_memory_pool()
print('ready', pool.backend_name, pool.bytes_allocated(), flush=True); time.sleep(1000)
"""
    pid, said = start([python, write("arrow.py", text)], preload(which), "ready")
    arenas = re.search(r"# arenas allocated current\s*=\s*(\d+)", said) or re.search(r"(\d+) arenas \* ", said)
    return pid, f"CPython: {arenas.group(1) if arenas else '?'} arenas of 1 MiB", None


def java(which):
    source = write("Hold.java", """
import java.nio.ByteBuffer; import java.util.*; import java.lang.management.*;
public class Hold { static List<Object> keep = new ArrayList<>();
 public static void main(String[] a) throws Exception { for (int i = 0; i < 200000; i++) keep.add(new byte[500]);
  List<ByteBuffer> d = new ArrayList<>(); for (int i = 0; i < 400; i++) d.add(ByteBuffer.allocateDirect(100_000 + i * 37));
  d.subList(0, 350).clear(); System.gc(); Thread.sleep(500); System.gc(); Thread.sleep(300);
  MemoryMXBean m = ManagementFactory.getMemoryMXBean(); System.out.println("ready " + m.getHeapMemoryUsage().getCommitted());
  System.out.flush(); Thread.sleep(10000000); } }
""")
    pid, said = start(["java", "-XX:NativeMemoryTracking=summary", "-Xms64m", "-Xmx256m", source], preload(which), "ready")
    native = run("jcmd", str(pid), "VM.native_memory", "summary")
    malloc = re.search(r"malloc: (\d+)KB", native)
    total = re.search(r"Total: reserved=\d+KB, committed=(\d+)KB", native)
    text = ", ".join(f"{what} {int(found.group(1)) // 1024} MiB" for what, found in
                     [("committed", total), ("of it malloc", malloc)] if found)
    return pid, f"HotSpot NMT: {text}", None


def ruby(which):
    source = write("rb.rb", """
$a = Array.new(400_000) { |i| "x#{i}".dup }
$h = {}
100_000.times { |i| $h[i] = [i, i + 1] }
puts "ready #{GC.stat[:heap_allocated_pages]}"; $stdout.flush
sleep 1000
""")
    pid, said = start(["ruby", source], preload(which), "ready")
    pages = int(re.search(r"ready (\d+)", said).group(1))
    return pid, f"GC.stat: {pages} pages of 16 KiB = {pages / 64:.1f} MiB", None


def php(which):
    source = write("z.php", """<?php $a = []; for ($i = 0; $i < 300000; $i++) $a[] = "str" . $i . str_repeat("x", 40);
$big = str_repeat("y", 30 << 20); echo "ready ", memory_get_usage(true), "\\n"; sleep(1000);""")
    pid, said = start(["php", "-d", "memory_limit=-1", source], {}, "ready")
    return pid, f"memory_get_usage(true): {int(re.search('ready (.*)', said).group(1)) / MIB:.1f} MiB", None


def node(which):
    source = write("n.js", """const kept = []; for (let i = 0; i < 600000; i++) kept.push({ i, s: 'x' + i });
const m = process.memoryUsage(); console.log('ready', m.heapTotal, m.external); setInterval(() => kept.length, 1000);""")
    pid, said = start(["node", source], {}, "ready")
    return pid, f"memoryUsage().heapTotal: {int(said.split()[1]) / MIB:.1f} MiB", None


def go(which):
    source = write("main.go", """package main
import ("fmt"; "runtime"; "time")
var kept [][]byte
func main() { for i := 0; i < 60000; i++ { kept = append(kept, make([]byte, 1000)) }
 var m runtime.MemStats; runtime.ReadMemStats(&m); fmt.Println("ready", m.Sys, m.HeapSys); time.Sleep(time.Hour); fmt.Println(len(kept)) }
""")
    program = os.path.join(home, "gosubject")
    run("go", "build", "-o", program, source, cwd=home, env={**os.environ, "GO111MODULE": "off"})
    pid, said = start([program], {}, "ready")
    return pid, f"MemStats.HeapSys: {int(said.split()[2]) / MIB:.1f} MiB reserved", None


def erlang(which):
    text = ("L = lists:seq(1, 3000000), B = [binary:copy(<<I:64>>, 20) || I <- lists:seq(1, 300000)], "
            "io:format(\"ready ~p~n\", [erlang:memory(total)]), timer:sleep(10000000), length(L) + length(B).")
    pid, said = start(["erl", "-noshell", "-eval", text], {}, "ready")
    child = run("pgrep", "-s", str(pid), "beam").split()
    return int(child[0]) if child else pid, f"erlang:memory(total): {int(said.split()[1]) / MIB:.1f} MiB", None


def redis(which):
    at = port()
    pid, _ = start(["redis-server", "--port", str(at), "--save", ""], {}, at)
    run("redis-cli", "-p", str(at), "debug", "populate", "300000", "k", "300")
    info = run("redis-cli", "-p", str(at), "info", "memory")
    resident = int(re.search(r"allocator_resident:(\d+)", info).group(1))
    return pid, f"INFO allocator_resident: {resident / MIB:.1f} MiB", lambda: "PONG" in run("redis-cli", "-p", str(at), "ping")


def memcached(which):
    at = port()
    pid, _ = start(["memcached", "-u", "nobody", "-p", str(at), "-m", "200"], {}, at)
    with socket.create_connection(("127.0.0.1", at)) as s:
        for i in range(40000):
            s.sendall(b"set k%d 0 0 1000 noreply\r\n" % i + b"v" * 1000 + b"\r\n")
        s.sendall(b"get k39999\r\n"); time.sleep(1)
    def serves():
        with socket.create_connection(("127.0.0.1", at)) as s:
            s.sendall(b"get k39999\r\n")
            return b"VALUE" in s.recv(100)
    return pid, "40,000 values of 1,000 bytes", serves


def http_ok(at, path="/"):
    return lambda: urllib.request.urlopen(f"http://127.0.0.1:{at}{path}", timeout=10).status == 200


def nginx(which):
    at = port()
    conf = write("nginx.conf", f"""daemon off; user root; pid {home}/nginx.pid; error_log /dev/null; events {{}}
http {{ access_log off; server {{ listen 127.0.0.1:{at}; location / {{ return 200 'ok'; }} }} }}""")
    pid, _ = start(["nginx", "-c", conf], {}, at)
    for _ in range(200):
        http_ok(at)()
    worker = run("pgrep", "-P", str(pid)).split()
    return int(worker[0]), "", http_ok(at)


def haproxy(which):
    front, back = port(), port()
    start(["python3", "-m", "http.server", str(back), "--bind", "127.0.0.1"], {}, back, cwd=home)
    conf = write("haproxy.cfg", f"""global
  maxconn 1000
defaults
  mode http
  timeout connect 5s
  timeout client 5s
  timeout server 5s
listen a
  bind 127.0.0.1:{front}
  server b 127.0.0.1:{back}
""")
    pid, _ = start(["haproxy", "-f", conf], {}, front)
    for _ in range(100):
        http_ok(front)()
    return pid, "", http_ok(front)


def gunicorn(which):
    at = port()
    python = os.environ.get("PYTHON", "python3")
    write("app.py", """
from fastapi import FastAPI
app = FastAPI()
@app.get('/')
def root():
    return {'data': 'x' * 200000, 'n': len([str(i) for i in range(200000)])}
""")
    pid, _ = start([python, "-m", "gunicorn", "-k", "uvicorn.workers.UvicornWorker", "-w", "2", "-b", f"127.0.0.1:{at}", "app:app"],
                   {}, at, cwd=home)
    for _ in range(60):
        try:
            http_ok(at)()
        except OSError:
            time.sleep(0.2)
    worker = run("pgrep", "-P", str(pid)).split()
    return int(worker[0]), "one of 2 workers", http_ok(at)


def postgres(which):
    data, at = os.path.join(home, "pg"), port()
    binaries = "/usr/lib/postgresql/15/bin"
    os.makedirs(data); shutil.chown(data, "postgres", "postgres"); os.chmod(home, 0o755)
    as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    run(*as_user, f"{binaries}/initdb", "-D", data, cwd=data)
    start(as_user + [f"{binaries}/postgres", "-D", data, "-p", str(at), "-k", data, "-c", "shared_buffers=128MB"], {}, at, cwd=data)
    base = as_user + ["psql", "-h", data, "-p", str(at), "-At", "postgres"]
    run(*base, "-c", "create table t as select i, md5(i::text) m from generate_series(1, 400000) i")
    # One connection that prepares many plans, deallocates them, and stays.
    sql = "".join(f"prepare p{i} as select * from t where i = {i} and m like '%{i}%' or i in (select i from t where i < {i});\n"
                  f"execute p{i};\n" if i < 3 else f"prepare p{i} as select * from t a join t b using (i) where a.i = {i} and b.m = 'x{i}';\n"
                  for i in range(3000))
    sql += "deallocate all; select 'backend ' || pg_backend_pid(), (select sum(total_bytes) from pg_backend_memory_contexts); select pg_sleep(1000);\n"
    path = write("plans.sql", sql); os.chmod(path, 0o644)
    out = open(os.path.join(home, "psql.out"), "w+")
    started.append(subprocess.Popen(base + ["-q", "-f", path], stdout=out, stderr=subprocess.DEVNULL, cwd=data, start_new_session=True))
    for _ in range(600):
        found = re.search(r"backend (\d+)\|(\d+)", open(out.name).read())
        if found:
            break
        time.sleep(0.2)
    return int(found.group(1)), f"pg_backend_memory_contexts: {int(found.group(2)) / MIB:.1f} MiB", \
        lambda: run(*base, "-c", "select count(*) from t").strip() == "400000"


def mariadb(which):
    data, at = os.path.join(home, "maria"), port()
    os.makedirs(data); shutil.chown(data, "mysql", "mysql"); os.chmod(home, 0o755)
    run("mariadb-install-db", "--user=mysql", f"--datadir={data}", "--auth-root-authentication-method=normal")
    pid, _ = start(["mariadbd", "--user=mysql", f"--datadir={data}", f"--socket={data}/s", f"--port={at}", "--innodb-buffer-pool-size=256M"], {}, at)
    sql = lambda text: run("mariadb", "-u", "root", "-S", f"{data}/s", "-N", "-e", text)
    sql("create database d; create table d.t (i int auto_increment primary key, m char(200)); insert into d.t (m) select md5(seq) from d.seq_1_to_300000")
    pages = re.search(r"Innodb_buffer_pool_bytes_data\s+(\d+)", sql("show global status like 'Innodb_buffer_pool_bytes_data'"))
    return pid, f"Innodb_buffer_pool_bytes_data: {int(pages.group(1)) / MIB:.1f} MiB", \
        lambda: "300000" in sql("select count(*) from d.t")


def chromium(which):
    at = port()
    page = write("page.html", "<script>window.a=[];for(let i=0;i<500000;i++)a.push({i,s:'x'+i});document.title='done'</script>")
    pid, _ = start(["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--js-flags=--expose-gc",
                    f"--user-data-dir={home}/cr{len(started)}", f"--remote-debugging-port={at}", f"file://{page}"],
                   preload(which), "DevTools listening")
    time.sleep(6)
    renderers = [int(p) for p in run("pgrep", "-s", str(pid), "-f", "type=renderer").split()]
    rss = lambda p: int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{p}/status").read()).group(1))
    return max(renderers, key=rss), "", None


services = [
    ("CPython + pyarrow", pyarrow, ["glibc", "jemalloc", "mimalloc"]),
    ("Java 17", java, ["glibc", "jemalloc", "mimalloc"]),
    ("Ruby", ruby, ["glibc", "jemalloc", "mimalloc"]),
    ("Chromium renderer", chromium, ["glibc", "jemalloc", "mimalloc"]),
    ("PHP", php, ["glibc"]), ("Node.js", node, ["glibc"]), ("Go", go, ["glibc"]), ("Erlang", erlang, ["glibc"]),
    ("redis", redis, ["glibc"]), ("memcached", memcached, ["glibc"]), ("nginx worker", nginx, ["glibc"]),
    ("haproxy", haproxy, ["glibc"]), ("gunicorn + FastAPI worker", gunicorn, ["glibc"]),
    ("PostgreSQL backend", postgres, ["glibc"]), ("MariaDB", mariadb, ["glibc"]),
]


def tell(**line):
    print(json.dumps(line), flush=True)


def end_all():
    while started:
        child = started.pop()
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()


wanted = os.environ.get("ONLY", "")
for name, begin, mallocs in services:
    if wanted and wanted not in name:
        continue
    for malloc in mallocs:
        try:
            pid, says, serves = begin(malloc)
            for state, program in tools:
                found = json.loads(run(program, "inspect", "--json", str(pid)))
                tell(service=name, malloc=malloc, state=state, act="inspect", says=says, found=found)
            state, program = tools[-1]
            dry = json.loads(run(program, "release", "--dry-run", "--json", str(pid)).splitlines()[0])
            done = json.loads(run(program, "release", "--json", str(pid)).splitlines()[0])
            tell(service=name, malloc=malloc, state=state, act="release", dry=dry, done=done, serves=None if serves is None else serves())
        except Exception as error:
            print(f"{name} ({malloc}): {error!r}", file=sys.stderr)
        finally:
            end_all()
shutil.rmtree(home, ignore_errors=True)
