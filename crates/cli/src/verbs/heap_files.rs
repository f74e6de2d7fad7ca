//! `lowtide inspect --save FILE PID`, `lowtide inspect FILE`, and `lowtide inspect FILE FILE`. Each
//! FILE may be an ELF core.

use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use lowtide_analysis::diagnose::diagnose;
use lowtide_analysis::heap_difference;
use lowtide_leaks::heap_file::{HeapFile, MAGIC, MAX_FILE_BYTES};
use lowtide_model::bytes::Human;
use lowtide_model::heap_file::{ComparedHeap, CoreOrigin};
use lowtide_model::inspection::Inspection;
use lowtide_model::remedy::RemedyKind;
use lowtide_model::verdict::{Verdict, VerdictKind};
use lowtide_probe::core_file::{CoreFile, FIRST_BYTES, is_core};
use lowtide_record::files;
use lowtide_report::{difference, inspection};
use serde_json::Value;

use super::inspect_blocks::{NAMED_SIZES, name_cause};
use crate::args::InspectArgs;
use crate::console::output::{Output, note};
use crate::failure::exit::{Exit, Failure};
use crate::shell::quoted;

/// Writes a file, which must not exist. It is complete, or absent.
pub(super) fn save(path: &Path, file: &HeapFile) -> Result<(), Failure> {
    let bytes = file.to_bytes().map_err(Failure::failed)?;
    files::write_whole(path, &bytes, false)
        .map_err(|error| Failure::record_not_created(path, &error))?;
    let name = quoted(&path.display().to_string());
    let size = Human(bytes.len() as u64);
    note!(
        "saved {size} without the content of memory: lowtide inspect {name}\n  next: lowtide report {name} --html \
         FILE     (as a page)"
    );
    Ok(())
}

/// Shows a file, or the difference between two.
pub(super) fn run(
    args: &InspectArgs,
    paths: &[&Path],
    has_processes: bool,
    output: &Output,
) -> Result<Exit, Failure> {
    let first = paths.first().map_or(String::new(), |path| path.display().to_string());
    let flags = [
        (args.watch.is_some(), "--watch"),
        (args.malloc_info, "--malloc-info"),
        (args.save.is_some(), "--save"),
        (args.stacks, "--stacks"),
        (args.folded, "--folded"),
        (args.pprof.is_some(), "--pprof"),
    ];
    if let Some((_, flag)) = flags.into_iter().find(|(is_given, _)| *is_given) {
        return Err(Failure::usage(format!(
            "{first} is a file, and {flag} needs a process: name its PID"
        )));
    }
    match paths {
        _ if has_processes => Err(Failure::usage(
            "a file and a process cannot be compared: save the process first, with lowtide inspect --save FILE PID",
        )),
        [path] => show(args, path, output),
        [before, after] => compare(args, before, after, output),
        _ => Err(Failure::usage(format!(
            "{} files are named: name one to show it, or two to compare them",
            paths.len()
        ))),
    }
}

/// Reads a file, which may come from anyone.
fn read(path: &Path) -> Result<HeapFile, Failure> {
    let failed = |reason: &dyn std::fmt::Display| {
        Failure::failed(format!("{} cannot be read: {reason}", path.display()))
    };
    let file = files::open_read(path).map_err(|error| failed(&error))?;
    let mut first = [0; FIRST_BYTES];
    let length = file.read_at(&mut first, 0).map_err(|error| failed(&error))?;
    if is_core(&first[..length]) {
        let core = CoreFile::from_file(file).map_err(|error| failed(&error))?;
        return Ok(HeapFile::from_core(core, &AtomicBool::new(false)));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|error| failed(&error))?;
    HeapFile::from_bytes(&bytes).map_err(|error| failed(&error))
}

fn show(args: &InspectArgs, path: &Path, output: &Output) -> Result<Exit, Failure> {
    let file = read(path)?;
    let InspectArgs { blocks, pins, top, .. } = *args;
    let found = concluded(&file, Parts { blocks, pins, top });
    if output.json {
        output.object(&to_json(&found)?)?;
        return Ok(Exit::Done);
    }
    output.text(&inspection::render(&found, args.details(), output.screen()))?;
    let name = quoted(&path.display().to_string());
    output.text(&format!("next: {}\n", next(&found, &name)))?;
    Ok(Exit::Done)
}

/// Returns whether a file begins like a heap file or a core.
pub(super) fn is_heap_file(path: &Path) -> bool {
    let mut first = [0; FIRST_BYTES];
    let read = files::open_read(path).and_then(|file| file.read_at(&mut first, 0));
    let first = &first[..read.unwrap_or(0)];
    first.starts_with(MAGIC) || is_core(first)
}

/// Returns the object of an inspection. A core does not show RSS.
pub(super) fn to_json(found: &Inspection) -> Result<Value, Failure> {
    let mut object = serde_json::to_value(found).map_err(Failure::failed)?;
    if found.saved.as_ref().is_some_and(|saved| saved.core.is_some()) {
        object["rss_bytes"] = Value::Null;
    }
    Ok(object)
}

/// Reads everything that a file leads to, with the `top` largest groups of blocks.
pub(super) fn everything(path: &Path, top: usize) -> Result<Inspection, Failure> {
    Ok(concluded(&read(path)?, Parts { blocks: true, pins: true, top }))
}

/// What is concluded about blocks.
#[derive(Debug, Clone, Copy)]
struct Parts {
    blocks: bool,
    pins: bool,
    /// Number of groups.
    top: usize,
}

/// Concludes from a file what an inspection concludes from a process.
fn concluded(file: &HeapFile, parts: Parts) -> Inspection {
    let mut found = diagnose(file.observation.clone());
    // The PID may now be that of another process, on another machine.
    let command = format!(": lowtide release {}", found.observation.pid);
    if file.release_is_refused {
        found.remedies.retain(|remedy| remedy.kind != RemedyKind::Release);
    }
    let of_java = format!("jcmd {}", found.observation.pid);
    for remedy in &mut found.remedies {
        remedy.how = remedy.how.replace(&command, ", if it still runs: lowtide release");
        remedy.replace(&of_java, "jcmd PID");
        if remedy.kind == RemedyKind::Release {
            let brief = "lowtide release, if it still runs, returns whole free pages";
            remedy.brief = Some(brief.to_owned());
        }
    }
    if let Some(core) = &file.origin.core {
        limit_to_core(&mut found, core);
    }
    // Of a core without a heap that was walked, nothing is known about blocks.
    let has_blocks = file.origin.core.is_none() || !found.observation.heaps.is_empty();
    if parts.blocks && has_blocks {
        found.blocks = Some(file.blocks(parts.top));
    }
    if parts.pins && has_blocks {
        let pins = file.pins(parts.top);
        name_cause(&mut found, &pins);
        found.pins = Some(pins);
    } else if found.verdict.kind == VerdictKind::Fragmentation {
        name_cause(&mut found, &file.pins(NAMED_SIZES));
    }
    found.saved = Some(file.origin.clone());
    found
}

/// Limits a verdict to what a core shows: it has no verdict if memory is missing that the process
/// may have used, or if its heap was not recognised.
fn limit_to_core(found: &mut Inspection, core: &CoreOrigin) {
    /// Maximum of shared memory that was left out, as a share of the content, for a verdict.
    const NOTABLE: f64 = 0.1;
    let observation = &found.observation;
    let is_unknown = observation.allocator.is_none() && observation.runtimes.is_empty();
    let content = observation.ledger.total() as f64;
    let reason = match () {
        () if core.missing_bytes > 0 => Some("a part of the memory was cut off".to_owned()),
        () if !core.has_private_memory => {
            Some("the core lacks private memory, which coredump_filter left out".to_owned())
        }
        () if core.left_out_shared_bytes as f64 > content * NOTABLE => Some(format!(
            "the core lacks up to {} of shared memory, which was left out (coredump_filter, MADV_DONTDUMP)",
            Human(core.left_out_shared_bytes)
        )),
        () if is_unknown => Some("its allocator was not recognised".to_owned()),
        () => None,
    };
    if let Some(reason) = reason {
        let because = vec![reason];
        found.verdict = Verdict { kind: VerdictKind::Inconclusive, because };
        found.remedies.clear();
    }
    for reason in &mut found.verdict.because {
        *reason = reason.replace(" of RSS)", " of the content)");
    }
}

/// Returns the command to run next. The process itself may be out of reach.
fn next(found: &Inspection, name: &str) -> String {
    let is_fragmented = found.verdict.kind == VerdictKind::Fragmentation;
    match (&found.pins, &found.blocks) {
        (None, _) if is_fragmented => format!("lowtide inspect {name} --pins"),
        (_, None) => format!("lowtide inspect {name} --blocks"),
        _ => {
            format!("lowtide inspect {name} OTHER.heap     (what differs from a file saved later)")
        }
    }
}

fn compare(
    args: &InspectArgs,
    before: &Path,
    after: &Path,
    output: &Output,
) -> Result<Exit, Failure> {
    let (from, to) = (read(before)?, read(after)?);
    let mut found = heap_difference::compare(
        heap_difference::Heap {
            compared: compared(&from, before),
            ledger: &from.observation.ledger,
            blocks: from.blocks(usize::MAX),
        },
        heap_difference::Heap {
            compared: compared(&to, after),
            ledger: &to.observation.ledger,
            blocks: to.blocks(usize::MAX),
        },
        args.top,
    );
    found.notes.extend(note_of_cores([&from, &to]));
    match output.json {
        true => output.object(&found)?,
        false => output.text(&difference::render(&found, output.screen()))?,
    }
    Ok(Exit::Done)
}

/// Returns the note on files that are cores.
fn note_of_cores(files: [&HeapFile; 2]) -> Option<String> {
    let is_any = files.iter().any(|file| file.origin.core.is_some());
    is_any.then(|| {
        "a core does not show which pages were resident: its RSS and its rows are those of pages with content; \
         blocks in use are exact"
            .to_owned()
    })
}

fn compared(file: &HeapFile, path: &Path) -> ComparedHeap {
    ComparedHeap {
        file: path.display().to_string(),
        pid: file.observation.pid,
        command: file.observation.command.clone(),
        unix_s: file.origin.unix_s,
        rss_bytes: file.observation.rss_bytes,
    }
}
