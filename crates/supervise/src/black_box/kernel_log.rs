//! The kernel's log, as far as it may be read (CAP_SYSLOG): which process was killed for lack of
//! memory, and which limit was reached.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use lowtide_model::counters::ProcessBytes;
use lowtide_probe::proc::links::is_in_first_pid_namespace;
use lowtide_record::black_box::KernelLine;

use super::groups::is_path_of;
use super::verdict::{LIMIT, NO_LIMIT};

/// Maximum number of records that are read at a time.
const MAX_RECORDS: usize = 4096;
/// Maximum number of kills that are remembered.
const MAX_KILLS: usize = 64;
/// Interval at which the log is read, so that no record is overwritten before.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time after which a record that was overwritten before it was read cannot be one of a process
/// that ends now: from the kill to the end of a process on a busy machine.
const LOST: Duration = Duration::from_secs(10);

/// The kernel's log from now on.
#[derive(Debug)]
pub(super) struct KernelLog {
    file: Option<File>,
    kills: Vec<KernelLine>,
    read: Instant,
    /// When records were overwritten before they were read.
    lost: Option<Instant>,
}

impl KernelLog {
    /// Opens the log at its end. If it may not be read, or if it has the PIDs of another namespace,
    /// it stays empty.
    pub(super) fn open() -> Self {
        // The PIDs in the log are those of the first namespace.
        let file = if is_in_first_pid_namespace() { Self::open_file() } else { None };
        Self { file, kills: Vec::new(), read: Instant::now(), lost: None }
    }

    fn open_file() -> Option<File> {
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let opened = File::options().read(true).custom_flags(nonblocking).open("/dev/kmsg");
        opened.ok().and_then(|mut file| file.seek(SeekFrom::End(0)).ok().map(|_| file))
    }

    /// Returns whether all recent kills are known. The kernel writes the line of a kill before the
    /// process can end (`__oom_kill_process` holds its lock until then).
    pub(super) fn is_complete(&self) -> bool {
        self.file.is_some() && self.lost.is_none_or(|lost| lost.elapsed() > LOST)
    }

    /// Reads what is new, if this was not done for some time.
    pub(super) fn follow(&mut self) {
        if self.read.elapsed() >= INTERVAL {
            self.read();
        }
    }

    /// Returns what the log says of the kill of a process.
    pub(super) fn kill_of(&mut self, pid: u32) -> Option<KernelLine> {
        self.read();
        let place = self.kills.iter().rposition(|kill| kill.victim_pid == pid)?;
        Some(self.kills.swap_remove(place))
    }

    /// Returns the last kills in a group, in their order, at most so many. A kill whose group the
    /// log does not have counts if the process was one of the group.
    pub(super) fn kills_in(
        &mut self,
        path: &str,
        most: u64,
        is_member: impl Fn(u32) -> bool,
    ) -> Vec<KernelLine> {
        self.read();
        let is_one = |kill: &mut KernelLine| match &kill.group {
            Some(group) => is_path_of(group, path),
            None => is_member(kill.victim_pid),
        };
        let mut found: Vec<KernelLine> = self.kills.extract_if(.., is_one).collect();
        let surplus = found.len().saturating_sub(usize::try_from(most).unwrap_or(usize::MAX));
        found.drain(..surplus);
        found
    }

    fn read(&mut self) {
        self.read = Instant::now();
        let Some(file) = &mut self.file else { return };
        let mut record = [0; 8192];
        for _ in 0..MAX_RECORDS {
            match file.read(&mut record) {
                Ok(length) => {
                    let text = String::from_utf8_lossy(&record[..length]);
                    if let Some(kill) = parse(&text) {
                        add(&mut self.kills, kill);
                    }
                }
                // Records were overwritten before they were read: the next read continues.
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                    self.lost = Some(self.read);
                }
                Err(_) => break,
            }
        }
        let surplus = self.kills.len().saturating_sub(MAX_KILLS);
        self.kills.drain(..surplus);
    }
}

/// Adds a line to the kills. A kill has up to two lines: the first names the group, and the second
/// the memory. Of many kills in a short time, some have only the second.
fn add(kills: &mut Vec<KernelLine>, line: KernelLine) {
    let first = kills.iter_mut().rfind(|kill| kill.victim_pid == line.victim_pid);
    match first.filter(|first| first.bytes.rss() == 0 && line.group.is_none()) {
        Some(first) => first.bytes = line.bytes,
        None => kills.push(line),
    }
}

/// Parses a record: `PRIORITY,NUMBER,TIME,-;TEXT`.
fn parse(record: &str) -> Option<KernelLine> {
    let (head, text) = record.split_once(';')?;
    // Records of other facilities come from programs.
    let is_of_kernel = head.split(',').next()?.parse::<u32>().is_ok_and(|priority| priority < 8);
    let text = text.lines().next().filter(|_| is_of_kernel)?;
    text.strip_prefix("oom-kill:").map_or_else(|| parse_memory(text), parse_groups)
}

/// Parses `Memory cgroup out of memory: Killed process 7 (NAME) total-vm:1kB, anon-rss:1kB,
/// file-rss:1kB, shmem-rss:1kB, …` (`__oom_kill_process` in mm/oom_kill.c).
fn parse_memory(text: &str) -> Option<KernelLine> {
    let (why, killed) = text.split_once(": Killed process ")?;
    let is_limit = why == "Memory cgroup out of memory";
    if !is_limit && !why.starts_with("Out of memory") {
        return None;
    }
    let (pid, rest) = killed.split_once(" (")?;
    let (name, rest) = rest.rsplit_once(") total-vm:")?;
    let value = |key: &str| {
        let at = rest.find(key)? + key.len();
        rest[at..].split("kB").next()?.parse::<u64>().ok()?.checked_mul(1024)
    };
    let [anon, file, shared] =
        [" anon-rss:", " file-rss:", " shmem-rss:"].map(|key| value(key).unwrap_or(0));
    Some(KernelLine {
        victim_pid: pid.parse().ok()?,
        constraint: if is_limit { LIMIT } else { NO_LIMIT }.to_owned(),
        name: name.to_owned(),
        bytes: ProcessBytes { anon, file, shared, ..ProcessBytes::default() },
        ..KernelLine::default()
    })
}

/// Parses the rest of `oom-kill:constraint=…,oom_memcg=/a,task_memcg=/a/b,task=NAME,pid=7,uid=0`
/// (dump_oom_summary in mm/oom_kill.c, since 4.19). Names can contain anything, so the PID is the
/// last one.
fn parse_groups(text: &str) -> Option<KernelLine> {
    let (rest, _) = text.rsplit_once(",uid=")?;
    let (rest, pid) = rest.rsplit_once(",pid=")?;
    let (rest, name) = rest.split_once(",task=").unwrap_or((rest, ""));
    let value = |key: &str| {
        let at = rest.find(key)? + key.len();
        rest[at..].split(',').next().map(str::to_owned)
    };
    Some(KernelLine {
        victim_pid: pid.parse().ok()?,
        constraint: value("constraint=")?,
        limit_group: value(",oom_memcg="),
        group: value(",task_memcg="),
        name: name.to_owned(),
        bytes: ProcessBytes::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_victim_and_the_group_are_read_whatever_the_name_of_the_victim_is() {
        let record = "6,725,1,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,\
            mems_allowed=0,oom_memcg=/a,task_memcg=/a/b,task=x,pid=1,uid=0,pid=4711,uid=1000\n SUBSYSTEM=x\n";
        let expected = KernelLine {
            victim_pid: 4711,
            constraint: "CONSTRAINT_MEMCG".to_owned(),
            limit_group: Some("/a".to_owned()),
            group: Some("/a/b".to_owned()),
            name: "x,pid=1,uid=0".to_owned(),
            bytes: ProcessBytes::default(),
        };
        assert_eq!(parse(record), Some(expected));
        // A program has written this to /dev/kmsg.
        assert_eq!(parse(&format!("12{}", &record[1..])), None);
        let wide = "6,1,1,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,\
            global_oom,task_memcg=/a,task=x,pid=9,uid=0";
        assert_eq!(parse(wide).unwrap().limit_group, None);
        assert_eq!(parse("6,1,1,-;Out of memory: Killed process 9"), None);
    }

    /// Returns a log with kills of these processes, each with the lines that it has.
    fn log(kills: &[(u32, bool)]) -> KernelLog {
        let mut log = KernelLog { file: None, kills: Vec::new(), read: Instant::now(), lost: None };
        for (pid, has_groups) in kills {
            let groups = format!(
                "6,1,1,-;oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/a,task_memcg=/a/b,task=x,pid={pid},uid=0"
            );
            let memory = format!(
                "3,1,1,-;Memory cgroup out of memory: Killed process {pid} (x) total-vm:1) total-vm:9kB, \
                 anon-rss:3kB, file-rss:2kB, shmem-rss:1kB, UID:0 pgtables:1kB oom_score_adj:0"
            );
            let lines = [has_groups.then_some(groups), Some(memory)];
            lines.into_iter().flatten().for_each(|line| add(&mut log.kills, parse(&line).unwrap()));
        }
        log
    }

    #[test]
    fn each_kill_counts_once_also_if_the_kernel_leaves_out_its_first_line() {
        let mut log = log(&[(7, true), (8, false), (9, false), (7, true)]);
        assert_eq!(log.kills.len(), 4);
        assert_eq!(log.kills[0].bytes.rss(), 6 << 10);
        assert_eq!((log.kills[1].name.as_str(), &log.kills[1].group), ("x) total-vm:1", &None));
        assert!(log.kills_in("/other", 9, |_| false).is_empty());
        // Process 9 may be of any group.
        let found = log.kills_in("/a/b", 9, |pid| pid == 8);
        assert_eq!(found.iter().map(|kill| kill.victim_pid).collect::<Vec<_>>(), [7, 8, 7]);
        assert_eq!(log.kill_of(7), None);
        assert_eq!(log.kill_of(9).map(|kill| kill.constraint), Some("CONSTRAINT_MEMCG".to_owned()));
    }
}
