//! What a file holds, in a few words: two files with the same are the same for a study.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The size and the CRC-32 of a file: `1234 bytes, 89abcdef`. That tells another build from the same, and is no
/// protection against anybody.
///
/// # Errors
/// When it cannot be read, or is no regular file.
pub(crate) fn contents(path: &Path) -> io::Result<String> {
    // A FIFO would be waited for.
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
    fn another_byte_is_another_file() {
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
