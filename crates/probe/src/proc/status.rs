//! `/proc/PID/status`.

use super::ParseError;

/// What is used of `/proc/PID/status`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Status {
    /// The real user.
    pub uid: u32,
    /// Anonymous resident bytes.
    pub anon_bytes: u64,
    /// Resident bytes of files.
    pub file_bytes: u64,
    /// Resident bytes of shared memory.
    pub shared_bytes: u64,
    /// Anonymous bytes in swap.
    pub swap_bytes: u64,
    /// What the kernel uses for its page tables, in bytes.
    pub page_tables_bytes: u64,
}

impl Status {
    /// Reads the text. A process without memory of its own (a zombie, a kernel thread) has no memory
    /// lines: their counts are zero.
    ///
    /// # Errors
    /// When a line that is there has no number.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut status = Self::default();
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else {
                continue;
            };
            let target = match key {
                "RssAnon" => &mut status.anon_bytes,
                "RssFile" => &mut status.file_bytes,
                "RssShmem" => &mut status.shared_bytes,
                "VmSwap" => &mut status.swap_bytes,
                "VmPTE" => &mut status.page_tables_bytes,
                "Uid" => {
                    status.uid = number(key, value)? as u32;
                    continue;
                }
                _ => continue,
            };
            *target = number(key, value)? * 1024;
        }
        Ok(status)
    }

    /// All resident bytes.
    pub fn rss_bytes(&self) -> u64 {
        self.anon_bytes + self.file_bytes + self.shared_bytes
    }
}

fn number(key: &str, value: &str) -> Result<u64, ParseError> {
    value
        .split_ascii_whitespace()
        .next()
        .and_then(|v| v.parse().ok())
        .filter(|n| *n < u64::MAX >> 10)
        .ok_or_else(|| ParseError { file: "status", what: format!("{key} has no number") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_rss_are_read_in_bytes() {
        let text = "Name:\tx\nUid:\t1000\t1001\t1001\t1001\nVmRSS:\t  30 kB\nRssAnon:\t  10 kB\n\
            RssFile:\t  18 kB\nRssShmem:\t   2 kB\nVmSwap:\t   7 kB\nThreads:\t1\n";
        let status = Status::parse(text).unwrap();
        assert_eq!(status.rss_bytes(), 30 << 10);
        assert_eq!((status.uid, status.swap_bytes), (1000, 7 << 10));
    }

    #[test]
    fn a_process_without_memory_has_none() {
        assert_eq!(Status::parse("Name:\tkthreadd\nThreads:\t1\n").unwrap().rss_bytes(), 0);
    }

    #[test]
    fn a_line_without_a_number_is_an_error() {
        assert!(Status::parse("RssAnon:\n").is_err());
        assert!(Status::parse("RssAnon: 99999999999999999999 kB\n").is_err());
    }
}
