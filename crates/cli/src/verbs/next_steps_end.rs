//! The graph of the steps that verbs recommend, over their verdicts and what they had for them:
//! each step leads on, so no path returns.
//!
//! The order is: `inspect`, `inspect --watch`, a dry run of `release`, `release`, that of all
//! processes that share pages, searches for leaks, the shortest first, and what ends a path:
//! `attach`, `study`, another tool, code to change.

use lowtide_model::growth::{Growth, GrowthCourse};
use lowtide_model::leaks::LeakKind;
use lowtide_model::release::{Hazard, Release, ReleaseOutcome};
use lowtide_model::remedy::RemedyKind;
use lowtide_model::verdict::VerdictKind;
use lowtide_release::Hold;
use lowtide_report::leaks::LeakState;

use super::next_step::tests::{found, server};
use super::{next_step, release};
use crate::failure::rerun::Rerun;

/// Places in the order.
const INSPECT: u32 = 0;
const WATCH: u32 = 1;
const DRY_RUN: u32 = 2;
const RELEASE: u32 = 3;
const RELEASE_OF_FAMILY: u32 = 4;
const END: u32 = u32::MAX;

/// Returns the place of a search for leaks.
fn leaks(minutes: u32) -> u32 {
    RELEASE_OF_FAMILY + minutes
}

/// Returns the place of a step in the order.
fn place(step: &str) -> u32 {
    let words: Vec<&str> = step.split([' ', '\n', ',']).collect();
    match words[..] {
        ["lowtide", "inspect", "--watch", ..] => WATCH,
        ["lowtide", "inspect", ..] => INSPECT,
        ["lowtide", "release", ..] if words.contains(&"--dry-run") => DRY_RUN,
        ["lowtide", "release", ..] if words.contains(&"--subprocesses") => RELEASE_OF_FAMILY,
        ["lowtide", "release", ..] => RELEASE,
        ["lowtide", "leaks", ..] => {
            let at = words.iter().position(|word| *word == "--duration").expect("a duration");
            let (number, unit) = words[at + 1].split_at(words[at + 1].len() - 1);
            leaks(number.parse::<u32>().unwrap() * if unit == "h" { 60 } else { 1 })
        }
        _ => END,
    }
}

#[track_caller]
fn leads_on(from: u32, step: &str) {
    assert!(from < place(step), "from {from}: {step}");
}

#[test]
fn the_step_after_an_inspection_leads_on() {
    let growth = |course| Growth {
        rss_bytes: [1 << 30, 2 << 30],
        elapsed_s: 60.0,
        course,
        rss_bytes_per_hour: 1,
        followed_share: 0.0,
        limit_bytes: None,
        seconds_to_limit: None,
        by: vec![],
        dirty_files_bytes: None,
        page_tables_bytes: None,
        hugetlb_bytes: None,
        open_files: None,
        counts: Vec::new(),
        open_memory: None,
        descendants: None,
        locked_files_bytes: None,
        has_steady_unbounded: false,
        process_limit: None,
    };
    let courses = [GrowthCourse::Level, GrowthCourse::Steady, GrowthCourse::Unknown];
    for verdict in VerdictKind::ALL {
        for remedies in [&[][..], &[(RemedyKind::Release, None)]] {
            let mut inspection = found(verdict, remedies);
            leads_on(INSPECT, &next_step::next(&inspection, &server()));
            for course in courses {
                inspection.growth = Some(growth(course));
                leads_on(WATCH, &next_step::next(&inspection, &server()));
            }
        }
    }
}

#[test]
fn the_step_after_a_release_leads_on() {
    let mut done = Release::of(7, 0, vec![]);
    let again = Rerun::typed();
    done.outcome = ReleaseOutcome::Released;
    assert_eq!(release::next(&done, &again, 7), None);
    done.returned_bytes = 1 << 20;
    leads_on(RELEASE, &release::next(&done, &again, 7).unwrap());
    done.shared_bytes = Some(1 << 20);
    leads_on(RELEASE, &release::next(&done, &again, 7).unwrap());
    done.outcome = ReleaseOutcome::NothingToRelease;
    assert_eq!(release::next(&done, &again, 7), None);
    done.outcome = ReleaseOutcome::Refused;
    let hold = Hold::new("/run/lowtide.hold");
    for hazard in [None, Some(Hazard::Locked), Some(Hazard::NoHeap), Some(Hazard::Seccomp)] {
        done.hazard = hazard;
        let failure = release::refused(&done, &again, &hold).to_string();
        leads_on(RELEASE, failure.split("next: ").nth(1).unwrap());
    }
}

#[test]
fn the_step_after_a_search_for_leaks_is_a_longer_one_or_an_end() {
    use LeakKind::*;
    for kind in [Lost, Growing, Backlog, Filling, Elsewhere, LostBefore, Level, TooEarly] {
        for minutes in [1, 5, 10, 30, 60, 120, 600] {
            for (is_sampled, has_stacks) in [(false, false), (true, false), (true, true)] {
                let elapsed_s = f64::from(minutes) * 60.0;
                let state = LeakState { kind, elapsed_s, is_sampled, has_stacks };
                leads_on(leaks(minutes), &state.next(7, None));
            }
        }
    }
}
