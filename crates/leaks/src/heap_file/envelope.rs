//! The head of a heap file with its checksum, and its compressed body.
//!
//! The head is one line of text: `lowtide.heap-file/` with the version, the CRC-32 of everything
//! after the line in hexadecimal digits, and its length. The deflated body begins with the length
//! of its JSON, in 8 bytes, lowest first; the columns of `pins::columns` follow the JSON.

use miniz_oxide::{deflate, inflate};

use super::HeapFileError;

/// The first bytes of every heap file.
pub const MAGIC: &[u8] = b"lowtide.heap-file/";
/// Maximum size of a file, in bytes.
pub const MAX_FILE_BYTES: usize = 256 << 20;
/// Maximum size of a body, in bytes. The columns of the largest heap take 150 MB.
const MAX_BODY_BYTES: usize = 512 << 20;
const VERSION: u32 = 1;
/// Level of the compression: higher ones take longer, and save little.
const LEVEL: u8 = 6;
/// Maximum length of the first line, in bytes.
const MAX_HEAD: usize = 64;

/// Returns a file with this body.
pub(super) fn seal(text: &[u8], columns: &[u8]) -> Result<Vec<u8>, HeapFileError> {
    let mut body = (text.len() as u64).to_le_bytes().to_vec();
    body.extend_from_slice(text);
    body.extend_from_slice(columns);
    let deflated = deflate::compress_to_vec(&body, LEVEL);
    if body.len() > MAX_BODY_BYTES || deflated.len() > MAX_FILE_BYTES - MAX_HEAD {
        return Err(HeapFileError::TooLarge);
    }
    let mut file = head(&deflated);
    file.extend(deflated);
    Ok(file)
}

fn head(deflated: &[u8]) -> Vec<u8> {
    let values = format!("{VERSION} {:08x} {}\n", crc32fast::hash(deflated), deflated.len());
    [MAGIC, values.as_bytes()].concat()
}

/// Returns the body of a file without compression: everything that it contains.
///
/// # Errors
/// Fails if it is not a file of this version, or if it was changed.
pub fn open(bytes: &[u8]) -> Result<Vec<u8>, HeapFileError> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(HeapFileError::Format)?;
    let line = rest.iter().take(MAX_HEAD).position(|byte| *byte == b'\n');
    let (values, deflated) = rest.split_at(line.ok_or(HeapFileError::Damaged)? + 1);
    let version = std::str::from_utf8(values).ok().and_then(|text| text.split(' ').next());
    let version: u32 = version.and_then(|text| text.parse().ok()).ok_or(HeapFileError::Damaged)?;
    if version != VERSION {
        return Err(HeapFileError::Version(version));
    }
    if bytes.len() > MAX_FILE_BYTES {
        return Err(HeapFileError::TooLarge);
    }
    if !bytes.starts_with(&head(deflated)) {
        return Err(HeapFileError::Damaged);
    }
    let inflated = inflate::decompress_to_vec_with_limit(deflated, MAX_BODY_BYTES);
    inflated.map_err(|_| HeapFileError::Invalid)
}

/// Returns the JSON and the columns of a body.
pub(super) fn parts(body: &[u8]) -> Result<(&[u8], &[u8]), HeapFileError> {
    let (length, rest) = body.split_first_chunk::<8>().ok_or(HeapFileError::Invalid)?;
    let length =
        usize::try_from(u64::from_le_bytes(*length)).map_err(|_| HeapFileError::Invalid)?;
    rest.split_at_checked(length).ok_or(HeapFileError::Invalid)
}
