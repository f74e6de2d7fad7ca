//! A picture as PNG.

use std::sync::Arc;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};
use thiserror::Error;

use crate::svg::Picture;

/// Why a picture could not be turned into PNG.
#[derive(Debug, Error)]
#[error("the picture could not be drawn: {0}")]
pub struct PngError(String);

/// For screens that show two pixels where an older one shows one.
const PIXELS: f32 = 2.0;

/// Draws a picture. The letters are those of a font that comes with the binary: a server often has
/// none.
///
/// # Errors
/// When the picture is too large for memory.
pub fn render(picture: &Picture) -> Result<Vec<u8>, PngError> {
    let mut fonts = fontdb::Database::new();
    fonts.load_font_data(epaint_default_fonts::UBUNTU_LIGHT.to_vec());
    fonts.set_sans_serif_family("Ubuntu");
    let options = Options { fontdb: Arc::new(fonts), ..Options::default() };
    let error = |e: &dyn std::fmt::Display| PngError(e.to_string());
    let tree = Tree::from_str(&picture.svg, &options).map_err(|e| error(&e))?;
    let size = tree.size();
    let (width, height) =
        ((size.width() * PIXELS).ceil() as u32, (size.height() * PIXELS).ceil() as u32);
    let mut pixels = Pixmap::new(width, height).ok_or_else(|| error(&"it is too large"))?;
    resvg::render(&tree, Transform::from_scale(PIXELS, PIXELS), &mut pixels.as_mut());
    pixels.encode_png().map_err(|e| error(&e))
}
