//! `/proc/PID/mountinfo`.

use std::collections::BTreeSet;

/// Returns the devices (major and minor number) of file systems of some type. Invalid lines are
/// skipped.
pub fn devices(text: &str, is_wanted: impl Fn(&str) -> bool) -> BTreeSet<(u32, u32)> {
    let device = |line: &str| {
        // Optional fields come before it; a dash ends them.
        let (mount, of_type) = line.split_once(" - ")?;
        is_wanted(of_type.split(' ').next()?).then_some(())?;
        let (major, minor) = mount.split(' ').nth(2)?.split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    text.lines().filter_map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_by_their_file_system_type() {
        let text = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw\n\
            25 22 0:21 / /dev/shm rw master:3 propagate_from:1 - tmpfs tmpfs rw,size=24684084k\n\
            nothing\n26 22 0:x / /x rw - tmpfs tmpfs rw\n27 22 0:5 / /y rw - devtmpfs x - tmpfs rw\n";
        let found = devices(text, |name| name == "tmpfs");
        assert_eq!(found, BTreeSet::from([(0, 21)]));
    }
}
