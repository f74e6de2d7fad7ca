#!/usr/bin/env python3
"""Bursts over PostgreSQL, a CPython server, a node server and a C++ program while lowtide keeps their memory low, and what
each says of its own data at the end.

Usage, from the root of the repository, as root: soak.py LOWTIDE NODE MINUTES DIRECTORY [PROGRAM…]. Exits with 1 if data is damaged,
a program has ended, or a reply was wrong. DIRECTORY keeps acts, sizes and a summary."""
import hashlib, http.client, json, os, signal, subprocess, sys, tempfile, threading, time

lowtide, node, minutes, out = os.path.abspath(sys.argv[1]), sys.argv[2], float(sys.argv[3]), os.path.abspath(sys.argv[4])
here = os.path.dirname(os.path.abspath(__file__))
os.makedirs(out, exist_ok=True)
home = tempfile.mkdtemp()
os.chmod(home, 0o755)
POSTGRES = "/usr/lib/postgresql/15/bin/"
end = time.monotonic() + minutes * 60
problems, supervisors, counts = [], {}, {}


def supervise(name, pid, *flags):
    log = open("%s/%s.err" % (out, name), "w")
    words = [lowtide, "attach", str(pid), "--log", "%s/%s.jsonl" % (out, name), *flags]
    supervisors[name] = [subprocess.Popen(words, stderr=log)]


def run(name, words):
    """Starts a program under `lowtide run`; returns the pids of the reaper and of the program."""
    log = open("%s/%s.err" % (out, name), "w")
    words = [lowtide, "run", "--log", "%s/%s.jsonl" % (out, name), "--", *words]
    reaper = subprocess.Popen(words, stderr=log, stdout=subprocess.PIPE, text=True)
    reaper.stdout.readline()
    supervisors[name] = [reaper]
    return reaper


def children(pid):
    return [int(word) for word in open("/proc/%d/task/%d/children" % (pid, pid)).read().split()]


def postgres():
    data = home + "/postgres"
    as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    def call(*words, **others):
        done = subprocess.run([*as_postgres, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/", **others)
        if done.returncode:
            problems.append("%s: %s" % (words[0], done.stdout[-500:]))
        return done.stdout
    os.mkdir(data)
    subprocess.run(["chown", "postgres", data], check=True)
    call(POSTGRES + "initdb", "-k", "-D", data)
    sockets = ["-h", data]
    # With 64 MB of buffers, so that backends have memory of their own.
    server = subprocess.Popen([*as_postgres, POSTGRES + "postgres", "-D", data, "-c", "listen_addresses=", "-k", data,
        "-c", "shared_buffers=64MB", "-c", "work_mem=256MB", "-c", "fsync=off"], stderr=open(out + "/postgres.log", "w"))
    while subprocess.run([*as_postgres, POSTGRES + "pg_isready", *sockets], stdout=subprocess.DEVNULL).returncode:
        time.sleep(0.2)
    call(POSTGRES + "createdb", *sockets, "bank")
    call(POSTGRES + "pgbench", *sockets, "-i", "-q", "-s", "10", "bank")
    call(POSTGRES + "psql", *sockets, "-c", "create extension amcheck", "bank")
    supervise("postgres", server.pid, "--subprocesses")
    query = "select count(*), sum(length(t)) from (select string_agg(md5((i + %d)::text), ',') t from generate_series(1, 400000) i group by i %% 1000) s;\n"
    sessions = [subprocess.Popen([*as_postgres, POSTGRES + "psql", *sockets, "-Atq", "bank"], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True) for _ in range(3)]
    bursts = 0
    while time.monotonic() < end:
        bench = subprocess.Popen([*as_postgres, POSTGRES + "pgbench", *sockets, "-n", "-c", "8", "-T", "8", "bank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for session in sessions:
            session.stdin.write(query % bursts)
            session.stdin.flush()
        for session in sessions:
            # Each of 400,000 sums has 32 characters, and a comma but for the first of a group.
            if (line := session.stdout.readline().strip()) != "1000|%d" % (400000 * 33 - 1000):
                problems.append("postgres: a query returned %r" % line)
        if bench.wait():
            problems.append("pgbench ended with %d" % bench.returncode)
        bursts += 1
        time.sleep(45)
    for session in sessions:
        session.stdin.close()
        session.wait()
    sums = call(POSTGRES + "psql", *sockets, "-Atc", "select (select sum(abalance) from pgbench_accounts) = d and "
        "(select sum(bbalance) from pgbench_branches) = d and (select sum(tbalance) from pgbench_tellers) = d "
        "from (select sum(delta) d from pgbench_history) h", "bank").strip()
    history = call(POSTGRES + "psql", *sockets, "-Atc", "select count(*) from pgbench_history", "bank").strip()
    if sums != "t":
        problems.append("postgres: the balances differ: " + sums)
    call(POSTGRES + "pg_amcheck", *sockets, "--heapallindexed", "bank")
    if server.poll() is not None:
        problems.append("postgres has ended")
    server.send_signal(signal.SIGINT)
    server.wait()
    call(POSTGRES + "pg_checksums", "--check", "-D", data)
    counts["postgres"] = {"bursts": bursts, "transactions": int(history)}


def expected(seed, count):
    whole = hashlib.sha256()
    for index in range(count):
        whole.update(hashlib.sha256(b"%d-%d" % (seed, index)).digest())
    return whole.hexdigest()


def server(name, words, port):
    """Servers that keep some of each burst's objects, and check them when they are asked to."""
    reaper = run(name, words + [str(port)])
    replies = 0
    def ask(seed):
        nonlocal replies
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("GET", "/burst?seed=%d&count=20000" % seed)
        reply = connection.getresponse().read().decode()
        replies += 1
        if reply != expected(seed, 20000):
            problems.append("%s: the reply to %d is wrong: %.100r" % (name, seed, reply))
    seed = 0
    while time.monotonic() < end:
        for _ in range(3):
            threads = [threading.Thread(target=ask, args=(seed + n,)) for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            seed += 4
        time.sleep(17 if seed % 5 else 60)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", "/check")
    reply = connection.getresponse().read().decode()
    if not reply.startswith("intact"):
        problems.append("%s: %s" % (name, reply))
    counts[name] = {"replies": replies, "check": reply}
    reaper.send_signal(signal.SIGTERM)
    # It ends like the program: by the signal.
    if reaper.wait() != -signal.SIGTERM:
        problems.append("%s: lowtide run ended with %d" % (name, reaper.returncode))


def cache():
    program = home + "/cache"
    subprocess.run(["c++", "-O2", "-std=c++20", "-pthread", os.path.join(here, "../policies/cache.cc"), "-o", program], check=True)
    child = subprocess.Popen([program, "40"], stdout=subprocess.PIPE, text=True)
    child.stdout.readline()
    supervise("cache", child.pid)
    rounds = 0
    while time.monotonic() < end:
        child.send_signal(signal.SIGUSR1)
        # It checks all its sums in each round.
        if (line := child.stdout.readline()) != "round %d\n" % rounds:
            problems.append("cache: %r" % line)
            break
        rounds += 1
        time.sleep(40)
    child.send_signal(signal.SIGTERM)
    if child.wait():
        problems.append("cache ended with %d" % child.returncode)
    counts["cache"] = {"rounds": rounds}


def waves():
    """A load every 2 s, whose memory must stay."""
    program = home + "/waves"
    subprocess.run(["c++", "-O2", "-std=c++20", "-pthread", os.path.join(here, "../policy-costs/waves.cc"), "-o", program], check=True)
    child = subprocess.Popen([program], stdout=subprocess.DEVNULL)
    supervise("waves", child.pid)
    while time.monotonic() < end:
        time.sleep(5)
    child.kill()
    child.wait()


def size(pid, file, key):
    try:
        for line in open("/proc/%d/%s" % (pid, file)):
            if line.startswith(key):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def exe_of(pid):
    try:
        return os.readlink("/proc/%d/exe" % pid)
    except OSError:
        # It has ended.
        return None


def sizes():
    with open(out + "/sizes.jsonl", "w") as file:
        begin = time.monotonic()
        while any(thread.is_alive() for thread in programs):
            row = {"t_s": round(time.monotonic() - begin, 1)}
            for name, (process, *_) in list(supervisors.items()):
                if process.poll() is not None:
                    continue
                own = [process.pid]
                if process.args[1] == "run":
                    own += [pid for pid in children(process.pid) if exe_of(pid) == exe_of(process.pid)]
                row[name] = sum(size(pid, "smaps_rollup", "Pss:") for pid in own)
                # The most that was ever resident, with pages of the executable that both share.
                row[name + " peak"] = max(size(pid, "status", "VmHWM:") for pid in own)
            file.write(json.dumps(row) + "\n")
            file.flush()
            time.sleep(10)


everything = {
    "postgres": (postgres, ()), "cache": (cache, ()), "waves": (waves, ()),
    "python": (server, ("python", [sys.executable, os.path.join(here, "server.py")], 19501)),
    "node": (server, ("node", [node, os.path.join(here, "server.js")], 19502)),
}
programs = [threading.Thread(target=target, args=args) for name, (target, args) in everything.items()
            if name in (sys.argv[5:] or everything)]
for thread in programs:
    thread.start()
sizes()
for thread in programs:
    thread.join()
for name, (process, *_) in supervisors.items():
    if process.args[1] == "attach" and process.wait(timeout=60) != 0:
        problems.append("%s: lowtide attach ended with %d" % (name, process.returncode))
rows = [json.loads(line) for line in open(out + "/sizes.jsonl")]
summary = {"minutes": minutes, "problems": problems, "counts": counts, "supervisors": {}}
for name in supervisors:
    acts = [json.loads(line) for line in open("%s/%s.jsonl" % (out, name))]
    released = [act for act in acts if act["event"] == "act" and act["outcome"] == "released"]
    own = [row[name] for row in rows if row.get(name)]
    summary["supervisors"][name] = {
        "releases": len(released), "returned_bytes": sum(act["returned_bytes"] for act in released),
        "other_outcomes": sorted({"%s %s" % (act["outcome"], act["hazard"]) for act in acts if act["event"] == "act" and act not in released}),
        "left_alone": sum(act["event"] == "left_alone" for act in acts), "processes": len({act["pid"] for act in released}),
        "longest_pause_s": max([act["longest_pause_s"] for act in released], default=0), "cpu_s": sum(act["cpu_s"] for act in released),
        "own_pss": {"tenth": own[len(own) // 10], "half": own[len(own) // 2], "last": own[-1], "most": max(own)} if own else None,
        "own_peak_rss": max([row[name + " peak"] for row in rows if row.get(name)], default=None),
    }
json.dump(summary, open(out + "/summary.json", "w"), indent=1)
print(json.dumps(summary, indent=1))
sys.exit(bool(problems))
