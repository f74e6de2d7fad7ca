//! Every format of a report, drawn from a record in the first version of the format. The record
//! must stay readable for ever; the pictures are compared as text.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};

use lowtide_model::heap_summary::HeapSummary;
use lowtide_model::pins::{PinShare, PinSummary};
use lowtide_record::v1::{Event, Mark, SubjectMetrics};
use lowtide_report::read::{self, LoadedRecord};
use lowtide_report::svg::{self, Charts};
use lowtide_report::terminal::Details;
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
fn the_metrics_of_the_recorded_study_do_not_change() {
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
fn arenas_and_free_blocks_are_reported_for_a_walked_heap() {
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
    let reported = markdown::render(&[record.clone()]);
    let row = "| glibc, settled | 16 | 57 | 2.00 GiB | 1.00 GiB | 0 B |";
    assert!(reported.contains(row), "{reported}");
    let page = html::render(&[record.clone()], &[], "subtitle").unwrap();
    assert!(page.contains("Heap of glibc"));
    let text =
        terminal::render(&[record], &[], Details::Shown, Screen { width: 110, colour: false });
    assert!(text.contains("largest free block"), "{text}");
}

#[test]
fn what_pins_memory_under_each_treatment_is_in_the_tables_and_the_page() {
    let mut record = record();
    assert!(!markdown::render(&[record.clone()]).contains("pins free memory"));
    let share = |name: &str, size_bytes, pinned_mib: u64| PinShare {
        size_bytes,
        block_type: Some(name.to_owned()),
        blocks: 62_499,
        bytes: 62_499 * size_bytes,
        pinned_bytes: pinned_mib << 20,
    };
    let glibc = record.study.trials.iter_mut().filter(|t| t.treatment.allocator == "glibc");
    for (trial, more) in glibc.zip(0..) {
        trial.pins = Some(PinSummary {
            pinned_bytes: (200 + more) << 20,
            estimated: false,
            groups: vec![
                share("C++ KeyEntry", 64, 132 + more),
                share("C++ Node|x", 32, 60),
                share("C++ Small", 48, 1),
            ],
        });
    }
    let reported = markdown::render(&[record.clone()]);
    assert!(reported.contains("| glibc, all |  |  | 200 MiB |"), "{reported}");
    let row = "| glibc, 64 B C++ KeyEntry | 62,499 | 3.81 MiB | 132 MiB |";
    assert!(reported.contains(row), "{reported}");
    assert!(!reported.contains("Small") && !reported.contains("jemalloc, all"), "{reported}");
    let page = html::render(&[record.clone()], &[], "subtitle").unwrap();
    assert!(page.contains("What pins free memory") && page.contains("C++ Node|x"));
    let text =
        terminal::render(&[record], &[], Details::Shown, Screen { width: 110, colour: false });
    assert!(text.contains("64 B C++ KeyEntry"), "{text}");
}

#[test]
fn durations_reported_by_the_subject_are_in_the_tables_and_the_page() {
    let mut record = record();
    assert!(!markdown::render(&[record.clone()]).contains("durations"));
    let glibc = record.study.trials.iter_mut().filter(|t| t.treatment.allocator == "glibc");
    for trial in glibc {
        trial.reported_ms.insert("refresh_ms".to_owned(), 1.19);
    }
    let table = markdown::render(&[record.clone()]);
    assert!(table.contains("| treatment | refresh |"), "{table}");
    assert!(table.contains("| glibc | 1.19 ms |"), "{table}");
    assert!(table.contains("| jemalloc | – |"), "{table}");
    let page = html::render(&[record.clone()], &[], "subtitle").unwrap();
    assert!(page.contains("Reported durations"));
    let many = (0..9).map(|n| (format!("step_{n}_ms"), 2.0));
    record.study.trials[0].reported_ms.extend(many);
    let table = markdown::render(&[record]);
    assert!(table.contains("4 more are in the JSON"), "{table}");
}

#[test]
fn a_phase_is_drawn_with_the_duration_reported_by_the_subject() {
    let mut record = record();
    for (_, trial) in &mut record.trials {
        let t_s = trial.samples[trial.samples.len() / 2].t_s;
        let name = Some("refresh".to_owned());
        trial.marks.push(Mark { t_s, mark: Event::Phase, round: None, name });
        // The words of later marks would leave no room for it.
        trial.marks.retain(|mark| mark.round.is_none_or(|round| round == 1));
        let values = [("refresh_ms".to_owned(), 0.541)].into();
        trial.figures.push(SubjectMetrics { t_s: t_s + 0.1, values });
    }
    let views = View::with_those_beside(&[record], &[]);
    let sheet = svg::sheet(&views, "", ALL);
    assert!(sheet.svg.contains("refresh 0.54 ms"), "{}", sheet.svg);
}

#[test]
fn panels_without_other_charts_include_the_compared_records() {
    let views = View::with_those_beside(&[record()], &[record()]);
    let panels = Charts { course: false, bars: false, panels: true };
    let (both, own) = (svg::sheet(&views, "", panels), svg::sheet(&views[..1], "", panels));
    assert!(both.svg.contains("For comparison: "));
    assert!(!own.svg.contains("For comparison: "));
    assert!(both.height > 1.5 * own.height, "{} and {}", both.height, own.height);
    let bars = Charts { course: false, bars: true, panels: false };
    assert!(!svg::sheet(&views, "", bars).svg.contains("For comparison: "));
}

#[test]
fn a_wide_and_a_narrow_terminal() {
    let render =
        |width| terminal::render(&[record()], &[], Details::Shown, Screen { width, colour: false });
    insta::assert_snapshot!(render(110));
    let narrow = render(56);
    assert!(narrow.lines().all(|line| line.chars().count() <= 56), "{narrow}");
    insta::assert_snapshot!(narrow);
}

#[test]
fn at_80_columns_the_answer_is_first_and_the_whole_fits_a_screen() {
    let screen = Screen { width: 80, colour: false };
    let short = terminal::render(&[record()], &[], Details::Hidden, screen);
    assert!(short.lines().count() <= 24, "{} lines: {short}", short.lines().count());
    assert!(short.lines().all(|line| line.chars().count() <= 80), "{short}");
    let whole = terminal::render(&[record()], &[], Details::Shown, screen);
    assert!(whole.starts_with(&short), "the details are last: {whole}");
    insta::assert_snapshot!(short);
}

#[test]
fn the_terminal_report_is_coloured_only_on_request() {
    let render =
        |colour| terminal::render(&[record()], &[], Details::Shown, Screen { width: 100, colour });
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
fn the_png_is_twice_the_size_of_the_picture() {
    let views = View::with_those_beside(&[record()], &[record()]);
    let picture = svg::sheet(&views, "subtitle", ALL);
    let bytes = png::render(&picture).unwrap();
    let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let expected = ((picture.width * 2.0).ceil() as u32, (picture.height * 2.0).ceil() as u32);
    assert_eq!((number(16), number(20)), expected);
}

#[test]
fn text_from_a_record_is_escaped_in_the_page_and_the_chart() {
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
fn a_page_is_self_contained_and_has_every_section() {
    let page = html::render(&[record()], &[], "subtitle").unwrap();
    for outside in ["src=\"http", "href=\"http", "url(http", "@import", "fetch(", "XMLHttpRequest"]
    {
        assert!(!page.contains(outside), "{outside}");
    }
    for reported in [
        "Memory over time",
        "Rounds",
        "Trials",
        "Provenance",
        "How to read the numbers",
        "overcommit",
        "connections",
    ] {
        assert!(page.contains(reported), "{reported}");
    }
}

#[test]
fn the_python_httpx_traces_yield_the_published_values() {
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
fn the_million_streams_logs_are_drawn_like_the_published_charts() {
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
    for reported in ["yellow: RSS, blue: allocated", "green: requests in flight (dotted: tasks)"] {
        assert_eq!(svg.matches(reported).count(), 4, "{reported}");
    }
    let screen = Screen { width: 100, colour: false };
    let text = terminal::render(&[record], &[], Details::Shown, screen);
    assert!(text.contains("requests in flight of glibc, at most 1000000"), "{text}");
}
