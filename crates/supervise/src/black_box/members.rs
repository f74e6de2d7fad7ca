//! The other processes of a memory cgroup: they share its limit, and one of them may be what fills
//! it.

use std::fs;

use lowtide_probe::proc::status::Status;
use lowtide_record::black_box::{Member, MembersLine};

use super::pace::Nearness;

/// Maximum number of processes that are listed.
const LISTED: usize = 8;

/// Returns when the processes of a group are due to be listed after a list at a time, in seconds.
pub(super) fn members_due_s(listed_s: f64, nearness: Nearness) -> f64 {
    /// Interval at rest, near a limit, and at its edge, in seconds.
    const INTERVALS_S: [f64; 3] = [10.0, 0.25, 0.25];
    listed_s + INTERVALS_S[nearness as usize]
}

/// Reads the processes of a list, without one of them.
pub(super) fn members(t_s: f64, pids: &[u32], own: u32) -> MembersLine {
    let mut largest: Vec<Member> =
        pids.iter().filter(|pid| **pid != own).filter_map(|pid| member(*pid)).collect();
    let anon = largest.iter().map(|member| member.bytes.anon).sum();
    let shared = largest.iter().map(|member| member.bytes.shared).max().unwrap_or(0);
    largest.sort_by_key(|member| std::cmp::Reverse(member.bytes.rss()));
    largest.truncate(LISTED);
    MembersLine { t_s, count: pids.len() as u64, largest, anon_and_shared: (anon, shared) }
}

/// Reads a process; `None` if it has ended.
fn member(pid: u32) -> Option<Member> {
    let text = fs::read(format!("/proc/{pid}/status")).ok()?;
    let text = String::from_utf8_lossy(&text);
    let name = text.lines().next()?.strip_prefix("Name:")?.trim().to_owned();
    let bytes = Status::parse(&text).ok()?.memory();
    Some(Member { pid, name, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_comes_near_shortens_the_time_to_the_next_list() {
        assert_eq!(members_due_s(5.0, Nearness::Rest), 15.0);
        assert_eq!(members_due_s(5.0, Nearness::Near), 5.25);
        assert_eq!(members_due_s(f64::NEG_INFINITY, Nearness::Rest), f64::NEG_INFINITY);
    }

    #[test]
    fn the_other_processes_are_listed_by_size() {
        let own = std::process::id();
        let found = members(1.0, &[own, u32::MAX, 1], u32::MAX);
        assert_eq!(found.count, 3);
        assert!(found.largest.iter().any(|member| member.pid == own && member.bytes.rss() > 0));
        assert!(members(1.0, &[own], own).largest.is_empty());
    }
}
