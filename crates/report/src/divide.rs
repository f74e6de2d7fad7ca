//! Commands that divide memory which lowtide does not follow.

use lowtide_model::growth::{Growth, GrowthPart};
use lowtide_model::runtime_kind::RuntimeKind;

/// Returns a command that divides most of the growth of a process, if that is memory which lowtide
/// does not follow.
pub fn divide_growth(growth: &Growth, pid: u32) -> Option<String> {
    let part = growth.by.iter().find(|part| !part.is_followed())?;
    let is_most = part.bytes > 0 && growth.followed_share < 0.5;
    is_most.then(|| divide(part, pid))
}

/// Returns a command that divides memory which lowtide does not follow.
fn divide(part: &GrowthPart, pid: u32) -> String {
    let runtime = part.name.as_deref().and_then(RuntimeKind::parse);
    match (part.owner.as_str(), runtime) {
        ("runtime" | "allocated", Some(RuntimeKind::HotSpot)) => {
            format!("jcmd {pid} GC.class_histogram")
        }
        ("runtime", Some(RuntimeKind::Node)) => {
            format!("node inspect -p {pid}, then takeHeapSnapshot('{pid}.heapsnapshot')")
        }
        ("runtime", Some(RuntimeKind::V8)) => {
            "take a heap snapshot with the inspector of this V8".to_owned()
        }
        ("runtime", Some(RuntimeKind::Go)) => {
            "go tool pprof -top http://HOST:PORT/debug/pprof/heap (if it serves net/http/pprof)"
                .to_owned()
        }
        ("runtime", Some(RuntimeKind::Ruby)) => {
            "ObjectSpace.dump_all(output: File.open('heap.json', 'w')) in the program".to_owned()
        }
        ("runtime", Some(RuntimeKind::Php)) => {
            "call memory_get_usage() between the steps of the script, to see which step allocates"
                .to_owned()
        }
        ("runtime", Some(RuntimeKind::Erlang)) => {
            "erlang:memory() and recon_alloc:memory(allocated_types) in the node".to_owned()
        }
        ("stacks", _) => format!(
            "ps -T -p {pid}, for the names of its threads; threads that end need pthread_join or pthread_detach"
        ),
        ("shared", _) => {
            format!("ls -l /proc/{pid}/fd, for the files of shared memory that it has open")
        }
        ("file", _) => format!(
            "grep ^Pss_ /proc/{pid}/smaps_rollup (clean pages of files cause no OOM kill: the kernel drops them)"
        ),
        ("anonymous_other", _) => format!(
            "perf record -e syscalls:sys_enter_mmap -g -p {pid} -- sleep 60, then perf report, for the code that maps it"
        ),
        _ => format!("lowtide inspect {pid}, for the memory by owner"),
    }
}

#[cfg(test)]
mod tests {
    use lowtide_model::growth::GrowthCourse;

    use super::*;

    #[test]
    fn memory_that_is_not_followed_is_handed_over_to_a_tool_that_divides_it() {
        let part = |owner: &str, name: Option<&str>| GrowthPart {
            owner: owner.to_owned(),
            name: name.map(str::to_owned),
            count: None,
            more: None,
            bytes: 1 << 20,
            bytes_per_hour: 1 << 30,
        };
        let growth = |followed_share, found: GrowthPart| Growth {
            rss_bytes: [0, 2 << 20],
            elapsed_s: 60.0,
            course: GrowthCourse::Steady,
            rss_bytes_per_hour: 2 << 30,
            followed_share,
            limit_bytes: None,
            seconds_to_limit: None,
            by: vec![part("allocated", None), found],
        };
        for (found, tool) in [
            (part("allocated", Some("HotSpot")), "jcmd 7 GC.class_histogram"),
            (part("runtime", Some("Node.js")), "node inspect -p 7"),
            (part("stacks", None), "ps -T -p 7"),
            (part("anonymous_other", None), "perf record -e syscalls:sys_enter_mmap -g -p 7"),
        ] {
            let said = divide_growth(&growth(0.4, found.clone()), 7).unwrap();
            assert!(said.starts_with(tool), "{said}");
            assert_eq!(divide_growth(&growth(0.6, found), 7), None);
        }
    }
}
