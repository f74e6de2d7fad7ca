#!/usr/bin/env python3
"""How long a release of 3 GB takes, and how soon it ends by a signal.

run.py before=LOWTIDE after=LOWTIDE > raw.jsonl: pairs in alternating order, a line for each release. ROUNDS=6 rounds of each
kind; SIGNALS=20 releases that are ended by a signal beside LOAD=10 busy loops.
"""
import json, os, random, signal, subprocess, sys, tempfile, time

tools = [pair.split("=", 1) for pair in sys.argv[1:]]
here = os.path.dirname(os.path.abspath(__file__))
home = tempfile.mkdtemp()
program = os.path.join(home, "hoard")
subprocess.run(["cc", "-O2", "-pthread", "-o", program, os.path.join(here, "../../crates/release/tests/programs/hoard.c")], check=True)
rounds, signals, load = (int(os.environ.get(name, default)) for name, default in [("ROUNDS", 6), ("SIGNALS", 20), ("LOAD", 10)])
random.seed(1)


class Hoard:
    def __init__(self, mb, arenas, work, threads=4):
        self.child = subprocess.Popen([program, f"mb={mb}", f"arenas={arenas}", f"threads={threads}", f"work={work}", "seed=1"],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.child.stdout.readline().strip() == "ready"

    def say(self, what):
        self.child.stdin.write(what + "\n"); self.child.stdin.flush()

    def ask(self, what):
        self.say(what)
        return self.child.stdout.readline()

    def end(self):
        self.say("quit"); self.child.wait()


def tell(**line):
    print(json.dumps(line), flush=True)


for arenas in ["one", "many"]:
    for work in ["none", "malloc"]:
        hoard = Hoard(3000, arenas, work)
        for number in range(rounds):
            for state, tool in (tools if number % 2 == 0 else tools[::-1]):
                hoard.ask("hoard"); time.sleep(0.3); hoard.say("begin")
                begin = time.time()
                out = subprocess.run([tool, "release", "--json", str(hoard.child.pid)], capture_output=True, text=True).stdout
                wall = time.time() - begin
                time.sleep(max(0, 3 - wall))
                gaps, done = json.loads(hoard.ask("end")), json.loads(out.splitlines()[0])
                tell(kind="time", arenas=arenas, work=work, round=number, state=state, wall_s=wall, passes=done["passes"],
                     returned_bytes=done["returned_bytes"], predicted_bytes=done["predicted_bytes"], outcome=done["outcome"],
                     longest_gap_us=gaps["longest_gap_us"])
        hoard.end()

for busy in [0, load]:
    loops = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(busy)]
    hoard = Hoard(700, "many", "malloc", 3)
    for number in range(signals):
        for state, tool in tools:
            hoard.ask("hoard")
            child = subprocess.Popen([tool, "release", "--json", str(hoard.child.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            after = random.uniform(0.02, 2.5 if busy else 0.5)
            try:
                child.wait(after)
                continue
            except subprocess.TimeoutExpired:
                pass
            which = random.choice([signal.SIGINT, signal.SIGTERM])
            child.send_signal(which); begin = time.time()
            child.communicate(timeout=60)
            tell(kind="signal", busy_loops=busy, state=state, after_s=after, signal=which.name, exit_s=time.time() - begin, exit=child.returncode)
    hoard.end()
    for loop in loops:
        loop.kill(); loop.wait()
