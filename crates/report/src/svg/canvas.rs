//! A sheet of SVG, and its colours.

use std::fmt::Write as _;

use crate::scale::Scale;
use crate::text::{printable, shortened, steers};

/// The background that a picture is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Theme {
    /// Light, with a background of its own: for stand-alone files, and for PNG.
    Light,
    /// That of the page: no background, colours from the page's variables.
    Page,
}

/// Colours of treatments: the darker shade for resident memory, the lighter for the address space.
/// They differ in lightness, too, for readers with red-green colour blindness.
pub(crate) const PALETTE: [(&str, &str); 10] = [
    ("#1f6fb4", "#a9cdec"),
    ("#d1495b", "#f3b9c1"),
    ("#18896b", "#9fdcc6"),
    ("#8458b3", "#d0bce8"),
    ("#c47a09", "#f1cf96"),
    ("#0c8aa0", "#a3dde6"),
    ("#bf4f98", "#efbfdd"),
    ("#7d5b36", "#dcc7ac"),
    ("#5f8a1d", "#cae09c"),
    ("#5a6675", "#c4ccd6"),
];

/// The same for a dark background, on which resident memory has the brighter shade.
pub(crate) const PALETTE_ON_DARK: [(&str, &str); 10] = [
    ("#62b0ee", "#2f5a7d"),
    ("#f27c8a", "#7c3842"),
    ("#46cfa6", "#226350"),
    ("#b692e0", "#574073"),
    ("#f0ad45", "#765421"),
    ("#4cc8dd", "#235f69"),
    ("#ea86c8", "#733c60"),
    ("#c49c70", "#5c462f"),
    ("#a4cd5e", "#4b6226"),
    ("#a9b5c3", "#4b5561"),
];

/// The colour of connections, on light and on dark.
pub(crate) const CONNECTIONS: (&str, &str) = ("#3f9b0b", "#8fdc5c");

/// The colour of memory that the program reports as allocated, on light and on dark.
pub(crate) const INNER: (&str, &str) = ("#2f7fd0", "#5aa5ee");
/// The colour of the resident memory around it, on light and on dark.
pub(crate) const OUTER: (&str, &str) = ("#f2c230", "#c9a227");

/// A text in a picture.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Text {
    /// The position of its anchor: on the baseline, in pixels from the left and from the top.
    pub at: (f64, f64),
    /// The part of the text at the anchor: SVG's `start`, `middle` or `end`.
    pub anchor: &'static str,
    /// The font size, in pixels.
    pub size: f64,
    /// The colour, as `#rrggbb` or a variable of the page.
    pub colour: String,
    /// The text itself.
    pub text: String,
}

/// A picture, and its size in pixels.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    /// The SVG document.
    pub svg: String,
    /// Its width.
    pub width: f64,
    /// Its height.
    pub height: f64,
    /// The texts in it, for renderers without fonts.
    pub(crate) texts: Vec<Text>,
}

/// A sheet of SVG under construction.
pub(super) struct Canvas {
    body: String,
    texts: Vec<Text>,
    width: f64,
    height: f64,
    theme: Theme,
}

/// Font size by the class of a text, in pixels.
const SIZES: [(&str, f64); 5] =
    [("", 12.0), ("title", 19.0), ("head", 14.0), ("note", 12.0), ("axis", 11.0)];

const STYLE: &str = "\
text{font-family:'Ubuntu','Helvetica Neue',Arial,sans-serif;font-size:12px;fill:INK}\
.title{font-size:19px;font-weight:600}.head{font-size:14px;font-weight:600}\
.note{fill:FAINT}.axis{font-size:11px;fill:FAINT}\
.grid{stroke:GRID;stroke-width:1}.frame{stroke:FRAME;stroke-width:1;fill:none}";

impl Canvas {
    pub(super) fn new(width: f64, height: f64, theme: Theme) -> Self {
        Self { body: String::new(), texts: Vec::new(), width, height, theme }
    }

    pub(super) fn finish(self) -> Picture {
        let (grid, frame) = match self.theme {
            Theme::Light => ("#e6eaee", "#c3cbd3"),
            Theme::Page => ("var(--grid)", "var(--frame)"),
        };
        let style = STYLE
            .replace("INK", self.ink())
            .replace("FAINT", self.faint())
            .replace("GRID", grid)
            .replace("FRAME", frame);
        let background = match self.theme {
            Theme::Light => "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
            Theme::Page => "",
        };
        let svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" role=\"img\">\n<style>{style}</style>\n{background}{}</svg>\n",
            self.body,
            w = self.width,
            h = self.height,
        );
        Picture { svg, width: self.width, height: self.height, texts: self.texts }
    }

    /// Returns the colours of a place in the palette: for resident memory, and for the address
    /// space.
    pub(super) fn colours(&self, place: usize) -> (String, String) {
        let place = place % PALETTE.len();
        match self.theme {
            Theme::Light => (PALETTE[place].0.to_owned(), PALETTE[place].1.to_owned()),
            Theme::Page => (format!("var(--d{place})"), format!("var(--l{place})")),
        }
    }

    /// Returns the dashes of a line, which distinguish it once the palette repeats.
    pub(super) fn dashes(place: usize) -> &'static str {
        match place / PALETTE.len() {
            0 => "",
            1 => ";stroke-dasharray:9 3",
            _ => ";stroke-dasharray:3 3",
        }
    }

    /// Returns the colour of text, for marks that must be visible on any bar.
    pub(super) fn ink(&self) -> &'static str {
        match self.theme {
            Theme::Light => "#1c2733",
            Theme::Page => "var(--ink)",
        }
    }

    /// Returns the colour of secondary elements.
    fn faint(&self) -> &'static str {
        match self.theme {
            Theme::Light => "#5b6875",
            Theme::Page => "var(--faint)",
        }
    }

    /// Returns the colour of connections.
    pub(super) fn connections(&self) -> &'static str {
        match self.theme {
            Theme::Light => CONNECTIONS.0,
            Theme::Page => "var(--connections)",
        }
    }

    /// Returns the colour of memory that the program reports as allocated.
    pub(super) fn inner(&self) -> &'static str {
        match self.theme {
            Theme::Light => INNER.0,
            Theme::Page => "var(--inner)",
        }
    }

    /// Returns the colour of the resident memory around it.
    pub(super) fn outer(&self) -> &'static str {
        match self.theme {
            Theme::Light => OUTER.0,
            Theme::Page => "var(--outer)",
        }
    }

    pub(super) fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        self.text_at(x, y, class, "start", text);
    }

    pub(super) fn text_at(
        &mut self,
        x: f64,
        y: f64,
        class: &str,
        anchor: &'static str,
        text: &str,
    ) {
        let _ = writeln!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\" text-anchor=\"{anchor}\">{}</text>",
            escaped(text)
        );
        let colour = if matches!(class, "note" | "axis") { self.faint() } else { self.ink() };
        self.note_text((x, y), anchor, class, colour, text);
    }

    pub(super) fn coloured_text(
        &mut self,
        x: f64,
        y: f64,
        anchor: &'static str,
        colour: &str,
        text: &str,
    ) {
        let _ = writeln!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" style=\"fill:{colour};font-weight:600\">{}</text>",
            escaped(text)
        );
        self.note_text((x, y), anchor, "", colour, text);
    }

    fn note_text(
        &mut self,
        at: (f64, f64),
        anchor: &'static str,
        class: &str,
        colour: &str,
        text: &str,
    ) {
        let size = SIZES.iter().find(|(of, _)| *of == class).map_or(SIZES[0].1, |(_, size)| *size);
        let text = printable(text);
        self.texts.push(Text { at, anchor, size, colour: colour.to_owned(), text });
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), attributes: &str) {
        let _ = writeln!(
            self.body,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" {attributes}/>",
            from.0, from.1, to.0, to.1
        );
    }

    pub(super) fn rect(&mut self, area: [f64; 4], style: &str, title: &str) {
        let [x, y, w, h] = area;
        let title = if title.is_empty() {
            String::new()
        } else {
            format!("<title>{}</title>", escaped(title))
        };
        let _ = writeln!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" rx=\"2\" style=\"{style}\">{title}</rect>"
        );
    }

    /// Draws a line through points, each of which is a value on either scale.
    pub(super) fn path(&mut self, points: &[(f64, f64)], x: Scale, y: Scale, style: &str) {
        if points.is_empty() {
            return;
        }
        let d = line_through(points, x, y);
        let _ = writeln!(self.body, "<path d=\"{d}\" style=\"fill:none;{style}\"/>");
    }

    /// Fills the area between a line and the bottom of the scale.
    pub(super) fn area(&mut self, points: &[(f64, f64)], x: Scale, y: Scale, style: &str) {
        let (Some(first), Some(last)) = (points.first(), points.last()) else { return };
        let bottom = y.at(y.low);
        let d = format!(
            "{}L{:.1} {bottom:.1}L{:.1} {bottom:.1}Z",
            line_through(points, x, y),
            x.at(last.0),
            x.at(first.0)
        );
        let _ = writeln!(self.body, "<path d=\"{d}\" style=\"{style}\"/>");
    }

    /// Clips the following elements to an area.
    pub(super) fn clipped(&mut self, area: [f64; 4], draw: impl FnOnce(&mut Self)) {
        let [x, y, w, h] = area;
        // A page may contain several pictures, in which equal names would mean the same area.
        let id = format!("clip-{x:.0}-{y:.0}-{w:.0}-{h:.0}");
        let _ = writeln!(
            self.body,
            "<clipPath id=\"{id}\"><rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\"/></clipPath>\n<g clip-path=\"url(#{id})\">"
        );
        draw(self);
        self.body.push_str("</g>\n");
    }
}

fn line_through(points: &[(f64, f64)], x: Scale, y: Scale) -> String {
    let mut d = String::with_capacity(points.len() * 12);
    for (place, point) in points.iter().enumerate() {
        let sign = if place == 0 { 'M' } else { 'L' };
        let _ = write!(d, "{sign}{:.1} {:.1}", x.at(point.0), y.at(point.1));
    }
    d
}

/// Shortens a text to a number of pixels, at `letter` pixels for each letter.
pub(super) fn fitted(text: &str, pixels: f64, letter: f64) -> String {
    let room = (pixels / letter).max(2.0) as usize;
    shortened(text, room)
}

/// Escapes untrusted text as part of a document.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML permits no other control characters, not even escaped.
            c if steers(c) => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
