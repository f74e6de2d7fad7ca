//! The commands to which `lowtide leaks` hands over for memory that it does not divide: each runs
//! against a program that grows in this way, and names the cause.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::leaks::Program;
use crate::support::{compiled, free_port, lowtide};

/// `node inspect -p` connects to a fixed port, on which a program listens until it ends. So such
/// programs run one after another.
static INSPECTOR: Mutex<()> = Mutex::new(());

fn inspector() -> MutexGuard<'static, ()> {
    INSPECTOR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program that grows, in a directory of its own.
struct Growing {
    home: tempfile::TempDir,
    program: Program,
}

impl Growing {
    /// Starts a program of which `source` is written to the file `name`.
    fn start(name: &str, source: &str, command: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join(name), source).unwrap();
        let mut start = Command::new(command[0]);
        let program = Program::start(start.args(&command[1..]).current_dir(home.path()));
        Self { home, program }
    }

    /// Watches it until it is known that other memory than blocks grows. Returns the next step.
    fn next(&self) -> String {
        let mut text = String::new();
        for duration in ["20s", "60s", "180s"] {
            let words = ["leaks", "--no-stacks", &self.program.pid(), "--duration", duration];
            let output = lowtide().args(words).output().unwrap();
            text = String::from_utf8(output.stdout).unwrap();
            if text.contains("\nelsewhere: ") {
                return text
                    .lines()
                    .find_map(|line| line.strip_prefix("next: "))
                    .unwrap()
                    .to_owned();
            }
        }
        panic!("{text}")
    }

    /// Runs a command in its directory, and returns what it prints.
    fn run(&self, command: &str) -> String {
        let output =
            Command::new("sh").args(["-c", command]).current_dir(self.home.path()).output();
        let output = output.unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{command}\n{text}{:?}", output.stderr);
        text
    }

    /// Sends code to the program, which runs it. Returns its answer.
    fn eval(&mut self, code: &str) -> String {
        self.program.stdin.write_all(format!("{code}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(self.program.child.stdout.as_mut().unwrap()).read_line(&mut answer).unwrap();
        answer
    }

    fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.home.path().join(name)).unwrap()).into_owned()
    }
}

#[test]
#[ignore = "needs node"]
fn a_heap_snapshot_of_node_has_the_class_of_the_objects_that_are_kept() {
    let source =
        "class Session { constructor(n) { this.name = 'session ' + n; this.list = [n, n]; } }
const keep = []; let n = 0;
process.stdin.once('data', () => { process.stdout.write('.');
  setInterval(() => { for (let i = 0; i < 200; i++) keep.push(new Session(n++)); }, 50); });
setTimeout(() => process.exit(0), 600e3);";
    let _inspector = inspector();
    let node = Growing::start("sessions.js", source, &["node", "sessions.js"]);
    let printed = node.run(&node.next());
    assert!(printed.contains("Wrote snapshot"), "{printed}");
    assert!(node.read(&format!("{}.heapsnapshot", node.program.pid())).contains("\"Session\""));
}

#[test]
#[ignore = "needs node"]
fn node_counts_memory_that_its_objects_have_outside_of_the_heap() {
    let source = "const keep = [];
process.stdin.once('data', () => { process.stdout.write('.');
  setInterval(() => { const memory = new WebAssembly.Memory({ initial: 16 });
    new Uint8Array(memory.buffer).fill(1); keep.push(memory); }, 200); });
setTimeout(() => process.exit(0), 600e3);";
    let _inspector = inspector();
    let node = Growing::start("frames.js", source, &["node", "frames.js"]);
    let printed = node.run(&node.next());
    let external = printed.split_once("external: ").unwrap().1;
    let bytes: u64 = external.split(',').next().unwrap().parse().unwrap();
    assert!(bytes > 20 << 20, "{printed}");
}

#[test]
#[ignore = "needs jcmd, java and javac"]
fn a_histogram_of_java_has_the_class_of_the_objects_that_are_kept() {
    let source = "public class Sessions { static class Session { byte[] data = new byte[400]; }
  public static void main(String[] a) throws Exception {
    var keep = new java.util.ArrayList<Session>(); System.in.read(); System.out.print('.'); System.out.flush();
    for (int n = 0; n < 6000; n++) { for (int i = 0; i < 500; i++) keep.add(new Session()); Thread.sleep(100); } } }";
    let java = Growing::start("Sessions.java", source, &["java", "-Xmx2g", "Sessions.java"]);
    let printed = java.run(&java.next());
    assert!(printed.contains("Sessions$Session"), "{printed}");
}

#[test]
#[ignore = "needs go"]
fn a_heap_profile_of_go_has_the_function_that_keeps_its_memory() {
    let source = "package main
import (\"fmt\"; \"net/http\"; _ \"net/http/pprof\"; \"os\"; \"time\")
var keep [][]byte
func handle() { for i := 0; i < 100; i++ { b := make([]byte, 4096); for j := range b { b[j] = 1 }; keep = append(keep, b) } }
func main() {
	go http.ListenAndServe(os.Args[1], nil)
	os.Stdin.Read(make([]byte, 1)); fmt.Print(\".\")
	for n := 0; n < 6000; n++ { handle(); time.Sleep(100 * time.Millisecond) }
}";
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("main.go"), source).unwrap();
    let program = home.path().join("sessions");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).args([&program, &home.path().join("main.go")]);
    assert!(build.status().unwrap().success());
    let address = format!("127.0.0.1:{}", free_port());
    let go = Growing::start("none", "", &[program.to_str().unwrap(), &address]);
    let printed = go.run(&go.next().replace("HOST:PORT", &address));
    assert!(printed.contains("main.handle"), "{printed}");
}

#[test]
#[ignore = "needs ruby"]
fn a_dump_of_ruby_has_the_class_of_the_objects_that_are_kept() {
    let source = "class Session; def initialize(n); @a = n; end; end
keep = []; STDIN.gets; print '.'; STDOUT.flush
Thread.new { while line = STDIN.gets; eval(line); puts 'done'; STDOUT.flush; end }
6000.times { |n| 20000.times { keep << Session.new(n) }; sleep 0.1 }";
    let mut ruby = Growing::start("sessions.rb", source, &["ruby", "sessions.rb"]);
    let code = ruby.next();
    assert_eq!(ruby.eval(&code), "done\n", "{code}");
    assert!(ruby.read("heap.json").contains("\"name\":\"Session\""));
}

#[test]
#[ignore = "needs php"]
fn php_prints_the_memory_that_a_step_allocated() {
    let source = "<?php $keep = []; fgets(STDIN); echo '.'; $n = 0; stream_set_blocking(STDIN, false);
ini_set('log_errors_max_len', 0); ini_set('error_log', 'errors.log'); $end = time() + 600;
while (time() < $end) { for ($i = 0; $i < 500; $i++) { $n++; $keep[] = ['n' => $n, 's' => \"item $n\"]; }
  if ($line = fgets(STDIN)) { eval($line); echo \"done\\n\"; } usleep(50000); }";
    let mut php = Growing::start("sessions.php", source, &["php", "sessions.php"]);
    let code = php.next();
    assert_eq!(php.eval(&code), "done\n", "{code}");
    let logged = php.read("errors.log");
    let bytes: u64 = logged.split_ascii_whitespace().last().unwrap().parse().unwrap();
    assert!(bytes > 10 << 20, "{logged}");
}

/// Starts an Erlang program that calls `keep(Sessions, N)`, and returns what the next step prints:
/// the largest table and the largest process, and the process that calls it.
fn largest_of_erlang(keep: &str) -> Vec<String> {
    let source = "-module(sessions). -export([main/0, keep/2]).
main() -> io:get_line(\"\"), io:format(\".\"), register(hoarder, spawn(fun() -> keep([], 0) end)), serve().
serve() -> Line = io:get_line(\"\"), {ok, Tokens, _} = erl_scan:string(Line),
  {ok, Parsed} = erl_parse:parse_exprs(Tokens), {value, {Classes, [Tables, Processes]}, _} = erl_eval:exprs(Parsed, []),
  true = proplists:get_value(ets, Classes) > 0,
  io:format(\"~w;~w;~w~n\", [hd(Tables), hd(Processes), whereis(hoarder)]), serve().\n";
    let command = "erlc sessions.erl && exec erl -noshell -eval 'sessions:main()'";
    let source = source.to_owned() + keep;
    let mut erlang = Growing::start("sessions.erl", &source, &["sh", "-c", command]);
    let code = erlang.next();
    erlang.eval(&code).trim().split(';').map(str::to_owned).collect()
}

#[test]
#[ignore = "needs erl and erlc"]
fn the_shell_of_erlang_lists_the_process_that_keeps_its_memory() {
    let keep = "keep(_, 6000) -> ok;
keep(Keep, N) -> timer:sleep(100),
  keep([[{I, integer_to_list(I), [I, I]} || I <- lists:seq(1, 2000)] | Keep], N + 1).";
    let largest = largest_of_erlang(keep);
    assert!(largest[1].starts_with(&format!("{{{},", largest[2])), "{largest:?}");
}

#[test]
#[ignore = "needs erl and erlc"]
fn the_shell_of_erlang_lists_the_table_that_keeps_its_memory() {
    let keep = "keep(_, 6000) -> ok;
keep([], 0) -> ets:new(sessions, [named_table]), keep([], 1);
keep(_, N) -> timer:sleep(100), [ets:insert(sessions, {{N, I}, [I, I]}) || I <- lists:seq(1, 2000)], keep([], N + 1).";
    let largest = largest_of_erlang(keep);
    assert!(largest[0].starts_with("{sessions,"), "{largest:?}");
}

/// Starts the mode of a program that maps memory, and returns what the next step prints.
fn mapped(mode: &str) -> String {
    let program = compiled("grows-outside", "tests/fixtures/grows.c", &["-g", "-pthread"]);
    let growing = Growing::start("none", "", &[&program, mode]);
    growing.run(&growing.next())
}

#[test]
#[ignore = "needs perf and root"]
fn a_record_of_page_faults_has_the_function_that_uses_mapped_memory() {
    let printed = mapped("anonymous");
    assert!(printed.contains("grow_anonymous"), "{printed}");
}

#[test]
fn threads_and_shared_memory_are_listed_by_the_commands_that_leaks_names() {
    let printed = mapped("memfd");
    assert!(printed.contains("/memfd:frames"), "{printed}");
    let printed = mapped("threads");
    assert!(printed.lines().count() > 20, "{printed}");
}
