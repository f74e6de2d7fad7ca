//! `/proc/PID/mountinfo`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};

/// Maximum length of a list that is read, in bytes. Whoever can mount can make it longer.
const MAX_BYTES: u64 = 4 << 20;

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Its number, and that of the mount that it is mounted on.
    pub id: u64,
    /// The number of the mount that it is mounted on.
    pub parent: u64,
    /// The device, major and minor number.
    pub device: (u32, u32),
    /// The directory of the file system that is mounted.
    pub root: String,
    /// Where it is mounted.
    pub point: String,
    /// The type of the file system.
    pub of_type: String,
    /// The options of the file system.
    pub options: String,
}

impl Mount {
    /// Returns the paths of the layers of an overlay, as the one who mounted it named them.
    pub(crate) fn layers(&self) -> Vec<String> {
        const NAMES: [&str; 4] = ["lowerdir", "lowerdir+", "datadir+", "upperdir"];
        let options = self.options.split(',').filter_map(|option| option.split_once('='));
        let layers = options.filter(|(name, _)| NAMES.contains(name));
        layers.flat_map(|(_, paths)| paths.split(':').map(unescaped)).collect()
    }
}

/// Reads the list of the mounts that a process (a PID, or `self`) sees. Of a very long list, only
/// the beginning is read.
///
/// # Errors
/// Fails if it may not be read, or the process has ended.
pub(crate) fn read(process: &str) -> io::Result<String> {
    let mut text = Vec::new();
    File::open(format!("/proc/{process}/mountinfo"))?.take(MAX_BYTES).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Returns the mounts. Invalid lines are skipped.
pub(crate) fn mounts(text: &str) -> impl Iterator<Item = Mount> {
    text.lines().filter_map(parse_line)
}

/// Returns the devices (major and minor number) of file systems of some type. Invalid lines are
/// skipped.
pub(crate) fn devices(text: &str, is_wanted: impl Fn(&str) -> bool) -> BTreeSet<(u32, u32)> {
    mounts(text).filter(|mount| is_wanted(&mount.of_type)).map(|mount| mount.device).collect()
}

fn parse_line(line: &str) -> Option<Mount> {
    // Optional fields come before it; a dash ends them.
    let (mount, file_system) = line.split_once(" - ")?;
    let mut fields = mount.split(' ');
    let (id, parent) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let (major, minor) = fields.next()?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let (root, point) = (unescaped(fields.next()?), unescaped(fields.next()?));
    let mut fields = file_system.split(' ');
    let of_type = fields.next()?.to_owned();
    let options = fields.nth(1).unwrap_or_default().to_owned();
    Some(Mount { id, parent, device, root, point, of_type, options })
}

/// Replaces `\040` and the like (three octal digits) by the character.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend(&part.as_bytes()[3..]);
            }
            None => {
                bytes.push(b'\\');
                bytes.extend(part.as_bytes());
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw\n\
        25 22 0:21 / /dev/shm rw master:3 propagate_from:1 - tmpfs tmpfs rw,size=24684084k\n\
        nothing\n26 22 0:x / /x rw - tmpfs tmpfs rw\n27 22 0:5 / /y rw - devtmpfs x - tmpfs rw\n";

    #[test]
    fn devices_are_found_by_their_file_system_type() {
        let found = devices(TEXT, |name| name == "tmpfs");
        assert_eq!(found, BTreeSet::from([(0, 21)]));
    }

    #[test]
    fn a_mount_has_a_place_and_options() {
        let found = mounts(TEXT).nth(1).unwrap();
        assert_eq!((found.id, found.parent), (25, 22));
        assert_eq!((found.root.as_str(), found.point.as_str()), ("/", "/dev/shm"));
        assert_eq!(found.options, "rw,size=24684084k");
    }

    #[test]
    fn special_characters_of_a_path_are_escaped() {
        assert_eq!(unescaped(r"/a\040b\134\011"), "/a b\\\t");
        assert_eq!(unescaped(r"/a\9\"), r"/a\9\");
    }
}
