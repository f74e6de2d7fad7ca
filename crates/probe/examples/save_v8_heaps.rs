//! Creates the saved heaps of `crates/heap/tests/saved/v8`:
//! `cargo run -p lowtide-probe --example save_v8_heaps -- DIRECTORY NAME=PROGRAM…`
//!
//! A heap is saved with the output of `v8.getHeapSpaceStatistics()`. PROGRAM is Node.js or Deno.

use std::io::{BufRead, BufReader, Error, Result};
use std::process::{Command, Stdio};

use lowtide_heap::engine::{self, EnginePlaces};
use lowtide_heap::ptmalloc::HeapMapping;
use lowtide_heap::ranges::joined;
use lowtide_heap::saved::MemoryRecorder;
use lowtide_model::ledger::WalkedRuntime;
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::proc::maps::{self, Mapping};

/// A program that keeps one of every ten objects, and then does nothing, not even in JavaScript.
const PROGRAM: &str = "const v8 = require('v8'), fs = require('fs');\n\
    let all = []; for (let i = 0; i < 60000; i++) all.push({ i, text: 'x' + i });\n\
    globalThis.kept = all.filter((one, i) => i % 10 == 0); all = null;\n\
    globalThis.large = new Array(100000).fill(0.5);\n\
    const of = s => [s.space_name, [s.space_size, s.space_used_size]];\n\
    const all_of = () => JSON.stringify(Object.fromEntries(v8.getHeapSpaceStatistics().map(of)));\n\
    const one = Buffer.alloc(1); all_of(); fs.writeSync(1, ''); fs.writeSync(1, all_of() + String.fromCharCode(10)); fs.readSync(0, one);";

/// Bytes of the head of a page in a chunk that are saved. What follows are the program's objects.
const HEAD: usize = 512;
const PAGE: usize = 4096;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = || Error::other("usage: save_v8_heaps DIRECTORY NAME=PROGRAM…");
    let directory = arguments.next().ok_or_else(usage)?;
    for argument in arguments {
        let (name, program) = argument.split_once('=').ok_or_else(usage)?;
        let script = format!("{directory}/{name}.cjs");
        std::fs::write(&script, PROGRAM)?;
        let is_deno = program.ends_with("deno");
        let words: &[&str] = if is_deno { &["run", "-A"] } else { &[] };
        let mut child = Command::new(program)
            .args(words)
            .arg(&script)
            // The saved data are the program's own memory, including its environment.
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut statistics = String::new();
        let stdout = child.stdout.take().ok_or_else(usage)?;
        BufReader::new(stdout).read_line(&mut statistics)?;
        std::fs::remove_file(&script)?;
        let result = save(child.id(), &format!("{directory}/{name}"), &statistics);
        drop(child.stdin.take());
        child.wait()?;
        result?;
    }
    Ok(())
}

fn save(pid: u32, path: &str, statistics: &str) -> Result<()> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let maps = maps::parse(&maps).map_err(|error| Error::other(format!("{error}")))?;
    let memory = ProcessMemory::open(pid)?;
    let recorder = MemoryRecorder::new(&memory);
    let is_private = |m: &&Mapping| {
        let is_unnamed = m.name.is_empty() || m.name == "[heap]";
        m.permissions.ends_with('p') && !m.has_file() && is_unnamed
    };
    let mapping = |m: &Mapping| HeapMapping { range: m.start..m.end, is_brk: m.name == "[heap]" };
    let mappings: Vec<HeapMapping> = maps.iter().filter(is_private).map(mapping).collect();
    let private = joined(mappings.iter().map(|mapping| mapping.range.clone()).collect());
    let places =
        EnginePlaces { data: &[], heaps: &[], mapped: &[], private: &private, reserved: &private };
    let walked = engine::walk(WalkedRuntime::V8, &recorder, &places, None);
    let walked = walked.ok_or_else(|| Error::other("no heap of V8"))?;
    let mut saved = recorder.save(&[], &mappings);
    for (at, block) in &mut saved.memory.blocks {
        for (page, bytes) in (*at..).step_by(PAGE).zip(block.chunks_mut(PAGE)) {
            if walked.areas.iter().any(|area| area.contains(&page)) {
                bytes[HEAD..].fill(0);
            }
            // Nor are texts.
            let is_text = |word: &[u8]| word.iter().all(|b| b.is_ascii_graphic() || *b == b' ');
            bytes.chunks_mut(8).filter(|word| is_text(word)).for_each(|word| word.fill(0));
        }
    }
    let saved = saved.to_bytes();
    println!("{path}: {} bytes, {:?}", saved.len(), walked.ledger.total());
    std::fs::write(format!("{path}.heap"), saved)?;
    std::fs::write(format!("{path}.json"), statistics)
}
