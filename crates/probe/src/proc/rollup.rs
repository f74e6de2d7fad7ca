//! `/proc/PID/smaps_rollup`: exact but expensive. The kernel walks the page tables for it.

use super::ParseError;

/// The used fields of `/proc/PID/smaps_rollup`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Rollup {
    /// Resident set size, exact.
    pub rss_bytes: u64,
    /// Proportional set size.
    pub pss_bytes: u64,
    /// Proportional anonymous memory; `None` before Linux 5.4.
    pub anon_pss_bytes: Option<u64>,
    /// Bytes released with `MADV_FREE` that the kernel has not reclaimed yet.
    pub lazyfree_bytes: u64,
    /// Anonymous memory in huge pages.
    pub anon_huge_bytes: u64,
}

impl Rollup {
    /// Parses the text.
    ///
    /// # Errors
    /// Fails if it has no `Pss`, or if a line has no number.
    pub(crate) fn parse(text: &str) -> Result<Self, ParseError> {
        let error = |what: &str| ParseError { file: "smaps_rollup", what: what.to_owned() };
        let mut rollup = Self::default();
        let (mut found, mut anon_pss_bytes) = (false, 0);
        let mut has_anon = false;
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else {
                continue;
            };
            let target = match key {
                "Pss" => {
                    found = true;
                    &mut rollup.pss_bytes
                }
                "Pss_Anon" => {
                    has_anon = true;
                    &mut anon_pss_bytes
                }
                "Rss" => &mut rollup.rss_bytes,
                "LazyFree" => &mut rollup.lazyfree_bytes,
                "AnonHugePages" => &mut rollup.anon_huge_bytes,
                _ => continue,
            };
            let kib = value.split_ascii_whitespace().next().and_then(|v| v.parse::<u64>().ok());
            *target = kib.and_then(|k| k.checked_mul(1024)).ok_or_else(|| error(key))?;
        }
        rollup.anon_pss_bytes = has_anon.then_some(anon_pss_bytes);
        if found { Ok(rollup) } else { Err(error("has no Pss")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_of_smaps_rollup_are_parsed_in_bytes() {
        let text = "55d0c0a00000-7ffd4b1f0000 ---p 00000000 00:00 0                  [rollup]\n\
            Rss:                8192 kB\nPss:                5000 kB\nPss_Anon:           4000 kB\n\
            LazyFree:             12 kB\nAnonHugePages:      2048 kB\n";
        let rollup = Rollup::parse(text).unwrap();
        assert_eq!((rollup.rss_bytes, rollup.pss_bytes), (8 << 20, 5000 << 10));
        assert_eq!(rollup.anon_pss_bytes, Some(4000 << 10));
        assert_eq!((rollup.lazyfree_bytes, rollup.anon_huge_bytes), (12 << 10, 2 << 20));
    }

    #[test]
    fn empty_text_is_an_error_rather_than_zero() {
        assert!(Rollup::parse("").is_err());
    }
}
