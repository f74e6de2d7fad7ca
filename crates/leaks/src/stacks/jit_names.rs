//! Names of code without a file: a program that compiles code at run time can list it in
//! `/tmp/perf-PID.map`, with its PID in its own namespace
//! (tools/perf/Documentation/jit-interface.txt). Node.js does so with `--perf-basic-prof`, and so
//! do agents of the JVM.

use lowtide_probe::mapped::read_in_root;
use lowtide_probe::target::Target;

/// Maximum number of bytes of the file that are read, of functions, and of characters of a name:
/// the process writes the file.
const MAX_BYTES: u64 = 64 << 20;
const MAX_FUNCTIONS: usize = 1 << 20;
const MAX_NAME: usize = 200;
/// Maximum number of functions that are checked for an address: addresses are used again, so that
/// functions overlap.
const MAX_CHECKED: usize = 64;

/// The functions that a process has compiled.
#[derive(Debug, Default)]
pub(crate) struct JitNames {
    /// Start and end of each function, and its place in the file, in order.
    functions: Vec<(u64, u64, u32)>,
    names: Vec<String>,
}

impl JitNames {
    /// Reads the list of a process; it is empty if there is none that can be read.
    pub(crate) fn read(target: &Target) -> Self {
        let Ok(status) = target.status() else { return Self::default() };
        let path = format!("/tmp/perf-{}.map", status.own_pid);
        let text = read_in_root(target.pid, &path, status.uid, MAX_BYTES).unwrap_or_default();
        Self::parse(&String::from_utf8_lossy(&text))
    }

    /// Parses lines of a start and a size, both hexadecimal, and a name. Other lines are left out:
    /// the last one may be incomplete.
    fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for line in text.lines() {
            let mut words = line.splitn(3, ' ');
            let mut number =
                || u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok();
            let (Some(start), Some(bytes)) = (number(), number()) else { continue };
            let Some(name) = words.next().filter(|name| !name.is_empty()) else { continue };
            let Some(end) = start.checked_add(bytes) else { continue };
            if found.names.len() >= MAX_FUNCTIONS {
                break;
            }
            found.functions.push((start, end, found.names.len() as u32));
            found.names.push(name.chars().take(MAX_NAME).collect());
        }
        found.functions.sort_unstable();
        found
    }

    /// Returns the name of the function that contains an address: of several, the newest.
    pub(crate) fn name(&self, at: u64) -> Option<&str> {
        let after = self.functions.partition_point(|(start, ..)| *start <= at);
        let before = self.functions[..after].iter().rev().take(MAX_CHECKED);
        let containing = before.filter(|(_, end, _)| at < *end);
        let newest = containing.map(|(.., place)| *place).max()?;
        self.names.get(newest as usize).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_function_at_an_address_is_named() {
        let names = JitNames::parse(
            "1000 100 JS:~old /app/a.js:1:2\n3000 20 stub\n1040 40 JS:*handle request /app/b.js:7:9\n\
             0x5000 10 agent\n6000 ff",
        );
        assert_eq!(names.name(0x1010), Some("JS:~old /app/a.js:1:2"));
        assert_eq!(names.name(0x1050), Some("JS:*handle request /app/b.js:7:9"));
        assert_eq!(
            (names.name(0x1080), names.name(0x5000)),
            (Some("JS:~old /app/a.js:1:2"), Some("agent"))
        );
        assert_eq!([0xfff, 0x1100, 0x3020, 0x6000].map(|at| names.name(at)), [None; 4]);
    }

    #[test]
    fn a_hostile_list_is_bounded() {
        let long = "x".repeat(10_000);
        let names = JitNames::parse(&format!(
            "ffffffffffffffff 2 end\n-1 5 sign\n 10 name\n1000\n1000 zz name\n1000 10 \n2000 10 {long}\n"
        ));
        assert_eq!(names.name(0x2008).map(str::len), Some(MAX_NAME));
        assert_eq!(names.names.len(), 1);
    }
}
