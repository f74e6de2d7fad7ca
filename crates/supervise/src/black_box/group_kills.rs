//! OOM kills in a memory cgroup that no recorded process accounts for.

use lowtide_record::black_box::{KernelLine, Member};

use super::{Notice, NoticeReceiver};

/// Kills in one group.
#[derive(Debug)]
pub(super) struct GroupKills {
    /// The path of the group.
    pub(super) path: String,
    /// Number of kills.
    pub(super) count: u64,
    /// Those of them that the kernel log names, in order.
    pub(super) victims: Vec<KernelLine>,
}

impl GroupKills {
    /// Returns the last process that was killed; one without a PID if it is not known.
    pub(super) fn victim(&self) -> Member {
        let member = |kill: &KernelLine| Member {
            pid: kill.victim_pid,
            name: kill.name.clone(),
            bytes: kill.bytes,
        };
        self.victims.last().map(member).unwrap_or_default()
    }

    /// Returns what is to be said beside this process.
    pub(super) fn notes(&self) -> Vec<String> {
        /// Maximum number of victims that are named.
        const NAMED: usize = 8;
        let mut notes = vec!["this process was not killed, and runs on".to_owned()];
        if self.count > 1 {
            let named: Vec<String> = self.victims.iter().rev().take(NAMED).map(name).collect();
            let named = if named.is_empty() {
                "which is not known".to_owned()
            } else {
                format!("among them {}", named.join(", "))
            };
            notes.push(format!(
                "the kernel has killed {} processes of its cgroup in the last seconds, {named}",
                self.count
            ));
        }
        notes
    }

    /// Reports the kills. `pid` and `file` are those of the record that shows the group.
    pub(super) fn report(&self, report: &NoticeReceiver, pid: u32, file: &str) {
        let victims: Vec<(u32, &str)> =
            self.victims.iter().map(|kill| (kill.victim_pid, kill.name.as_str())).collect();
        report(Notice::GroupOomKill {
            cgroup: &self.path,
            count: self.count,
            victims: &victims,
            pid,
            file,
        });
    }
}

fn name(kill: &KernelLine) -> String {
    format!("{} (PID {})", kill.name, kill.victim_pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_victim_is_named_only_if_the_kernel_names_it() {
        let kill = |victim_pid, name: &str| KernelLine {
            victim_pid,
            name: name.to_owned(),
            ..KernelLine::default()
        };
        let kills = |count, victims| GroupKills { path: "/a".to_owned(), count, victims };
        let unknown = kills(2, Vec::new());
        assert_eq!(unknown.victim(), Member::default());
        assert!(unknown.notes()[1].ends_with("which is not known"), "{:?}", unknown.notes());
        let known = kills(2, vec![kill(7, "x"), kill(8, "y")]);
        assert_eq!((known.victim().pid, known.victim().name.as_str()), (8, "y"));
        assert!(known.notes()[1].ends_with("y (PID 8), x (PID 7)"), "{:?}", known.notes());
        assert_eq!(kills(1, Vec::new()).notes().len(), 1);
    }
}
