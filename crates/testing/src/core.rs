//! Writes the core of a process, as the kernel does by default: not every machine lets it write one
//! to a file, or has gdb.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Size of the header of the file, of a segment, and of a page, in bytes.
const HEADER: u64 = 64;
const SEGMENT: u64 = 56;
const PAGE: u64 = 4096;
/// Number of registers in the note of a thread, and the place of the stack pointer.
const REGISTERS: (usize, usize) = if cfg!(target_arch = "aarch64") { (34, 31) } else { (27, 19) };

/// A mapping, and the bytes of it that are written.
struct Mapping {
    start: u64,
    end: u64,
    flags: u32,
    dumped_bytes: u64,
    offset: u64,
    path: String,
}

/// Writes the core of a process that is stopped: private memory that was used, and the first page
/// of each file. Pages that are not resident are
/// written as zeros.
///
/// # Panics
/// Panics if the process cannot be read, or the file cannot be written.
pub fn write_core(pid: u32, path: &Path) {
    let maps = mappings(pid);
    let notes = notes(pid, &maps);
    let mut file = File::create(path).expect("the core");
    let headers = HEADER + SEGMENT * (maps.len() as u64 + 1);
    let mut at = (headers + notes.len() as u64).next_multiple_of(PAGE);
    let mut bytes = header(maps.len() as u64 + 1);
    bytes.extend(segment([4, 4], [headers, 0, notes.len() as u64, 0]));
    let mut places = Vec::new();
    for mapping in &maps {
        let size = mapping.end - mapping.start;
        let kind = [1, mapping.flags];
        bytes.extend(segment(kind, [at, mapping.start, mapping.dumped_bytes, size]));
        places.push(at);
        at += mapping.dumped_bytes;
    }
    bytes.extend(notes);
    file.write_all(&bytes).expect("the headers");
    let memory = File::open(format!("/proc/{pid}/mem")).expect("its memory");
    for (mapping, at) in maps.iter().zip(places) {
        file.seek(SeekFrom::Start(at)).expect("a place");
        let mut page = [0; PAGE as usize];
        for from in (0..mapping.dumped_bytes).step_by(PAGE as usize) {
            page.fill(0);
            let _ = memory.read_exact_at(&mut page, mapping.start + from);
            file.write_all(&page).expect("a page");
        }
    }
}

/// Reads the mappings from `smaps`, which has what was changed of each file.
fn mappings(pid: u32) -> Vec<Mapping> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).expect("its mappings");
    let mut maps: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let Some((start, end)) = words[0].split_once('-') {
            let hex = |text: &str| u64::from_str_radix(text, 16).expect("an address");
            let flag = |name, flag| if words[1].contains(name) { flag } else { 0 };
            maps.push(Mapping {
                start: hex(start),
                end: hex(end),
                flags: flag('r', 4) | flag('w', 2) | flag('x', 1),
                dumped_bytes: 0,
                offset: hex(words[2]),
                path: words.get(5..).unwrap_or_default().join(" "),
            });
        } else if let ("Anonymous:", Some(last)) = (words[0], maps.last_mut()) {
            let is_first = last.path.starts_with('/') && last.offset == 0;
            last.dumped_bytes = match words[1] {
                "0" if is_first => PAGE,
                "0" => 0,
                _ => last.end - last.start,
            };
        }
    }
    maps.retain(|mapping| !mapping.path.starts_with("[v") || mapping.path == "[vdso]");
    maps
}

fn notes(pid: u32, maps: &[Mapping]) -> Vec<u8> {
    let mut notes = Vec::new();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
    for task in tasks.flatten() {
        let call = fs::read_to_string(task.path().join("syscall")).unwrap_or_default();
        // The last two values are the stack pointer and the instruction pointer.
        let pointer = call.split_whitespace().rev().nth(1).unwrap_or("0x0");
        let pointer = u64::from_str_radix(pointer.trim_start_matches("0x"), 16).unwrap_or(0);
        let mut status = vec![0; 112 + REGISTERS.0 * 8 + 8];
        status[112 + REGISTERS.1 * 8..][..8].copy_from_slice(&pointer.to_le_bytes());
        notes.extend(note(1, &status));
    }
    let mut info = vec![0; 136];
    info[24..28].copy_from_slice(&pid.to_le_bytes());
    let command = fs::read(format!("/proc/{pid}/cmdline")).expect("its command");
    for (to, byte) in info[56..135].iter_mut().zip(command) {
        *to = if byte == 0 { b' ' } else { byte };
    }
    notes.extend(note(3, &info));
    notes.extend(note(6, &fs::read(format!("/proc/{pid}/auxv")).expect("its vector")));
    let files: Vec<&Mapping> = maps.iter().filter(|m| m.path.starts_with('/')).collect();
    let mut list: Vec<u64> = vec![files.len() as u64, PAGE];
    list.extend(files.iter().flat_map(|m| [m.start, m.end, m.offset / PAGE]));
    let mut list: Vec<u8> = list.iter().flat_map(|word| word.to_le_bytes()).collect();
    list.extend(files.iter().flat_map(|m| [m.path.as_bytes(), b"\0"].concat()));
    notes.extend(note(0x4649_4c45, &list));
    notes
}

fn note(kind: u32, content: &[u8]) -> Vec<u8> {
    let head = [5, content.len() as u32, kind];
    let mut bytes: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(b"CORE\0\0\0\0");
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn header(segments: u64) -> Vec<u8> {
    let machine: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    let mut bytes = vec![0; HEADER as usize];
    bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    bytes[16] = 4;
    bytes[18..20].copy_from_slice(&machine.to_le_bytes());
    bytes[20] = 1;
    bytes[32..40].copy_from_slice(&HEADER.to_le_bytes());
    bytes[52..54].copy_from_slice(&(HEADER as u16).to_le_bytes());
    bytes[54..56].copy_from_slice(&(SEGMENT as u16).to_le_bytes());
    bytes[56..58].copy_from_slice(&(segments as u16).to_le_bytes());
    bytes
}

/// Returns the header of a segment: its kind and flags; its offset, address, size in the file, and
/// size in memory.
fn segment(kind: [u32; 2], [offset, start, dumped_bytes, size]: [u64; 4]) -> Vec<u8> {
    let words = [offset, start, 0, dumped_bytes, size, PAGE];
    let kind = kind.iter().flat_map(|word| word.to_le_bytes());
    kind.chain(words.iter().flat_map(|word| word.to_le_bytes())).collect()
}
