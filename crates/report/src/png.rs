//! A picture as PNG.

use resvg::tiny_skia::{
    Color, FillRule, Paint, Path, PathBuilder, Pixmap, PixmapMut, Shader, Transform,
};
use resvg::usvg::{Options, Tree};
use thiserror::Error;
use ttf_parser::{Face, GlyphId, OutlineBuilder};

use crate::svg::{Picture, Text};

/// Why a picture could not be converted to PNG.
#[derive(Debug, Error)]
#[error("the image could not be drawn: {0}")]
pub struct PngError(String);

/// Pixels for each unit of the picture, for screens of high resolution.
const PIXELS: f32 = 2.0;

/// Renders a picture. The letters are those of a font in the binary, because a server often has
/// none.
///
/// # Errors
/// Fails if the picture is too large for memory.
pub fn render(picture: &Picture) -> Result<Vec<u8>, PngError> {
    let error = |e: &dyn std::fmt::Display| PngError(e.to_string());
    let face =
        Face::parse(epaint_default_fonts::UBUNTU_LIGHT, 0).map_err(|e| PngError(e.to_string()))?;
    // Texts are rendered separately: resvg's own text engine takes a tenth of the time to build
    // lowtide.
    let tree = Tree::from_str(&picture.svg, &Options::default()).map_err(|e| error(&e))?;
    let size = tree.size();
    let (width, height) =
        ((size.width() * PIXELS).ceil() as u32, (size.height() * PIXELS).ceil() as u32);
    let mut pixels = Pixmap::new(width, height).ok_or_else(|| error(&"it is too large"))?;
    resvg::render(&tree, Transform::from_scale(PIXELS, PIXELS), &mut pixels.as_mut());
    for text in &picture.texts {
        draw(text, &face, &mut pixels.as_mut());
    }
    pixels.encode_png().map_err(|e| error(&e))
}

/// Renders a text, letter by letter.
fn draw(text: &Text, face: &Face<'_>, pixels: &mut PixmapMut<'_>) {
    let Some(path) = outline(text, face) else { return };
    let [red, green, blue] = rgb(&text.colour).unwrap_or_default();
    let shader = Shader::SolidColor(Color::from_rgba8(red, green, blue, u8::MAX));
    let paint = Paint { shader, anti_alias: true, ..Paint::default() };
    let scale = Transform::from_scale(PIXELS, PIXELS);
    pixels.fill_path(&path, &paint, FillRule::Winding, scale, None);
}

/// Returns the outlines of all letters of a text; `None` if there is nothing to draw.
fn outline(text: &Text, face: &Face<'_>) -> Option<Path> {
    let scale = text.size as f32 / f32::from(face.units_per_em());
    // As in SVG, consecutive spaces are one.
    let words: Vec<&str> = text.text.split_whitespace().collect();
    // A character that the font does not have is drawn as the font's empty box.
    let glyphs: Vec<GlyphId> =
        words.join(" ").chars().map(|c| face.glyph_index(c).unwrap_or_default()).collect();
    let advance = |glyph: &GlyphId| scale * f32::from(face.glyph_hor_advance(*glyph).unwrap_or(0));
    let width: f32 = glyphs.iter().map(advance).sum();
    let before = match text.anchor {
        "middle" => width / 2.0,
        "end" => width,
        _ => 0.0,
    };
    let (x, y) = (text.at.0 as f32 - before, text.at.1 as f32);
    let mut pen = Pen { path: PathBuilder::new(), x, y, scale };
    for glyph in &glyphs {
        face.outline_glyph(*glyph, &mut pen);
        pen.x += advance(glyph);
    }
    pen.path.finish()
}

/// Parses a colour `#rrggbb`.
fn rgb(colour: &str) -> Option<[u8; 3]> {
    let digits = colour.strip_prefix('#')?;
    let part = |place: usize| u8::from_str_radix(digits.get(place..place + 2)?, 16).ok();
    Some([part(0)?, part(2)?, part(4)?])
}

/// Returns the outline of a letter at a position on the baseline. A font measures upwards, in units
/// of its own.
struct Pen {
    path: PathBuilder,
    x: f32,
    y: f32,
    scale: f32,
}

impl Pen {
    fn at(&self, x: f32, y: f32) -> (f32, f32) {
        (self.x + x * self.scale, self.y - y * self.scale)
    }
}

impl OutlineBuilder for Pen {
    fn move_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let ((x1, y1), (x, y)) = (self.at(x1, y1), self.at(x, y));
        self.path.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let ((x1, y1), (x2, y2), (x, y)) = (self.at(x1, y1), self.at(x2, y2), self.at(x, y));
        self.path.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.path.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(anchor: &'static str, text: &str) -> Text {
        Text {
            at: (100.0, 50.0),
            anchor,
            size: 12.0,
            colour: "#d1495b".to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn text_is_placed_on_its_baseline_and_aligned_to_its_anchor() {
        let face = Face::parse(epaint_default_fonts::UBUNTU_LIGHT, 0).unwrap();
        let bounds = |anchor| outline(&text(anchor, "HH"), &face).unwrap().bounds();
        let (start, middle, end) = (bounds("start"), bounds("middle"), bounds("end"));
        assert!((start.bottom() - 50.0).abs() < 0.1 && start.top() > 38.0, "{start:?}");
        assert!(start.left() >= 100.0 && end.right() <= 100.0);
        assert!(middle.left() < 100.0 && middle.right() > 100.0);
        assert!(outline(&text("start", " "), &face).is_none());
        // The box of a character that the font does not have.
        assert!(outline(&text("start", "漢"), &face).is_some());
    }

    #[test]
    fn picture_text_is_drawn_in_its_colour() {
        let svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"200\" height=\"60\"></svg>";
        let picture = |texts| Picture { svg: svg.to_owned(), width: 200.0, height: 60.0, texts };
        let drawn = |texts| Pixmap::decode_png(&render(&picture(texts)).unwrap()).unwrap();
        let has_colour = |pixels: &Pixmap| {
            let red = Color::from_rgba8(0xd1, 0x49, 0x5b, u8::MAX).premultiply().to_color_u8();
            pixels.pixels().contains(&red)
        };
        assert!(has_colour(&drawn(vec![text("start", "settled")])));
        assert!(!has_colour(&drawn(Vec::new())));
    }
}
