//! An inspection as bars: RSS by owner, and what pins its fragmented memory.

use lowtide_model::bytes::Human;
use lowtide_model::inspection::Inspection;
use lowtide_model::pins::{PinGroup, PinKind, Pins};

use super::canvas::{Canvas, Picture, Theme, fitted};
use super::{GAP, MARGIN, WIDTH};
use crate::pins::{little, name};
use crate::scale::{Scale, byte_label, byte_ticks};
use crate::text::printable;

/// Approximate width of a letter of a label.
const LETTER: f64 = 6.4;
const NAMES: f64 = 400.0;
const RIGHT: f64 = 110.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 24.0;
const BAR: f64 = 16.0;
const ROW: f64 = 24.0;
/// Colours of bars, as places in the palette: owners, shares of pinned memory, and gains.
const OWNERS: usize = 0;
const PINS: usize = 4;
const GAINS: usize = 2;

/// A named amount, and a second one that is drawn as a thin bar below it.
struct Bar {
    name: String,
    bytes: u64,
    about: &'static str,
    below: Option<u64>,
}

/// Draws an inspection.
pub(crate) fn chart(found: &Inspection, theme: Theme) -> Picture {
    let owners = owners(found);
    let pins = found.pins.as_ref().filter(|pins| little(pins).is_none()).map(bars);
    let charts = std::iter::once(&owners).chain(&pins);
    let height = charts.map(|bars| height(bars)).sum::<f64>() + pins.iter().len() as f64 * GAP;
    let mut canvas = Canvas::new(WIDTH, height + 2.0 * MARGIN, theme);
    let heading = format!("RSS by owner: {}", Human(found.observation.rss_bytes));
    draw(&mut canvas, &heading, "", &owners, [OWNERS; 2], MARGIN);
    if let Some(pins) = pins {
        let note = "thin: pages that become free with this group and all above it";
        let top = MARGIN + self::height(&owners) + GAP;
        draw(&mut canvas, "What pins free memory", note, &pins, [PINS, GAINS], top);
    }
    canvas.finish()
}

fn owners(found: &Inspection) -> Vec<Bar> {
    let mut rows: Vec<_> = found.observation.ledger.rows().to_vec();
    rows.retain(|row| row.bytes > 0);
    rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    let bar = |row: &lowtide_model::ledger::Row| Bar {
        name: format!(
            "{}: {}",
            row.owner.name().replace('_', " "),
            crate::owners::meaning(found, row)
        ),
        bytes: row.bytes,
        about: if row.estimated { "≈ " } else { "" },
        below: None,
    };
    rows.iter().map(bar).collect()
}

fn bars(pins: &Pins) -> Vec<Bar> {
    let bar = |group: &PinGroup| Bar {
        name: name(group),
        bytes: group.pinned_bytes,
        about: if group.estimated { "≈ " } else { "" },
        below: (group.kind == PinKind::Blocks).then_some(group.gain_with_previous_bytes),
    };
    pins.groups.iter().map(bar).collect()
}

fn height(bars: &[Bar]) -> f64 {
    TOP + BOTTOM + bars.len() as f64 * ROW
}

fn draw(
    canvas: &mut Canvas,
    heading: &str,
    note: &str,
    bars: &[Bar],
    colours: [usize; 2],
    top: f64,
) {
    let [(colour, _), (below, _)] = colours.map(|place| canvas.colours(place));
    let right = WIDTH - MARGIN;
    canvas.text(MARGIN, top + 12.0, "head", heading);
    canvas.text_at(right, top + 12.0, "note", "end", note);
    let all = bars.iter().flat_map(|bar| [bar.bytes, bar.below.unwrap_or(0)]);
    let highest = all.max().unwrap_or(0).max(1) as f64;
    let x = Scale { low: 0.0, high: highest * 1.02, from: MARGIN + NAMES, to: right - RIGHT };
    let bottom = top + height(bars) - BOTTOM;
    for tick in byte_ticks(x.high, 6) {
        let at = x.at(tick);
        canvas.line((at, top + TOP - 6.0), (at, bottom), "class=\"grid\"");
        canvas.text_at(at, bottom + 15.0, "axis", "middle", &byte_label(tick, x.high));
    }
    for (place, bar) in bars.iter().enumerate() {
        let y = top + TOP + place as f64 * ROW;
        let name = printable(&bar.name);
        canvas.text_at(
            x.from - 8.0,
            y + BAR - 4.0,
            "axis",
            "end",
            &fitted(&name, NAMES - 12.0, LETTER),
        );
        let text = format!("{}{}", bar.about, Human(bar.bytes));
        let end = x.at(bar.bytes as f64);
        let thin = if bar.below.is_some() { 4.0 } else { 0.0 };
        let title = format!("{name}: {text}");
        let area = [x.from, y, (end - x.from).max(1.0), BAR - thin];
        canvas.rect(area, &format!("fill:{colour}"), &title);
        if let Some(bytes) = bar.below.filter(|bytes| *bytes > 0) {
            let title = format!("gain with all above: {}{}", bar.about, Human(bytes));
            let area = [x.from, y + BAR - thin, x.at(bytes as f64) - x.from, thin];
            canvas.rect(area, &format!("fill:{below}"), &title);
        }
        canvas.text(end + 6.0, y + BAR - thin - 3.0, "axis", &text);
    }
}
