use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;

use super::*;

const RING: usize = 32 << 10;
/// Size of a ring that is tried at every byte.
const SMALL: usize = 4 << 10;

/// Writes a ring of this size, with a head and this many readings. Returns its bytes.
fn ring(size: usize, readings: u32) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    write(file.reopen().unwrap(), size, readings).unwrap();
    fs::read(file.path()).unwrap()
}

fn write(file: File, size: usize, readings: u32) -> io::Result<()> {
    let mut writer = RingWriter::new(file, size)?;
    let head = BoxLine::Head(HeadLine { pid: 4711, ..HeadLine::default() }).to_payload();
    writer.write(&head, Vec::new)?;
    for place in 0..readings {
        let reading = ReadingLine { t_s: f64::from(place), ..ReadingLine::default() };
        writer.write(&BoxLine::Reading(reading).to_payload(), || vec![&head])?;
    }
    Ok(())
}

/// Returns the times of the readings.
fn times(record: &BoxRecord) -> Vec<f64> {
    let time = |line: &BoxLine| match line {
        BoxLine::Reading(reading) => Some(reading.t_s),
        _ => None,
    };
    record.lines.iter().filter_map(time).collect()
}

#[test]
fn a_ring_keeps_its_size_and_the_newest_readings_in_order() {
    let bytes = ring(RING, 10_000);
    assert_eq!(bytes.len(), RING);
    let record = parse(&bytes).unwrap();
    let times = times(&record);
    assert_eq!((record.head.pid, times.last()), (4711, Some(&9999.0)));
    assert!(times.is_sorted() && times.len() > 80, "{}", times.len());
    // At least one half is complete.
    let newest: Vec<f64> = (9999 - 60..=9999).map(f64::from).collect();
    assert!(times.ends_with(&newest), "{times:?}");
}

#[test]
fn a_ring_with_any_byte_flipped_loses_at_most_one_frame() {
    let bytes = ring(SMALL, 300);
    let whole = parse(&bytes).unwrap();
    for place in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[place] ^= 1 << (place % 8);
        assert!(frames(&changed).len() + 1 >= frames(&bytes).len(), "byte {place}");
        // Reading the lines takes longer.
        if place % 16 == 0 {
            let read = parse(&changed).unwrap_or_else(|| panic!("byte {place}"));
            assert!(read.lines.len() + 1 >= whole.lines.len(), "byte {place}");
            assert_eq!(read.head.pid, 4711);
        }
    }
}

#[test]
fn a_ring_that_is_cut_off_anywhere_is_read_up_to_there() {
    let bytes = ring(16 << 10, 30);
    let mut before = 0;
    for length in (0..=bytes.len()).step_by(16) {
        let read = parse(&bytes[..length]).map_or(0, |record| record.lines.len());
        assert!(read >= before, "{length}");
        before = read;
    }
    assert_eq!(before, 30);
}

#[test]
fn a_file_of_heads_that_claim_everything_ends_in_time() {
    let one = frame::encode(1, &[0; 100_000]).unwrap();
    let mut hostile = one[..64].repeat(16_384);
    hostile.extend(ring(RING, 3));
    assert!(frames(&hostile).len() < 10);
}

#[test]
fn a_ring_is_readable_while_it_is_written_and_at_each_write_that_fails() {
    // A descriptor without the right to write stands for a full or read-only disk.
    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(write(File::open(file.path()).unwrap(), RING, 1).is_err());
    write(file.reopen().unwrap(), RING, 10).unwrap();
    assert_eq!(times(&read(file.path()).unwrap()).len(), 10);
    fs::write(file.path(), "anything else").unwrap();
    assert!(matches!(read(file.path()), Err(BoxError::Empty)));
}

fn names(home: &Path) -> Vec<String> {
    let rings = rings_in(home).unwrap().into_iter();
    rings.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_directory_stays_below_its_size_and_ordinary_ends_lose_first() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("box");
    let store = Store::open(&path, RING, 4 * RING as u64).unwrap();
    assert_eq!(store.max_live(), 2);
    let causes = [Cause::OomKill, Cause::Exit, Cause::Signal, Cause::OomKill, Cause::Exit];
    for (place, cause) in causes.into_iter().enumerate() {
        let pid = place as u32 + 1;
        let ring = store.start(pid, 7).unwrap();
        store.finish(ring, 1e9 + place as f64, pid, cause).unwrap();
    }
    let kept = names(&path);
    let endings: Vec<&str> = kept.iter().map(|name| &name[25..]).collect();
    assert_eq!(endings, ["4-oom_kill.box", "1-oom_kill.box", "3-signal.box", "5-exit.box"]);
    let mode = fs::metadata(path.join(&kept[0])).unwrap().permissions().mode();
    assert_eq!(mode & 0o137, 0, "{mode:o}");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o027, 0);
}

#[test]
fn a_second_writer_is_refused_and_rings_of_a_killed_one_are_kept() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("box");
    let store = Store::open(&path, RING, MAX_BYTES).unwrap();
    let mut ring = store.start(4711, 7).unwrap();
    let head = BoxLine::Head(HeadLine { pid: 4711, ..HeadLine::default() }).to_payload();
    ring.writer.write(&head, Vec::new).unwrap();
    let error = Store::open(&path, RING, MAX_BYTES).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    drop((store, ring));
    let store = Store::open(&path, RING, MAX_BYTES).unwrap();
    let kept = names(&path);
    assert!(kept.len() == 1 && kept[0].ends_with("-4711-peak.box"), "{kept:?}");
    assert_eq!(read(&path.join(&kept[0])).unwrap().head.pid, 4711);
    drop(store);
}

#[test]
fn a_kill_of_this_process_is_shown_before_one_of_another() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("box");
    let store = Store::open(&path, RING, MAX_BYTES).unwrap();
    let causes = [Cause::OomKill, Cause::GroupOomKill, Cause::Signal];
    for (place, cause) in causes.into_iter().enumerate() {
        let ring = store.start(place as u32 + 1, 7).unwrap();
        store.finish(ring, 1e9 + place as f64, 1, cause).unwrap();
    }
    let endings: Vec<String> = names(&path).iter().map(|name| name[25..].to_owned()).collect();
    assert_eq!(endings, ["1-oom_kill.box", "1-group_oom_kill.box", "1-signal.box"]);
}

#[test]
fn a_directory_that_other_users_may_change_is_refused() {
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(Store::open(home.path(), RING, MAX_BYTES).is_err());
    let file = home.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(Store::open(&file, RING, MAX_BYTES).is_err());
}

proptest::proptest! {
    #[test]
    fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(0_u8..255, 0..4096)) {
        let _ = parse(&bytes);
        let _ = BoxLine::from_payload(&bytes);
    }
}
