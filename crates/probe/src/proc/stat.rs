//! `/proc/PID/stat`.

use super::ParseError;

/// The used fields of one line of `/proc/PID/stat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// The process's short name.
    pub name: String,
    /// State: `R`, `S`, `D`, `T`, `Z`, ….
    pub state: char,
    /// PID of the parent.
    pub parent: u32,
    /// Flags of the kernel (`PF_…`).
    pub flags: u64,
    /// Number of page faults without I/O.
    pub minor_faults: u64,
    /// Number of page faults with I/O.
    pub major_faults: u64,
    /// CPU time in user and kernel mode, in clock ticks.
    pub cpu_ticks: u64,
    /// Number of threads.
    pub threads: u64,
    /// Start time, in clock ticks since boot.
    pub start_ticks: u64,
    /// Size of the address space, in bytes.
    pub vsz_bytes: u64,
    /// Number of resident pages.
    pub rss_pages: u64,
    /// Start addresses of its code and its stack, which change when it executes another program.
    /// Zero if they may not be read.
    pub image: (u64, u64),
}

impl Stat {
    /// Parses one line of `/proc/PID/stat`.
    ///
    /// # Errors
    /// Fails if a field is missing or is not a number.
    pub fn parse(line: &str) -> Result<Self, ParseError> {
        let error = |what: &str| ParseError { file: "stat", what: what.to_owned() };
        // The name is in parentheses and can itself contain spaces and parentheses.
        let open = line.find('(').ok_or_else(|| error("has no name"))?;
        let close = line.rfind(')').filter(|c| *c > open).ok_or_else(|| error("has no name"))?;
        // proc(5) counts from 1, and the name is field 2, so the state is field 3.
        let mut fields = line[close + 1..].split_ascii_whitespace();
        let mut place = 2;
        // The fields are read in order; others are skipped.
        let mut field = |wanted: usize| {
            let found = fields.nth(wanted - place - 1);
            place = wanted;
            found.ok_or_else(|| error(&format!("has no field {wanted}")))
        };
        let not_a_number = |at: usize| error(&format!("field {at} is not a number"));
        let state = field(3)?.chars().next().unwrap_or('?');
        let mut number = |at: usize| {
            // The kernel prints some fields as signed; a negative count means none.
            let text = field(at)?;
            match text.parse::<u64>() {
                Ok(value) => Ok(value),
                Err(_) if text.parse::<i64>().is_ok() => Ok(0),
                Err(_) => Err(not_a_number(at)),
            }
        };
        Ok(Self {
            name: line[open + 1..close].to_owned(),
            state,
            parent: number(4)? as u32,
            flags: number(9)?,
            minor_faults: number(10)?,
            major_faults: number(12)?,
            cpu_ticks: number(14)?.saturating_add(number(15)?),
            threads: number(20)?,
            start_ticks: number(22)?,
            vsz_bytes: number(23)?,
            rss_pages: number(24)?,
            image: (number(26)?, number(28)?),
        })
    }

    /// Returns whether it is a thread of io_uring, which runs no code of the program
    /// (`PF_IO_WORKER` of include/linux/sched.h).
    pub(crate) fn is_io_worker(&self) -> bool {
        const PF_IO_WORKER: u64 = 0x10;
        self.flags & PF_IO_WORKER != 0
    }

    /// Returns whether it was forked and has executed no program since (`PF_FORKNOEXEC` of
    /// include/linux/sched.h).
    pub fn is_forked(&self) -> bool {
        self.flags & 0x40 != 0
    }

    /// Returns whether it is a kernel thread (`PF_KTHREAD` of include/linux/sched.h).
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & 0x0020_0000 != 0
    }

    /// Returns whether the process has ended and its parent has not reaped it yet.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINE: &str = "4242 (a) name (x) S 1 4242 4242 0 -1 4194304 1234 77 5 6 250 130 9 8 20 0 3 0 \
        987654 104857600 2560 18446744073709551615 94000000 94500000 140720000000 0 0 0 0 0 0 0 0 \
        0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0";

    #[test]
    fn a_name_with_spaces_and_parentheses_is_kept_whole() {
        let stat = Stat::parse(LINE).unwrap();
        assert_eq!(stat.name, "a) name (x");
        assert_eq!((stat.state, stat.parent, stat.threads), ('S', 1, 3));
        assert_eq!((stat.minor_faults, stat.major_faults), (1234, 5));
        assert_eq!((stat.cpu_ticks, stat.start_ticks), (380, 987_654));
        assert_eq!((stat.vsz_bytes, stat.rss_pages), (104_857_600, 2560));
        assert_eq!(stat.image, (94_000_000, 140_720_000_000));
    }

    #[test]
    fn a_forked_process_that_has_executed_no_program_has_a_flag() {
        let forked = LINE.replace("4194304", "4194368");
        assert!(Stat::parse(&forked).unwrap().is_forked());
        assert!(!Stat::parse(LINE).unwrap().is_forked());
    }

    #[test]
    fn a_truncated_line_is_an_error() {
        for length in 0..LINE.find("140720000000").unwrap() {
            assert!(Stat::parse(&LINE[..length]).is_err(), "{length}");
        }
    }

    proptest! {
        #[test]
        fn the_parser_does_not_panic_on_arbitrary_text(text in "\\PC*") {
            let _ = Stat::parse(&text);
        }
    }
}
