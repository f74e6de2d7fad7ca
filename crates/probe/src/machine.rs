//! The properties of the machine that matter for memory.

use std::fs;
use std::path::PathBuf;

use lowtide_model::machine::Machine;

use crate::cgroup::MemoryHierarchy;
use crate::program::c_library_version;

/// Reads the properties of this machine. Those that cannot be read are absent.
pub fn detect() -> Machine {
    let system = rustix::system::uname();
    let text =
        |c: &std::ffi::CStr| Some(c.to_string_lossy().into_owned()).filter(|s| !s.is_empty());
    let memory = keyed_text("/proc/meminfo");
    Machine {
        os: keyed_text("/etc/os-release")
            .value("PRETTY_NAME=")
            .map(|v| v.trim_matches('"').to_owned()),
        kernel: text(system.release()),
        architecture: text(system.machine()),
        cpu: keyed_text("/proc/cpuinfo").after_colon("model name"),
        cpus: std::thread::available_parallelism().ok().map(|n| n.get() as u64),
        memory_bytes: memory.kib("MemTotal:"),
        memory_available_bytes: memory.kib("MemAvailable:"),
        swap_bytes: memory.kib("SwapTotal:"),
        cgroup_limit_bytes: cgroup_limit(),
        page_bytes: Some(rustix::param::page_size() as u64),
        thp: chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        thp_defrag: chosen("/sys/kernel/mm/transparent_hugepage/defrag"),
        overcommit: number("/proc/sys/vm/overcommit_memory"),
        max_map_count: number("/proc/sys/vm/max_map_count"),
        libc: system_c_library(),
    }
}

/// A text of lines that start with keys.
struct KeyedText(String);

fn keyed_text(path: &str) -> KeyedText {
    KeyedText(fs::read_to_string(path).unwrap_or_default())
}

impl KeyedText {
    fn value(&self, key: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(key)).map(str::trim)
    }

    fn after_colon(&self, key: &str) -> Option<String> {
        Some(self.value(key)?.trim_start().strip_prefix(':')?.trim().to_owned())
    }

    fn kib(&self, key: &str) -> Option<u64> {
        self.value(key)?.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    }
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Returns whether the system uses huge pages for any anonymous memory
/// (`transparent_hugepage/enabled` is `always`).
pub fn has_huge_pages_everywhere() -> bool {
    chosen("/sys/kernel/mm/transparent_hugepage/enabled").as_deref() == Some("always")
}

/// Returns the choice in brackets: `always [madvise] never`.
fn chosen(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

/// Returns the lowest memory limit of the cgroups that lowtide runs in.
fn cgroup_limit() -> Option<u64> {
    let own = MemoryHierarchy::read().and_then(|memory| memory.find_of_process(std::process::id()));
    own.ok()?.limits().iter().filter_map(|limit| limit.limit_bytes).min()
}

/// Returns the version of the system's C library: the one that this process is linked with, or if
/// lowtide is linked statically, the one beside the system's loader.
fn system_c_library() -> Option<String> {
    let maps = crate::proc::maps::parse(&fs::read_to_string("/proc/self/maps").ok()?).ok()?;
    let ours = maps.iter().find(|m| m.name.contains("/libc.so") || m.name.contains("/libc-2."));
    let library = ours.map(|m| PathBuf::from(&m.name)).or_else(c_library_beside_loader)?;
    Some(format!("glibc {}", c_library_version(&library)?))
}

/// Returns the path of the C library of dynamically linked programs. Each of them names the loader
/// by this path.
fn c_library_beside_loader() -> Option<PathBuf> {
    const LOADER: &str = if cfg!(target_arch = "aarch64") {
        "/lib/ld-linux-aarch64.so.1"
    } else {
        "/lib64/ld-linux-x86-64.so.2"
    };
    Some(fs::canonicalize(LOADER).ok()?.with_file_name("libc.so.6"))
}

/// Returns the CPU time of the calling thread, in seconds.
pub fn thread_cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the CPU time of this process, in seconds.
pub fn process_cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the machine's memory, and the part that is available to programs without swapping, in
/// bytes.
pub fn memory() -> (Option<u64>, Option<u64>) {
    let memory = keyed_text("/proc/meminfo");
    (memory.kib("MemTotal:"), memory.kib("MemAvailable:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_env = "gnu")]
    fn the_c_library_next_to_the_loader_has_the_version_of_the_running_one() {
        let version = c_library_version(&c_library_beside_loader().unwrap()).unwrap();
        assert_eq!(detect().libc, Some(format!("glibc {version}")));
    }

    #[test]
    fn the_memory_page_size_kernel_and_cpus_of_this_machine_are_detected() {
        let machine = detect();
        assert!(machine.memory_bytes.unwrap() > 1 << 20);
        assert!(machine.page_bytes.unwrap().is_power_of_two());
        assert!(machine.kernel.unwrap().contains('.'));
        assert!(machine.cpus.unwrap() >= 1);
    }
}
