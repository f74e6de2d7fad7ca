//! Views of fabricated inspections, on a terminal of usual size, a large one and a tiny one.

use std::path::Path;
use std::time::Duration;

use lowtide_model::act::{self, Act, ActEvent};
use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::bytes::Resident;
use lowtide_model::inspection::{
    Allocator, Arena, ArenaDetail, GlibcArena, HeapPrediction, Linkage, Observation,
};
use lowtide_model::ledger::{Ledger, Owner, Row};
use lowtide_model::pins::Pins;
use lowtide_model::release::ReleaseOutcome;
use lowtide_model::sample::{Reading, Sample};
use lowtide_model::verdict::VerdictKind;
use lowtide_probe::sampler::Tick;
use lowtide_probe::target::TargetError;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::keys::Key;
use super::state::{KeyRequest, Panel, State};
use super::{arenas, sign, view};
use crate::watcher::WatchEvent;

const MIB: u64 = 1 << 20;

/// Returns an inspection of a given duration, of a process with memory in use and free memory.
pub(crate) fn found(elapsed_s: f64, used_mib: u64, free_mib: u64) -> Observation {
    let mut ledger = Ledger::default();
    ledger.add(Owner::Allocated, used_mib * MIB);
    ledger.add(Owner::Reclaimable, free_mib * MIB);
    ledger.add(Owner::Fragmented, 12 * MIB);
    ledger.add_estimate(Owner::Runtime, 30 * MIB);
    for owner in [Owner::Cached, Owner::Metadata, Owner::Stacks, Owner::ProgramData, Owner::File] {
        ledger.add(owner, 2 * MIB);
    }
    let arena = |id| Arena {
        id,
        heaps: 1,
        system_bytes: 64 * MIB,
        allocated_bytes: id * MIB,
        free_count: 1000,
        free_bytes: 20 * MIB,
        reclaimable_bytes: 10 * MIB,
        free_resident_bytes: 12 * MIB,
        largest_free_bytes: 5 * MIB,
        whole: id != 3,
        bins: Vec::new(),
        detail: ArenaDetail::Glibc(GlibcArena { top_bytes: MIB, ..GlibcArena::default() }),
    };
    let release_bytes = ledger.bytes(Owner::Reclaimable);
    Observation {
        pid: 4711,
        start_ticks: 1,
        command: vec!["server".to_owned(), "--port\x1b[31m".to_owned(), "8080".to_owned()],
        elapsed_s,
        cpu_s: elapsed_s,
        allocator: Some(Allocator {
            kind: AllocatorKind::Glibc,
            version: Some("2.36".to_owned()),
            linkage: Some(Linkage::Dynamic),
        }),
        rss_bytes: ledger.total(),
        kernel_rss_bytes: Some(ledger.total()),
        ledger,
        threads: 4,
        open_files: Some(12),
        sockets_established: Some(1),
        arenas: (0..40).map(arena).collect(),
        heap: Some(HeapPrediction {
            trim_bytes: Some(release_bytes),
            release_bytes: Some(release_bytes),
            purge_bytes: None,
        }),
        image: (1, 1),
        ..Observation::default()
    }
}

/// Returns an act on the process of [`found`].
pub(crate) fn act(event: ActEvent, reason: &str) -> Act {
    Act {
        schema: act::SCHEMA.to_owned(),
        event,
        id: 1,
        time: "2026-11-22T10:15:00.000Z".to_owned(),
        pid: 4711,
        command: "server".to_owned(),
        policy: "adaptive".to_owned(),
        reason: reason.to_owned(),
        dry_run: false,
        outcome: None,
        hazard: None,
        message: String::new(),
        period_ms: None,
        elapsed_ms: 12.0,
        rss_before: 432 * MIB,
        rss_after: 432 * MIB,
        rss_diff: 0,
        predicted_bytes: 0,
        returned_bytes: 0,
        longest_pause_s: 0.0,
        pauses_over_bound: 0,
        waited_over_bound_s: 0.0,
        cpu_s: 0.0,
        refaulted_bytes: None,
        refaulted_after_s: None,
    }
}

/// Returns a release of `mib` MiB.
fn release(mib: u64, reason: &str) -> Act {
    Act {
        outcome: Some(ReleaseOutcome::Released),
        rss_after: (432 - mib) * MIB,
        returned_bytes: mib * MIB,
        longest_pause_s: 0.000_87,
        cpu_s: 0.011,
        ..act(ActEvent::Act, reason)
    }
}

fn see_act(state: &mut State, t_s: f64, act: Act) {
    state.see(WatchEvent::Acted(t_s, Box::new(act)));
}

fn see(state: &mut State, t_s: f64, found: Observation) {
    let total = Reading { rss_bytes: Resident(found.rss_bytes), ..Reading::default() };
    let sample = Sample { t_s, processes: 1, total, ..Sample::default() };
    state.see(WatchEvent::Sample(Box::new(Tick { sample, ..Tick::default() })));
    state.see(WatchEvent::Observed(t_s, Box::new(found)));
}

#[test]
fn an_outdated_inspection_shows_its_age() {
    let mut state = State::new(4711, Duration::from_secs(1));
    see(&mut state, 0.0, found(0.02, 100, 5));
    let sample = |t_s| {
        WatchEvent::Sample(Box::new(Tick {
            sample: Sample { t_s, processes: 1, ..Sample::default() },
            ..Tick::default()
        }))
    };
    state.see(sample(1.0));
    assert_eq!(state.history().age_s(state.interval), None);
    state.see(sample(7.0));
    assert_eq!(state.history().age_s(state.interval), Some(7.0));
    assert!(shown(&state, 100, 30).contains("owners: 7 s ago"));
}

/// Returns a minute of history. In the middle of it, memory in use is freed.
fn minute() -> State {
    minute_of(State::new(4711, Duration::from_secs(1)))
}

fn minute_of(mut state: State) -> State {
    for second in 0..=60 {
        let (used, free) = if second < 30 { (400, 5) } else { (100, 280) };
        see(&mut state, f64::from(second), found(0.02, used, free));
    }
    state
}

/// Returns a minute of history with a log that is followed.
fn minute_with_log() -> State {
    let state = State::new(4711, Duration::from_secs(1));
    minute_of(state.with_log(Path::new("/var/log/acts.jsonl")))
}

/// Returns a minute of history with releases: one before it, two within it.
fn minute_with_releases() -> State {
    let mut state = minute_with_log();
    see_act(&mut state, -3600.0, release(300, "the load has fallen"));
    let back = Act { refaulted_bytes: Some(12 * MIB), ..act(ActEvent::Returned, "") };
    see_act(&mut state, -3540.0, back);
    see_act(&mut state, 15.0, release(20, "the load has fallen"));
    see_act(&mut state, 45.5, release(100, "the load has fallen"));
    state
}

fn text(state: &State, width: u16, height: u16, colour: bool) -> Vec<String> {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    view::draw(state, colour, area, &mut buffer);
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| line(y).trim_end().to_owned()).collect()
}

fn shown(state: &State, width: u16, height: u16) -> String {
    text(state, width, height, false).join("\n")
}

#[test]
fn an_80x24_terminal_shows_the_whole_overview() {
    insta::assert_snapshot!(shown(&minute(), 80, 24));
}

#[test]
fn a_120x40_terminal_shows_more_details() {
    insta::assert_snapshot!(shown(&minute(), 120, 40));
}

#[test]
fn a_tiny_terminal_shows_the_largest_owner_and_the_verdict() {
    insta::assert_snapshot!(shown(&minute(), 30, 8));
}

#[test]
fn any_terminal_size_can_be_drawn() {
    let mut state = minute_with_releases();
    for panel in [Panel::Overview, Panel::Arenas, Panel::Help] {
        state.panel = panel;
        for (width, height) in (0..60).flat_map(|w| (0..30).map(move |h| (w, h))) {
            for colour in [false, true] {
                text(&state, width, height, colour);
            }
        }
    }
}

#[test]
fn before_the_first_inspection_the_view_says_what_it_waits_for() {
    let mut state = State::new(4711, Duration::from_secs(1));
    let before = text(&state, 80, 24, true);
    assert_eq!((before[0].as_str(), before[1].as_str()), ("PID 4711", "inspecting …"));
    state.see(WatchEvent::Failed(TargetError::Replaced(4711)));
    assert!(text(&state, 80, 24, true)[1].contains("executed another program"));
}

#[test]
fn escape_characters_in_a_command_are_not_drawn() {
    assert_eq!(text(&minute(), 80, 24, true)[0], "server --port [31m 8080  PID 4711");
}

#[test]
fn scrolling_the_arenas_stops_at_both_ends() {
    let mut state = minute();
    state.page = arenas::fitting_on(24);
    assert_eq!(state.press(Key::Arenas), None);
    insta::assert_snapshot!(shown(&state, 80, 24));
    state.press(Key::Scroll(-1));
    assert_eq!(state.scroll, 0);
    state.press(Key::Bottom);
    assert!(shown(&state, 80, 24).contains("25 to 40 of 40"));
    state.press(Key::Scroll(1));
    assert!(shown(&state, 80, 24).contains("25 to 40 of 40"));
    state.press(Key::Scroll(-1));
    assert!(shown(&state, 80, 24).contains("24 to 39 of 40"));
    state.press(Key::Page(-1));
    assert!(shown(&state, 80, 24).contains(" 8 to 23 of 40"));
}

#[test]
fn changes_are_relative_to_the_first_inspection() {
    let state = minute();
    assert_eq!(state.history().change_of(&Row::new(Owner::Allocated, 0)), Some(-300 * MIB as i64));
    assert_eq!(state.history().change_of(&Row::new(Owner::Reclaimable, 0)), Some(275 * MIB as i64));
    assert_eq!(sign::signed(-1536), "-1.50 KiB");
    assert_eq!(
        (sign::signed(0), sign::signed(12 << 20)),
        ("±0".to_owned(), "+12.0 MiB".to_owned())
    );
    let mut one = State::new(1, Duration::from_secs(1));
    see(&mut one, 0.0, found(0.0, 1, 1));
    assert_eq!(one.history().change_of(&Row::new(Owner::Allocated, 0)), None);
}

#[test]
fn growth_across_inspections_gives_the_verdict_growing() {
    let mut state = State::new(4711, Duration::from_secs(1));
    for second in 0..20 {
        see(&mut state, second as f64, found(0.0, 100 + 3 * second, 5));
    }
    let verdict = &state.latest().unwrap().verdict;
    assert_eq!(verdict.kind, VerdictKind::Growing);
    assert!(
        shown(&state, 120, 40).contains("growing: RSS grew by 57.0 MiB"),
        "{}",
        shown(&state, 120, 40)
    );
}

#[test]
fn a_paused_view_does_not_change_and_catches_up_when_resumed() {
    let mut state = minute();
    let before = shown(&state, 80, 24);
    assert!(!before.contains("paused"));
    state.press(Key::Pause);
    see(&mut state, 61.0, found(0.02, 999, 0));
    let paused = shown(&state, 80, 24);
    assert!(paused.contains(" paused ") && paused.starts_with(&before[..before.len() / 2]));
    state.press(Key::Pause);
    assert!(shown(&state, 80, 24).contains("999 MiB"));
}

#[test]
fn slow_inspections_run_less_often_and_the_footer_says_so() {
    let mut state = State::new(4711, Duration::from_secs(1));
    see(&mut state, 0.0, found(1.2, 100, 5));
    let last = |width| text(&state, width, 24, false).pop().unwrap();
    assert!(last(80).ends_with("inspection: 1.20 s, every 12.0 s"), "{}", last(80));
    assert!(
        last(120)
            .ends_with("samples every 1.00 s; an inspection takes 1.20 s, so one every 12.0 s")
    );
}

#[test]
fn keys_change_the_interval_within_its_bounds() {
    let mut state = State::new(1, Duration::from_millis(700));
    let wish = |ms| Some(KeyRequest::Interval(Duration::from_millis(ms)));
    assert_eq!(state.press(Key::Longer), wish(1000));
    assert_eq!(state.press(Key::Shorter), wish(500));
    for _ in 0..20 {
        state.press(Key::Shorter);
    }
    assert_eq!((state.interval, state.press(Key::Shorter)), (Duration::from_millis(100), None));
    for _ in 0..20 {
        state.press(Key::Longer);
    }
    assert_eq!(state.interval, Duration::from_secs(60));
}

#[test]
fn escape_leaves_a_panel_first_and_then_the_view() {
    let mut state = minute();
    state.press(Key::Help);
    assert!(shown(&state, 80, 24).contains("longer or shorter interval"));
    assert_eq!((state.press(Key::Back), state.panel), (None, Panel::Overview));
    assert_eq!(state.press(Key::Back), Some(KeyRequest::Quit));
    assert_eq!(state.press(Key::Quit), Some(KeyRequest::Quit));
}

#[test]
fn keys_mean_what_the_help_says() {
    let plain = |code| Key::from_event(KeyEvent::new(code, KeyModifiers::NONE));
    let control = |c| Key::from_event(KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL));
    assert_eq!(control('c'), Some(Key::Quit));
    assert_eq!(control('q'), None);
    for (code, meant) in [
        (KeyCode::Char('q'), Key::Quit),
        (KeyCode::Esc, Key::Back),
        (KeyCode::Char('p'), Key::Pause),
        (KeyCode::Char(' '), Key::Pause),
        (KeyCode::Char('a'), Key::Arenas),
        (KeyCode::Char('?'), Key::Help),
        (KeyCode::Char('+'), Key::Longer),
        (KeyCode::Char('-'), Key::Shorter),
        (KeyCode::Down, Key::Scroll(1)),
        (KeyCode::Char('k'), Key::Scroll(-1)),
    ] {
        assert_eq!(plain(code), Some(meant), "{code:?}");
    }
    assert_eq!(plain(KeyCode::Char('x')), None);
}

#[test]
fn a_log_with_no_act_on_the_process_is_reported() {
    insta::assert_snapshot!(shown(&minute_with_log(), 80, 24));
}

#[test]
fn releases_are_marked_on_the_chart_and_summed_up() {
    insta::assert_snapshot!(shown(&minute_with_releases(), 80, 24));
}

#[test]
fn a_large_terminal_shows_the_policy_at_work() {
    insta::assert_snapshot!(shown(&minute_with_releases(), 120, 40));
}

#[test]
fn a_release_that_the_budget_holds_back_is_shown_until_the_next_release() {
    let mut state = minute_with_releases();
    let message = "The budget of CPU time is used up: the release waits".to_owned();
    let held = Act { message, ..act(ActEvent::HeldBack, "memory is short") };
    see_act(&mut state, 55.0, held);
    insta::assert_snapshot!(shown(&state, 80, 24));
    see_act(&mut state, 59.0, release(10, "memory is short"));
    let after = shown(&state, 80, 24);
    assert!(!after.contains("held back") && after.contains("4 releases, 430 MiB"), "{after}");
}

#[test]
fn a_process_that_is_left_alone_is_shown_with_the_reason() {
    let mut state = minute_with_log();
    let message = "The process is left alone for 1 h 00 min".to_owned();
    let reason = "a seccomp filter of the process does not permit mmap";
    see_act(&mut state, 2.0, Act { message, ..act(ActEvent::LeftAlone, reason) });
    insta::assert_snapshot!(shown(&state, 80, 24));
}

#[test]
fn a_narrow_terminal_shows_the_policy_first_and_its_last_act_if_there_is_room() {
    insta::assert_snapshot!(
        "the_policy_on_a_narrow_terminal",
        shown(&minute_with_releases(), 44, 24)
    );
    insta::assert_snapshot!("the_policy_on_a_tiny_terminal", shown(&minute_with_releases(), 44, 9));
}

#[test]
fn a_dry_run_is_labelled_and_leaves_no_mark_on_the_chart() {
    let mut state = minute_with_log();
    let message = "280 MiB would be released".to_owned();
    see_act(&mut state, 40.0, Act { dry_run: true, message, ..release(0, "the load has fallen") });
    let view = shown(&state, 80, 24);
    assert!(view.contains("policy adaptive, dry run: 1 try, none released anything"), "{view}");
    assert!(view.contains("20 s ago: 280 MiB would be released (the load has fallen)"), "{view}");
    assert!(!view.contains('▼'), "{view}");
}

#[test]
fn a_policy_without_a_log_is_not_shown() {
    let mut state = minute();
    see_act(&mut state, 40.0, release(100, "the load has fallen"));
    assert_eq!(shown(&state, 80, 24), shown(&minute(), 80, 24));
}

#[test]
fn the_key_of_pins_shows_what_pins_memory_as_it_was_when_it_was_pressed() {
    let mut state = minute();
    assert_eq!(state.press(Key::Pins), Some(KeyRequest::Pins));
    assert!(shown(&state, 80, 24).contains("reading the blocks of the heap"));
    let pins = |mib| Pins { pinned_bytes: mib * MIB, blocks: 1200, ..Pins::default() };
    state.see_pins(Ok(pins(90)));
    let view = shown(&state, 80, 24);
    assert!(view.contains("90.0 MiB of free memory is pinned by 1,200 blocks in use"), "{view}");
    assert_eq!(state.press(Key::Pins), None, "it closes the panel");
    assert_eq!(state.press(Key::Pins), Some(KeyRequest::Pins));
    state.see_pins(Err(TargetError::Gone(4711)));
    let view = shown(&state, 80, 24);
    assert!(view.contains("90.0 MiB"), "what is known stays: {view}");
}
