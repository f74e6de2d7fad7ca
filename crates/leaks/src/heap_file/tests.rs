use std::sync::atomic::AtomicBool;

use lowtide_analysis::diagnose::diagnose;
use lowtide_probe::inspect::Inspector;
use proptest::prelude::*;

use super::*;

/// Returns the file of a process that has just started.
fn small() -> Vec<u8> {
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let target = Target::open(child.id()).unwrap();
    lowtide_testing::until("the program has started", || {
        target.stat().is_ok_and(|stat| stat.name == "sleep").then_some(())
    });
    // The loader may still be at work.
    let read = lowtide_testing::until("a file with a heap", || {
        let observation = Inspector::default().inspect(&target).ok()?;
        let file = HeapFile::read(&target, observation, false, &AtomicBool::new(false)).ok()?;
        (!file.observation.heaps.is_empty()).then_some(file)
    });
    child.kill().unwrap();
    child.wait().unwrap();
    read.to_bytes().unwrap()
}

/// Returns a file with another body.
fn with_body(change: impl FnOnce(&mut serde_json::Value, &mut Vec<u8>)) -> Vec<u8> {
    let body = envelope::open(&small()).unwrap();
    let (text, columns) = envelope::parts(&body).unwrap();
    let (mut text, mut columns) = (serde_json::from_slice(text).unwrap(), columns.to_vec());
    change(&mut text, &mut columns);
    envelope::seal(&serde_json::to_vec(&text).unwrap(), &columns).unwrap()
}

/// Concludes everything from a file, if it is valid.
fn conclude(bytes: &[u8]) -> bool {
    let Ok(file) = HeapFile::from_bytes(bytes) else { return false };
    let _ = (file.pins(10), file.blocks(10), diagnose(file.observation.clone()));
    true
}

#[test]
fn a_file_is_read_back_with_the_same_conclusions() {
    let bytes = small();
    let file = HeapFile::from_bytes(&bytes).unwrap();
    assert_eq!(file.to_bytes().unwrap(), bytes);
    assert!(file.blocks(10).blocks > 0 && file.observation.heap.is_some());
    assert!(file.origin.mappings.iter().any(|mapping| mapping.resident_bytes > 0));
}

#[test]
fn a_file_with_any_byte_flipped_or_missing_is_refused() {
    let bytes = small();
    for place in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[place] ^= 1 << (place % 8);
        assert!(HeapFile::from_bytes(&changed).is_err(), "byte {place}");
        // Cutting it off everywhere would take long.
        if place % 16 == 0 {
            assert!(HeapFile::from_bytes(&bytes[..place]).is_err(), "cut off at {place}");
        }
    }
    let newer = bytes.strip_prefix(b"lowtide.heap-file/1").unwrap();
    let newer = [b"lowtide.heap-file/2", newer].concat();
    assert_eq!(HeapFile::from_bytes(&newer).unwrap_err(), HeapFileError::Version(2));
    assert_eq!(HeapFile::from_bytes(b"\x7fELF").unwrap_err(), HeapFileError::Format);
}

/// Calls `change` with the number at an index of all numbers of a value.
fn change_number(value: &mut serde_json::Value, index: &mut usize, to: u64) {
    match value {
        serde_json::Value::Number(number) if number.is_u64() => {
            if *index == 0 {
                *number = to.into();
            }
            *index = index.wrapping_sub(1);
        }
        serde_json::Value::Array(all) => {
            all.iter_mut().for_each(|value| change_number(value, index, to));
        }
        serde_json::Value::Object(all) => {
            all.values_mut().for_each(|value| change_number(value, index, to));
        }
        _ => {}
    }
}

#[test]
fn invalid_values_with_a_right_checksum_never_panic() {
    let body = envelope::open(&small()).unwrap();
    let (text, columns) = envelope::parts(&body).unwrap();
    let text: serde_json::Value = serde_json::from_slice(text).unwrap();
    let config = ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() };
    let changes = proptest::collection::vec((0..600_usize, any::<u64>(), 0..64_u32), 0..4);
    let bytes = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    proptest!(config, |(changes in changes, bytes in bytes)| {
        let (mut text, mut columns) = (text.clone(), columns.to_vec());
        for (mut index, number, shift) in changes {
            let part = if index % 3 == 0 { &mut text["summary"] } else { &mut text };
            index %= if part.get("origin").is_some() { 600 } else { 10 };
            change_number(part, &mut index, number >> shift);
        }
        for (place, byte) in bytes {
            let place = place.index(columns.len());
            columns[place] = byte;
        }
        conclude(&envelope::seal(&serde_json::to_vec(&text).unwrap(), &columns).unwrap());
    });
}

#[test]
fn impossible_values_are_refused() {
    assert!(conclude(&with_body(|_, _| {})));
    let is_refused = |change: &dyn Fn(&mut serde_json::Value, &mut Vec<u8>)| {
        !conclude(&with_body(|text, columns| change(text, columns)))
    };
    assert!(is_refused(&|text, _| text["observation"]["swap_bytes"] = u64::MAX.into()));
    assert!(is_refused(&|text, _| text["observation"]["rss_bytes"] = 1.into()));
    assert!(is_refused(&|text, _| text["summary"]["page_bytes"] = 0.into()));
    assert!(is_refused(&|text, _| text["summary"]["read_share"] = 2.into()));
    assert!(is_refused(&|text, _| text["summary"]["types"] = "x".into()));
    assert!(is_refused(&|text, _| text["summary"]["threads"] = (1_u64 << 40).into()));
    assert!(is_refused(&|text, _| text["summary"]["read_share"] = 1e-300.into()));
    assert!(is_refused(&|_, columns| columns.push(0)));
    assert!(is_refused(&|_, columns| columns.truncate(columns.len() - 1)));
    // More elements than bytes.
    assert!(is_refused(&|_, columns| *columns = vec![0xff, 0xff, 0xff, 0x7f]));
}
