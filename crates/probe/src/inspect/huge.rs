//! The transparent huge pages of a process's anonymous memory, and the part of them that it has not
//! used.
//!
//! The kernel knows a huge page as a whole only: which of its small pages were written is not
//! recorded. Those that were never written hold only zeros.

use std::fs;
use std::ops::Range;

use lowtide_heap::memory::Memory;
use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::inspection::{HugeGrant, HugePages};
use lowtide_model::remedy::Setting;

use super::spread::Spread;
use crate::detect::Detected;
use crate::memory::ProcessMemory;
use crate::proc::environ;
use crate::proc::maps::Mapping;

/// Maximum length of a variable of options, in bytes.
const MAX_VARIABLE: usize = 1000;

/// Returns the anonymous memory in huge pages; `None` on kernels that do not scan (before 6.7).
pub(super) fn runs(memory: &ProcessMemory, maps: &[Mapping]) -> Option<Vec<Range<u64>>> {
    let mut found = Vec::new();
    for mapping in maps.iter().filter(|mapping| mapping.has_anonymous_pages()) {
        found.extend(memory.huge(mapping.start..mapping.end).ok().flatten()?);
    }
    Some(found)
}

/// Describes the huge pages of a process.
pub(super) fn describe(
    pid: u32,
    memory: &ProcessMemory,
    maps: &[Mapping],
    detected: &Detected,
    runs: &[Range<u64>],
) -> HugePages {
    let page = memory.page_bytes();
    let spread = Spread::over(runs, page);
    let zeros = vec![0_u8; page as usize];
    let mut buffer = zeros.clone();
    let mut is_zero = |address: &&u64| {
        memory.read_resident(**address, &mut buffer) == buffer.len() && buffer == zeros
    };
    let count = spread.pages.iter().filter(&mut is_zero).count();
    let grant = grant();
    // Where the system grants them to all memory, no request matters.
    let asks = grant == Some(HugeGrant::Madvise);
    let setting = asks.then(|| environ::read(pid, environ::MAX_BYTES).ok()).flatten();
    let has_numpy = || maps.iter().any(|mapping| mapping.name.contains("/_multiarray_umath."));
    let has_glibc = detected.has_glibc_heap();
    let is_jemalloc = detected.allocator().is_some_and(|a| a.kind == AllocatorKind::Jemalloc);
    HugePages {
        zero_bytes: spread.bytes(count),
        estimated: spread.is_estimate(),
        grant,
        setting: setting.and_then(|environment| {
            setting_against(&environment, has_glibc, is_jemalloc, has_numpy())
        }),
    }
}

/// Returns the memory to which the system grants huge pages. Since Linux 6.8, each size has a
/// setting of its own, which is usually to inherit the common one.
fn grant() -> Option<HugeGrant> {
    const SETTINGS: &str = "/sys/kernel/mm/transparent_hugepage";
    let of = |file: &str| {
        let text = fs::read_to_string(format!("{SETTINGS}/{file}")).ok()?;
        HugeGrant::parse(&text)
    };
    of("hugepages-2048kB/enabled").or_else(|| of("enabled"))
}

/// Returns the variable with which a program does not ask for huge pages, if its environment, or a
/// library, makes it ask.
fn setting_against(
    environment: &[u8],
    has_glibc: bool,
    is_jemalloc: bool,
    has_numpy: bool,
) -> Option<Setting> {
    let variables: Vec<(&str, &str)> =
        environment.split(|byte| *byte == 0).filter_map(plain_variable).collect();
    let replaced = |(name, value): &(&str, &str), old: &str, new: &str| Setting {
        name: (*name).to_owned(),
        value: value.replace(old, new),
    };
    let of_glibc = variables.iter().find(|(name, value)| {
        *name == "GLIBC_TUNABLES" && value.split(':').any(|part| part == "glibc.malloc.hugetlb=1")
    });
    if let Some(variable) = of_glibc.filter(|_| has_glibc) {
        return Some(replaced(variable, "glibc.malloc.hugetlb=1", "glibc.malloc.hugetlb=0"));
    }
    let of_jemalloc = variables.iter().find(|(name, value)| {
        name.ends_with("MALLOC_CONF") && value.split(',').any(|part| part == "thp:always")
    });
    if let Some(variable) = of_jemalloc.filter(|_| is_jemalloc) {
        return Some(replaced(variable, "thp:always", "thp:default"));
    }
    // numpy asks for them for each array of 4 MiB or more, unless this variable is 0.
    let numpy = "NUMPY_MADVISE_HUGEPAGE";
    let is_off = variables.contains(&(numpy, "0"));
    (has_numpy && !is_off).then(|| Setting { name: numpy.to_owned(), value: "0".to_owned() })
}

/// Returns the name and the value of a variable of options. They are shown, and pasted into a
/// shell: any other text of the process is not one.
fn plain_variable(text: &[u8]) -> Option<(&str, &str)> {
    let (name, value) = std::str::from_utf8(text).ok()?.split_once('=')?;
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let is_value =
        value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.:,=/+-".contains(&byte));
    (is_name && is_value && text.len() <= MAX_VARIABLE).then_some((name, value))
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Read;
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::target::Target;

    /// Starts a process that reads zeros into a block of 40 MiB, in huge pages if available, and
    /// then waits for a reader.
    pub(in crate::inspect) fn with_block_of_zeros() -> (Child, Target) {
        let mut child = Command::new("dd")
            .args(["if=/dev/zero", "bs=40M", "count=1"])
            .env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let target = Target::open(child.id()).unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        while target.stat().unwrap().state != 'S' {
            std::thread::yield_now();
        }
        (child, target)
    }

    #[test]
    fn zeros_in_huge_pages_are_counted_with_the_variable_that_asks_for_the_pages() {
        use crate::inspect::Inspector;

        let (mut child, target) = with_block_of_zeros();
        let found = Inspector::default().with_details().inspect(&target).unwrap();
        let huge_bytes = found.anon_huge_bytes.unwrap_or(0);
        if let Some(huge) = found.huge_pages {
            // The page with the header of the block is not zero.
            let rest = huge_bytes - huge.zero_bytes;
            assert!(rest <= 256 << 10, "{huge:?} of {huge_bytes}");
            let asks = huge.grant == Some(HugeGrant::Madvise);
            assert_eq!(huge.setting.is_some(), asks, "{huge:?}");
        } else {
            assert_eq!(huge_bytes, 0);
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_variable_that_asks_for_huge_pages_is_named_with_its_other_settings() {
        let found = |text: &str, has_glibc, is_jemalloc, has_numpy| {
            setting_against(text.as_bytes(), has_glibc, is_jemalloc, has_numpy)
                .map(|setting| format!("{}={}", setting.name, setting.value))
        };
        let tunables = "A=b\0GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.arena_max=2\0";
        let without = "GLIBC_TUNABLES=glibc.malloc.hugetlb=0:glibc.malloc.arena_max=2";
        assert_eq!(found(tunables, true, false, true).as_deref(), Some(without));
        // The tunable changes nothing for a program with another allocator.
        assert_eq!(found(tunables, false, true, false), None);
        let conf = "_RJEM_MALLOC_CONF=dirty_decay_ms:0,thp:always\0";
        let expected = "_RJEM_MALLOC_CONF=dirty_decay_ms:0,thp:default";
        assert_eq!(found(conf, true, true, false).as_deref(), Some(expected));
        assert_eq!(found(conf, true, false, false), None);
        assert_eq!(found("", true, false, true).as_deref(), Some("NUMPY_MADVISE_HUGEPAGE=0"));
        assert_eq!(found("NUMPY_MADVISE_HUGEPAGE=0\0", true, false, true), None);
        assert_eq!(found("\0=\0\u{0}x", true, true, false), None);
        // A hostile process gets nothing on the terminal, and nothing into a shell.
        for text in ["\u{1b}[2JMALLOC_CONF=thp:always\0", "MALLOC_CONF=thp:always,'; reboot #\0"] {
            assert_eq!(found(text, true, true, false), None, "{text:?}");
        }
    }
}
