use std::io::Write;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::fuzzing;
use crate::inspect::inspect_core;

const START: u64 = 0x5555_0000_0000;
const PAGE: usize = 4096;

/// The header of a segment of memory: offset, address, size in the file, size in memory.
type Load = [u64; 4];

/// Returns the bytes of a core with these segments, a page of notes before them, and `pages` pages.
fn bytes(loads: &[Load], notes: &[u8], pages: &[u8]) -> Vec<u8> {
    let machine: u8 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    let mut bytes = vec![0; 64];
    bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    (bytes[16], bytes[18], bytes[32], bytes[54]) = (4, machine, 64, 56);
    bytes[56] = loads.len() as u8 + 1;
    let mut add = |kind: u32, [offset, start, file_bytes, size]: Load| {
        let words = [offset, start, 0, file_bytes, size, PAGE as u64];
        bytes.extend([kind, 6].iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    };
    add(4, [2048, 0, notes.len() as u64, 0]);
    loads.iter().for_each(|load| add(1, *load));
    bytes.resize(2048, 0);
    bytes.extend(notes);
    bytes.resize(PAGE, 0);
    for page in pages {
        bytes.extend([*page; PAGE]);
    }
    bytes
}

fn open(bytes: &[u8]) -> Result<CoreFile, CoreError> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    CoreFile::from_file(file)
}

fn load(page: u64, start: u64, pages: u64) -> Load {
    let size = PAGE as u64;
    [page * size, START + start * size, pages * size, pages * size]
}

#[test]
fn memory_is_read_up_to_what_the_core_lacks_and_pages_of_zeros_have_no_content() {
    let size = PAGE as u64;
    let mut left_out = load(4, 3, 2);
    left_out[2] = 0;
    let loads = [load(3, 2, 1), load(1, 0, 2), left_out];
    let core = open(&bytes(&loads, &[], &[7, 0, 9])).unwrap();
    let mut word = [0; 8];
    assert_eq!((core.read(START + size - 4, &mut word), word), (8, [7, 7, 7, 7, 0, 0, 0, 0]));
    assert_eq!(core.read(START + 3 * size - 3, &mut word), 3);
    assert_eq!((core.read(START + 3 * size, &mut word), core.read(7, &mut word)), (0, 0));
    let content = [START..START + size, START + 2 * size..START + 3 * size];
    assert_eq!(core.content(0..u64::MAX), content);
    assert_eq!((core.missing_bytes(), core.left_out_bytes()), (0, 2 * size));
    assert!(!core.has_private_memory(), "no stack");
}

#[test]
fn shared_memory_that_was_left_out_is_counted_and_files_are_not() {
    let size = PAGE as u64;
    let paths = ["/dev/shm/buffers", "/var/lib/data"];
    let parts = [(0, 3), (3, 4)].map(|(first, end)| [START + first * size, START + end * size, 0]);
    let words = [2, size].into_iter().chain(parts.into_iter().flatten());
    let mut content: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    content.extend(paths.iter().flat_map(|path| [path.as_bytes(), b"\0"].concat()));
    let head = [5, content.len() as u32, 0x4649_4c45].map(u32::to_le_bytes).concat();
    let note = [&head[..], b"CORE\0\0\0\0", &content].concat();
    let without = |start: u64, pages: u64| [2 * size, START + start * size, 0, pages * size];
    let loads = [without(0, 3), without(3, 1), load(1, 4, 1)];
    let core = open(&bytes(&loads, &note, &[7])).unwrap();
    assert_eq!(core.left_out_shared_bytes(), 3 * size);
    assert_eq!(core.left_out_bytes(), 3 * size);
}

#[test]
fn a_core_that_was_cut_off_is_read_as_far_as_it_goes() {
    let all = bytes(&[load(1, 0, 3)], &[], &[1, 2, 3]);
    let core = open(&all[..2 * PAGE + 100]).unwrap();
    assert_eq!(core.missing_bytes(), 2 * PAGE as u64);
    assert_eq!(core.read(START, &mut [0; 3 * PAGE]), PAGE);
    assert!(matches!(open(&all[..100]), Err(CoreError::NoHeaders)));
    assert!(matches!(open(&all[..20]), Err(CoreError::Format)));
}

#[test]
fn files_that_are_no_cores_of_this_machine_are_refused_with_the_reason() {
    let core = bytes(&[load(1, 0, 1)], &[], &[1]);
    let with = |place: usize, value: u8| {
        let mut changed = core.clone();
        changed[place] = value;
        open(&changed).unwrap_err()
    };
    assert!(matches!(with(4, 1), CoreError::Bits));
    assert!(matches!(with(18, 8), CoreError::Machine(8, _)));
    assert!(matches!(with(16, 2), CoreError::Format), "a program");
    assert!(matches!(open(b"\x28\xb5\x2f\xfd........"), Err(CoreError::Compressed("zstd -d"))));
}

#[test]
fn segments_that_contradict_each_other_are_refused() {
    let refuses = |loads: &[Load]| open(&bytes(loads, &[], &[1, 2])).is_err();
    assert!(!refuses(&[load(1, 0, 1), load(2, 1, 1)]));
    assert!(refuses(&[load(1, 0, 2), load(1, 1, 1)]), "the same address twice");
    let same: Vec<Load> = (0..30).map(|place| load(1, place, 2)).collect();
    assert!(refuses(&same.iter().step_by(2).copied().collect::<Vec<_>>()), "the same bytes");
    assert!(refuses(&[[4096, START + 8, 4096, 4096]]), "no whole pages");
    assert!(refuses(&[[4096, START, 8192, 4096]]), "more in the file than in memory");
    assert!(refuses(&[[4096, START, 4096, 1 << 60]]), "more than all addresses");
}

#[test]
fn any_values_are_read_or_refused() {
    let words = || any::<u64>().prop_flat_map(|word| (0..64_u32).prop_map(move |by| word >> by));
    let load = (0..4_u64, 0..8_u64, 0..4_u64, words(), 0..12_usize);
    let loads = proptest::collection::vec(load, 0..5);
    let notes = proptest::collection::vec(words(), 0..200);
    let config = ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() };
    proptest!(config, |(loads in loads, notes in notes)| {
        let loads: Vec<Load> = loads
            .into_iter()
            .map(|(page, start, pages, word, place)| {
                let mut load = super::tests::load(page, start, pages);
                if let Some(value) = load.get_mut(place) {
                    *value = word;
                }
                load
            })
            .collect();
        let notes: Vec<u8> = notes.iter().flat_map(|word| word.to_le_bytes()).collect();
        fuzzing::core(&bytes(&loads, &notes, &[1, 0, 2]));
    });
}

#[test]
fn a_core_of_a_process_has_its_mappings_its_stack_and_its_heap() {
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let maps = lowtide_testing::until("its heap", || {
        let text = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).ok()?;
        (text.contains("sleep") && text.contains("[heap]")).then_some(text)
    });
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("core");
    lowtide_testing::write_core(child.id(), &path);
    child.kill().unwrap();
    child.wait().unwrap();
    let core = CoreFile::from_file(File::open(&path).unwrap()).unwrap();
    assert_eq!((core.pid(), core.threads().len()), (child.id(), 1));
    assert_eq!(core.command(), ["sleep", "1000"]);
    assert!(core.has_private_memory() && core.missing_bytes() == 0);
    let live = crate::proc::maps::parse(&maps).unwrap();
    for name in ["[heap]", "[stack]", "[vdso]"] {
        let is_named = |m: &&Mapping| m.name == name;
        let of = |maps: &[Mapping]| maps.iter().find(is_named).map(|m| m.start);
        assert_eq!(of(core.maps()), of(&live), "{name}");
    }
    let program = core.program(core.maps()).unwrap();
    assert!(program.name.ends_with("/sleep") || program.name.ends_with("coreutils"));
    assert!(core.open_mapped(program).is_ok());
    let walk = inspect_core(&Arc::new(core), None);
    assert_eq!(walk.observation.heaps.len(), 1, "{:?}", walk.observation.notes);
    assert!(walk.observation.ledger.rows().iter().all(|row| row.estimated || row.bytes == 0));
}
