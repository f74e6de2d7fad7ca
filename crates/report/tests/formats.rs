//! Every format of a report, drawn from a record in the first version of the format. The record
//! must stay readable for ever; the pictures are compared as text.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};

use lowtide_model::heap_summary::HeapSummary;
use lowtide_report::read::{self, LoadedRecord};
use lowtide_report::svg::{self, Charts};
use lowtide_report::{Screen, View, csv, html, markdown, png, terminal};

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/record")
}

fn record() -> LoadedRecord {
    let mut loaded = read::load(&path()).unwrap();
    loaded.study.record = "record".to_owned();
    loaded
}

const ALL: Charts = Charts { course: true, bars: true, panels: true };

#[test]
fn the_figures_of_the_record_stay_what_they_are() {
    let study = record().study;
    let text = serde_json::to_string_pretty(&study).unwrap();
    insta::assert_snapshot!(text);
}

#[test]
fn the_charts_as_svg() {
    let views = View::with_those_beside(&[record()], &[]);
    insta::assert_snapshot!(svg::sheet(&views, "./subject serve:17654", ALL).svg);
}

#[test]
fn the_tables_as_markdown() {
    insta::assert_snapshot!(markdown::render(&[record()]));
}

#[test]
fn arenas_and_free_blocks_are_told_where_a_heap_was_walked() {
    let mut record = record();
    assert!(!markdown::render(&[record.clone()]).contains("largest free block"));
    let heap = HeapSummary {
        arenas: 16,
        system_bytes: 3 << 30,
        free_count: 57,
        free_bytes: 2 << 30,
        largest_free_bytes: 1 << 30,
        top_bytes: 0,
    };
    for trial in record.study.trials.iter_mut().filter(|t| t.treatment.allocator == "glibc") {
        trial.heaps.settled = Some(heap);
    }
    let told = markdown::render(&[record.clone()]);
    let row = "| glibc, settled | 16 | 57 | 2.00 GiB | 1.00 GiB | 0 B |";
    assert!(told.contains(row), "{told}");
    let page = html::render(&[record.clone()], &[], "subtitle").unwrap();
    assert!(page.contains("How glibc's heap lay"));
    let text = terminal::render(&[record], &[], Screen { width: 110, colour: false });
    assert!(text.contains("largest free block"), "{text}");
}

#[test]
fn a_wide_and_a_narrow_terminal() {
    let render = |width| terminal::render(&[record()], &[], Screen { width, colour: false });
    insta::assert_snapshot!(render(110));
    let narrow = render(56);
    assert!(narrow.lines().all(|line| line.chars().count() <= 56), "{narrow}");
    insta::assert_snapshot!(narrow);
}

#[test]
fn colours_are_only_where_they_are_wanted() {
    let render = |colour| terminal::render(&[record()], &[], Screen { width: 100, colour });
    assert!(render(true).contains("\u{1b}[") && !render(false).contains('\u{1b}'));
}

#[test]
fn the_samples_as_csv() {
    let text = csv::render(&[record()]);
    let lines: Vec<&str> = text.lines().take(3).collect();
    insta::assert_snapshot!(lines.join("\n"));
    let samples: usize = record().trials.iter().map(|(_, t)| t.samples.len()).sum();
    assert_eq!(text.lines().count(), samples + 1);
}

#[test]
fn the_png_has_the_size_of_its_picture_twice_over() {
    let views = View::with_those_beside(&[record()], &[record()]);
    let picture = svg::sheet(&views, "subtitle", ALL);
    let bytes = png::render(&picture).unwrap();
    let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let expected = ((picture.width * 2.0).ceil() as u32, (picture.height * 2.0).ceil() as u32);
    assert_eq!((number(16), number(20)), expected);
}

#[test]
fn nothing_in_a_record_can_leave_its_place_in_the_page() {
    let hostile = "</script><script>alert(1)</script><!--";
    let mut record = record();
    record.study.name = hostile.to_owned();
    record.study.plan.about = Some(hostile.to_owned());
    for summary in &mut record.study.treatments {
        summary.treatment.tune = Some(hostile.to_owned());
    }
    for trial in &mut record.study.trials {
        trial.treatment.tune = Some(hostile.to_owned());
    }
    for (_, trial) in &mut record.trials {
        trial.trial.treatment.tune = Some(hostile.to_owned());
    }
    let page = html::render(&[record.clone()], &[record.clone()], hostile).unwrap();
    assert!(!page.contains("<script>alert"), "unescaped");
    // Two scripts of lowtide, the data, and the script that picks the theme.
    assert_eq!(page.matches("</script>").count(), 4);
    assert!(
        !svg::sheet(&View::with_those_beside(&[record], &[]), hostile, ALL).svg.contains("<script")
    );
}

#[test]
fn a_page_needs_nothing_from_anywhere_else_and_tells_the_whole_story() {
    let page = html::render(&[record()], &[], "subtitle").unwrap();
    for outside in ["src=\"http", "href=\"http", "url(http", "@import", "fetch(", "XMLHttpRequest"]
    {
        assert!(!page.contains(outside), "{outside}");
    }
    for told in [
        "Memory over time",
        "Rounds",
        "Trials",
        "Provenance",
        "How to read the numbers",
        "overcommit",
        "connections",
    ] {
        assert!(page.contains(told), "{told}");
    }
}

#[test]
fn the_published_traces_of_python_httpx_are_read_as_they_were_published() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies/python-httpx/document");
    let study = read::load(&path).unwrap().study;
    let figures: Vec<(String, u64, u64)> = study
        .trials
        .iter()
        .map(|t| (t.treatment.label(), t.peak_bytes.unwrap() >> 20, t.settled_bytes.unwrap() >> 20))
        .collect();
    // In MiB; the tables of the source are in KiB.
    let expected = [
        ("glibc".to_owned(), 4955, 4955),
        ("mimalloc2".to_owned(), 4524, 177),
        ("jemalloc".to_owned(), 4560, 218),
        ("tcmalloc".to_owned(), 4507, 4503),
    ];
    assert_eq!(figures, expected);
}

#[test]
fn the_published_logs_of_million_streams_are_drawn_as_its_pictures_are() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies/million-streams/document");
    let record = read::load(&path).unwrap();
    let settled: Vec<(String, u64, u64)> = record
        .study
        .trials
        .iter()
        .map(|t| {
            let of = |round: usize| t.rounds[round].settled_bytes.unwrap() >> 20;
            (t.treatment.label(), of(0), of(1))
        })
        .collect();
    // In MiB, truncated; medians of the last 5 s, in which the last one still fell.
    let expected = [
        ("glibc".to_owned(), 2062, 2339),
        ("mimalloc2".to_owned(), 731, 655),
        ("glibc/refresh".to_owned(), 11, 62),
        ("mimalloc2/refresh".to_owned(), 14, 20),
    ];
    assert_eq!(settled, expected);
    let view = View::new(std::slice::from_ref(&record));
    assert_eq!(view.most_counted(), 1_000_008);
    let refreshed = view.groups[2].main().unwrap();
    assert!(refreshed.marks.iter().any(|(_, word)| word == "refresh"), "{:?}", refreshed.marks);
    let svg = svg::sheet(&[view], "", ALL).svg;
    for told in ["yellow: RSS, blue: allocated", "green: requests in flight (dotted: tasks)"] {
        assert_eq!(svg.matches(told).count(), 4, "{told}");
    }
    let screen = Screen { width: 100, colour: false };
    let text = terminal::render(&[record], &[], screen);
    assert!(text.contains("requests in flight of glibc, at most 1000000"), "{text}");
}
