//! `/proc/PID/maps`.

use std::io::{self, BufRead, Read};
use std::ops::Deref;

use rustix::fs::{AtFlags, CWD, Stat, StatxFlags, statx};

use super::ParseError;

/// Maximum memory for the mappings of a process, in bytes. By default, a process has up to 65,530,
/// each with a path of up to 4 KiB, which it chooses.
const MAX_BYTES: usize = 64 << 20;
/// Maximum length of a line, in bytes: the kernel shows paths of up to a page.
const MAX_LINE: u64 = 1 << 18;

/// One mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// `rwxp`, as the kernel prints it.
    pub permissions: Permissions,
    /// Offset in its file, in bytes.
    pub offset: u64,
    /// The file: device and inode. Inode 0 means no file.
    pub file: FileId,
    /// The name: a path, `[heap]`, or empty.
    pub name: String,
}

/// Permissions of a mapping, a text of four characters. A process can have 65,530 mappings by
/// default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permissions([u8; 4]);

impl Permissions {
    /// Parses `rwxp`, with `-` for a missing permission and `s` for a shared mapping. Returns
    /// `None` if the text is not four ASCII characters.
    pub fn parse(text: &str) -> Option<Self> {
        let text: [u8; 4] = text.as_bytes().try_into().ok()?;
        text.is_ascii().then_some(Self(text))
    }
}

impl Deref for Permissions {
    type Target = str;

    fn deref(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl PartialEq<&str> for Permissions {
    fn eq(&self, other: &&str) -> bool {
        self.0 == other.as_bytes()
    }
}

/// A file, independent of its path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Device, major and minor number.
    pub device: (u32, u32),
    /// Inode.
    pub inode: u64,
}

impl FileId {
    /// Returns the file that a `stat` describes.
    pub(crate) fn of_stat(stat: &Stat) -> Self {
        let device = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        Self { device, inode: stat.st_ino }
    }

    /// Returns the file that a path leads to. A remote file system is not asked: it may not answer.
    ///
    /// # Errors
    /// Fails if the path leads nowhere, or on kernels before 4.11.
    pub fn of(path: &str) -> io::Result<Self> {
        let as_known = AtFlags::STATX_DONT_SYNC;
        let found = statx(CWD, path, as_known, StatxFlags::INO)?;
        Ok(Self { device: (found.stx_dev_major, found.stx_dev_minor), inode: found.stx_ino })
    }

    /// Returns the file that a path or a descriptor leads to.
    pub fn from_metadata(meta: &std::fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        let device = meta.dev();
        Self { device: (rustix::fs::major(device), rustix::fs::minor(device)), inode: meta.ino() }
    }
}

impl Mapping {
    /// Returns whether it is backed by a file.
    pub fn has_file(&self) -> bool {
        self.file.inode != 0
    }

    /// Returns the name that the process gave to it, if it is private memory of no file
    /// (`PR_SET_VMA_ANON_NAME`, Linux 5.17 with `CONFIG_ANON_VMA_NAME`).
    pub fn given_name(&self) -> Option<&str> {
        let name = self.name.strip_prefix("[anon:")?;
        Some(name.strip_suffix(']').unwrap_or(name).trim_start())
    }

    /// Returns whether it can have anonymous pages, other than copies of pages of a file.
    pub(crate) fn has_anonymous_pages(&self) -> bool {
        let is_accessible = !self.permissions.starts_with("---");
        !self.has_file() && is_accessible && self.name != "[vsyscall]"
    }

    /// Returns whether it is private memory, of which a fork makes no copy before one of the
    /// processes writes to it.
    pub(crate) fn may_be_copied(&self) -> bool {
        self.permissions.ends_with('p') && !self.name.starts_with("[v")
    }

    /// Returns its size in bytes.
    pub fn size(&self) -> u64 {
        self.end - self.start
    }

    /// Returns whether it contains an address.
    pub fn contains(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }
}

/// Parses the text: one mapping per line, in order of address.
///
/// # Errors
/// Fails at the first line that is not a mapping.
pub fn parse(text: &str) -> Result<Vec<Mapping>, ParseError> {
    // Not `lines`: a path may end with a carriage return.
    text.split_terminator('\n').map(parse_line).collect()
}

/// Reads the mappings one by one, without the whole text in memory.
///
/// # Errors
/// Each item fails if the text cannot be read, or if its line is not a mapping.
pub fn read(mut text: impl BufRead) -> impl Iterator<Item = io::Result<Mapping>> {
    let mut line = Vec::new();
    std::iter::from_fn(move || {
        line.clear();
        match text.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(0) => None,
            Ok(_) => {
                let line = line.strip_suffix(b"\n").unwrap_or(&line);
                Some(parse_line(&String::from_utf8_lossy(line)).map_err(io::Error::from))
            }
            Err(error) => Some(Err(error)),
        }
    })
}

/// Reads all mappings.
///
/// # Errors
/// Fails if the text cannot be read, if a line is not a mapping, or if they take more than 64 MiB.
pub fn read_all(text: impl BufRead) -> io::Result<Vec<Mapping>> {
    let (mut all, mut bytes) = (Vec::new(), 0);
    for mapping in read(text) {
        let mapping = mapping?;
        bytes += size_of::<Mapping>() + mapping.name.len();
        if bytes > MAX_BYTES {
            return Err(io::Error::other("its mappings and their names take more than 64 MiB"));
        }
        all.push(mapping);
    }
    Ok(all)
}

fn parse_line(line: &str) -> Result<Mapping, ParseError> {
    let error = || ParseError { file: "maps", what: format!("`{line}` is not a valid mapping") };
    let hex = |text: &str| u64::from_str_radix(text, 16).map_err(|_| error());
    let mut rest = line;
    let mut next = || -> Result<&str, ParseError> {
        rest = rest.trim_start_matches(' ');
        let end = rest.find(' ').unwrap_or(rest.len());
        let (field, tail) = rest.split_at(end);
        rest = tail;
        if field.is_empty() { Err(error()) } else { Ok(field) }
    };
    let (start, end) = next()?.split_once('-').ok_or_else(error)?;
    let permissions = Permissions::parse(next()?).ok_or_else(error)?;
    let offset = next()?;
    let (major, minor) = next()?.split_once(':').ok_or_else(error)?;
    let inode = next()?;
    let small = |text: &str| u32::from_str_radix(text, 16).map_err(|_| error());
    let (start, end) = (hex(start)?, hex(end)?);
    if start > end {
        return Err(error());
    }
    Ok(Mapping {
        start,
        end,
        permissions,
        offset: hex(offset)?,
        file: FileId {
            device: (small(major)?, small(minor)?),
            inode: inode.parse().map_err(|_| error())?,
        },
        name: rest.trim_start_matches(' ').to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_that_a_process_gave_to_memory_is_told_from_that_of_a_file() {
        let maps = parse(
            "7f1200000000-7f1200001000 rw-p 00000000 00:00 0        [anon:frames]\n\
             7f1200001000-7f1200002000 rw-p 00000000 00:00 0        [anon: glibc: malloc arena]\n\
             7f1200002000-7f1200003000 rw-p 00000000 00:00 0        [anon:]\n\
             7f1300000000-7f1300001000 rw-p 00000000 00:00 0        [heap]\n\
             7f1300001000-7f1300002000 rw-p 00000000 00:00 0 \n",
        )
        .unwrap();
        let names: Vec<_> = maps.iter().map(Mapping::given_name).collect();
        assert_eq!(names, [Some("frames"), Some("glibc: malloc arena"), Some(""), None, None]);
    }
    use proptest::prelude::*;

    #[test]
    fn spaces_in_the_path_of_a_mapping_are_kept() {
        let text = "7f1200000000-7f1200021000 r-xp 00002000 fe:01 1234                       /srv/a b/lib c.so (deleted)\n\
            7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]\n\
            7f1200030000-7f1200031000 ---p 00000000 00:00 0 \n";
        let maps = parse(text).unwrap();
        assert_eq!(maps[0].name, "/srv/a b/lib c.so (deleted)");
        assert_eq!(maps[0].file, FileId { device: (0xfe, 1), inode: 1234 });
        assert!(maps[0].contains(0x7f12_0000_0000) && !maps[0].contains(0x7f12_0002_1000));
        assert_eq!((maps[1].name.as_str(), maps[1].has_file()), ("[stack]", false));
        assert_eq!(maps[2].name, "");
        assert!(maps[0].permissions == "r-xp" && maps[2].permissions.starts_with("---"));
        assert_eq!(read_all(text.as_bytes()).unwrap(), maps);
    }

    #[test]
    fn many_mappings_with_long_names_are_an_error() {
        let name = "x".repeat(4000);
        let line = format!("1000-2000 rw-p 00000000 fe:01 1234 /{name}\n");
        assert_eq!(read_all(line.repeat(100).as_bytes()).unwrap().len(), 100);
        let count = MAX_BYTES / line.len() + 100;
        let text = line.repeat(count);
        assert!(read_all(text.as_bytes()).unwrap_err().to_string().contains("more than 64 MiB"));
    }

    #[test]
    fn a_line_without_an_end_is_not_read_whole() {
        let mut items = read(io::BufReader::new(io::repeat(b'x')));
        assert!(items.next().unwrap().is_err());
    }

    proptest! {
        #[test]
        fn the_parser_does_not_panic_on_arbitrary_text(text in "[0-9a-f\\-: rwxp\n/]{0,200}") {
            let parsed = parse(&text).ok();
            let read: Option<Vec<Mapping>> = read(text.as_bytes()).collect::<io::Result<_>>().ok();
            prop_assert_eq!(parsed, read);
        }
    }
}
