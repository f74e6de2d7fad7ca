//! A file that is read as a program or library and whose contents are not trusted.

use std::cell::Cell;
use std::ops::Range;

use object::Endianness;
use object::read::elf::ElfFile64;
use object::read::{ReadCache, ReadCacheOps, ReadRef};

use crate::mapped::MappedFile;

/// Maximum number of bytes that are read of one file: the names of the largest programs that are
/// not stripped.
const MOST: u64 = 512 << 20;

pub(super) type Cached<'c> = &'c Source<'c>;
pub(super) type Elf<'c> = ElfFile64<'c, Endianness, Cached<'c>>;

/// A file with a limit on the number of bytes read: a table may claim to be as large as a file that
/// is nearly all holes.
#[derive(Debug)]
pub struct Source<'f> {
    file: &'f MappedFile,
    cache: ReadCache<Positioned<'f>>,
    left: Cell<u64>,
}

impl<'f> Source<'f> {
    /// Reads a file.
    pub fn new(file: &'f MappedFile) -> Self {
        Self { file, cache: ReadCache::new(Positioned { file, at: 0 }), left: Cell::new(MOST) }
    }

    /// Reads a part of the file without caching it. Returns the bytes that the file has of it.
    pub(crate) fn read_once(&self, offset: u64, size: usize) -> Option<Vec<u8>> {
        self.left.set(self.left.get().checked_sub(size as u64)?);
        let mut bytes = vec![0; size];
        let (length, read) = self.file.fill_at(&mut bytes, offset);
        read.ok()?;
        bytes.truncate(length);
        Some(bytes)
    }
}

/// A file and a position in it. Unlike the position of the descriptor, it needs no system call to
/// change; the exporter forbids itself `lseek`.
#[derive(Debug)]
struct Positioned<'f> {
    file: &'f MappedFile,
    at: u64,
}

impl ReadCacheOps for Positioned<'_> {
    fn len(&mut self) -> Result<u64, ()> {
        self.file.size().map_err(|_| ())
    }

    fn seek(&mut self, pos: u64) -> Result<u64, ()> {
        self.at = pos;
        Ok(pos)
    }

    fn read(&mut self, buf: &mut [u8]) -> Result<usize, ()> {
        let read = self.file.read_at(buf, self.at).map_err(|_| ())?;
        self.at += read as u64;
        Ok(read)
    }

    fn read_exact(&mut self, buf: &mut [u8]) -> Result<(), ()> {
        self.file.read_exact_at(buf, self.at).map_err(|_| ())?;
        self.at += buf.len() as u64;
        Ok(())
    }
}

impl<'s> ReadRef<'s> for &'s Source<'_> {
    fn len(self) -> Result<u64, ()> {
        (&self.cache).len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'s [u8], ()> {
        self.left.set(self.left.get().checked_sub(size).ok_or(())?);
        (&self.cache).read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'s [u8], ()> {
        self.left.set(self.left.get().checked_sub(1).ok_or(())?);
        (&self.cache).read_bytes_at_until(range, delimiter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_all_of_a_huge_sparse_file_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 40).unwrap();
        let file = MappedFile::from(file);
        let source = Source::new(&file);
        assert_eq!((&source).read_bytes_at(0, 4096), Ok(&[0; 4096][..]));
        assert_eq!((&source).read_bytes_at(0, 1 << 40), Err(()));
    }
}
