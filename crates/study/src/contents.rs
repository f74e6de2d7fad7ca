//! A short fingerprint of a file: two files with the same fingerprint are the same for a study.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Returns the size and the CRC-32 of a file: `1234 bytes, 89abcdef`. They distinguish one build
/// from another, but do not protect against manipulation.
///
/// # Errors
/// Fails if the file cannot be read, or is not a regular file.
pub(crate) fn contents(path: &Path) -> io::Result<String> {
    // Opening a FIFO would block.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let (mut size, mut sum) = (0, crc32fast::Hasher::new());
    let mut block = vec![0; 1 << 20];
    loop {
        match file.read(&mut block)? {
            0 => return Ok(format!("{size} bytes, {:08x}", sum.finalize())),
            length => {
                size += length;
                sum.update(&block[..length]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_contents_have_different_checksums() {
        let home = tempfile::tempdir().unwrap();
        let of = |text: &str| {
            let path = home.path().join("file");
            std::fs::write(&path, text).unwrap();
            contents(&path).unwrap()
        };
        assert_eq!(of("123456789"), "9 bytes, cbf43926");
        assert_ne!(of("a"), of("b"));
        assert!(contents(home.path()).is_err());
    }
}
