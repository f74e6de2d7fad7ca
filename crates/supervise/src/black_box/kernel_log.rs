//! The kernel's log, as far as it may be read (CAP_SYSLOG): which process was killed for lack of
//! memory, and which limit was reached.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

use lowtide_record::black_box::KernelLine;

/// Maximum number of records that are read at a time.
const MAX_RECORDS: usize = 4096;
/// Maximum number of kills that are remembered.
const MAX_KILLS: usize = 64;

/// The kernel's log from now on.
#[derive(Debug)]
pub(super) struct KernelLog {
    file: Option<File>,
    kills: Vec<KernelLine>,
}

impl KernelLog {
    /// Opens the log at its end. If it may not be read, it stays empty.
    pub(super) fn open() -> Self {
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let opened = File::options().read(true).custom_flags(nonblocking).open("/dev/kmsg");
        let file = opened.ok().and_then(|mut file| file.seek(SeekFrom::End(0)).ok().map(|_| file));
        Self { file, kills: Vec::new() }
    }

    /// Returns whether it may be read.
    pub(super) fn is_readable(&self) -> bool {
        self.file.is_some()
    }

    /// Returns what the log says of the kill of a process.
    pub(super) fn kill_of(&mut self, pid: u32) -> Option<KernelLine> {
        self.read();
        let place = self.kills.iter().rposition(|kill| kill.victim_pid == pid)?;
        Some(self.kills.swap_remove(place))
    }

    /// Returns the last kill of one of these processes.
    pub(super) fn kill_in(&mut self, is_one: impl Fn(u32) -> bool) -> Option<KernelLine> {
        self.read();
        let place = self.kills.iter().rposition(|kill| is_one(kill.victim_pid))?;
        Some(self.kills.swap_remove(place))
    }

    fn read(&mut self) {
        let Some(file) = &mut self.file else { return };
        let mut record = [0; 8192];
        for _ in 0..MAX_RECORDS {
            match file.read(&mut record) {
                Ok(length) => {
                    let text = String::from_utf8_lossy(&record[..length]);
                    self.kills.extend(parse(&text));
                }
                // Records were overwritten before they were read: the next read continues.
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
                Err(_) => break,
            }
        }
        let surplus = self.kills.len().saturating_sub(MAX_KILLS);
        self.kills.drain(..surplus);
    }
}

/// Parses a record: `PRIORITY,NUMBER,TIME,-;oom-kill:constraint=…,oom_memcg=/a,task_memcg=/a/b,
/// task=NAME,pid=7,uid=0` (dump_oom_summary in mm/oom_kill.c, since 4.19). Names can contain
/// anything, so the PID is the last one.
fn parse(record: &str) -> Option<KernelLine> {
    let (head, text) = record.split_once(';')?;
    // Records of other facilities come from programs.
    let is_of_kernel = head.split(',').next()?.parse::<u32>().is_ok_and(|priority| priority < 8);
    let text = text.lines().next()?.strip_prefix("oom-kill:").filter(|_| is_of_kernel)?;
    let (rest, _) = text.rsplit_once(",uid=")?;
    let (rest, pid) = rest.rsplit_once(",pid=")?;
    let (rest, _) = rest.split_once(",task=").unwrap_or((rest, ""));
    let value = |key: &str| {
        let at = rest.find(key)? + key.len();
        rest[at..].split(',').next().map(str::to_owned)
    };
    Some(KernelLine {
        victim_pid: pid.parse().ok()?,
        constraint: value("constraint=")?,
        limit_group: value(",oom_memcg="),
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
        };
        assert_eq!(parse(record), Some(expected));
        // A program has written this to /dev/kmsg.
        assert_eq!(parse(&format!("12{}", &record[1..])), None);
        let wide = "6,1,1,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,\
            global_oom,task_memcg=/a,task=x,pid=9,uid=0";
        assert_eq!(parse(wide).unwrap().limit_group, None);
        assert_eq!(parse("6,1,1,-;Out of memory: Killed process 9"), None);
    }
}
