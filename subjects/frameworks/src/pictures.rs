//! Pictures: one to upload, and the decoding of an uploaded one.

use std::io::{Cursor, Write};

use image::{ImageFormat, RgbImage};

/// Writes a square JPEG picture with the given number of pixels on each side.
///
/// # Errors
/// Fails if it cannot be encoded or written.
pub(crate) fn write(side: u32, mut to: impl Write) -> Result<(), String> {
    let picture = RgbImage::from_fn(side, side, |x, y| {
        // A gradient with some noise, which compresses about as well as a photograph.
        let noise = (x.wrapping_mul(7919) ^ y.wrapping_mul(6421)) % 32;
        let shade = |at: u32| (at * 224 / side + noise) as u8;
        image::Rgb([shade(x), shade(y), shade((x + y) / 2)])
    });
    let mut file = Cursor::new(Vec::new());
    picture
        .write_to(&mut file, ImageFormat::Jpeg)
        .map_err(|error| format!("no picture of {side} × {side} pixels: {error}"))?;
    to.write_all(file.get_ref()).map_err(|error| format!("the picture was not written: {error}"))
}

/// Decodes a JPEG picture, and returns its width and height. The decoded picture is dropped.
///
/// # Errors
/// Fails if the file is not a JPEG picture.
pub(crate) fn decode(file: &[u8]) -> Result<(u32, u32), String> {
    match image::load_from_memory_with_format(file, ImageFormat::Jpeg) {
        Ok(picture) => Ok((picture.width(), picture.height())),
        Err(error) => Err(format!("no picture: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_that_was_written_is_decoded() {
        let mut file = Vec::new();
        write(48, &mut file).unwrap();
        assert_eq!(decode(&file), Ok((48, 48)));
        assert!(decode(b"no picture").is_err());
    }
}
