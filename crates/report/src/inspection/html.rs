//! An inspection as one HTML file: the verdict, the chart, what pins memory, and the blocks in use.

use lowtide_model::inspection::Inspection;
use lowtide_model::pins::{BlockCensus, Pins};
use minijinja::{Value, context};

use super::origin;
use crate::html::{HtmlError, process_page};
use crate::owners::facts;
use crate::svg::{Picture, Theme, inspection_chart};
use crate::text::printable;
use crate::{blocks, pins};

/// Draws RSS by owner and what pins memory, for a file of its own.
pub fn chart(inspection: &Inspection) -> Picture {
    inspection_chart(inspection, Theme::Light)
}

/// Rules for this page.
const STYLE: &str = "\
main td { vertical-align: top; }\n\
main th.what, main td.what { min-width: 26em; text-align: left; white-space: normal; overflow-wrap: anywhere; }";

/// Renders an inspection.
///
/// # Errors
/// Fails if the template fails, which would be a defect of lowtide.
pub fn page(inspection: &Inspection) -> Result<String, HtmlError> {
    let observation = &inspection.observation;
    let verdict = &inspection.verdict;
    let lines = |texts: &[String]| texts.iter().map(|text| printable(text)).collect::<Vec<_>>();
    let context = context! {
        title => format!(
            "{}: {}",
            verdict.kind.name().replace('_', " "),
            printable(&observation.command.join(" "))
        ),
        pid => observation.pid,
        facts => lines(&facts(inspection)),
        saved => inspection.saved.as_ref().map(origin::sentence),
        because => lines(&verdict.because),
        chart => inspection_chart(inspection, Theme::Page).svg,
        pins => inspection.pins.as_ref().map(of_pins),
        blocks => inspection.blocks.as_ref().map(of_blocks),
        notes => lines(&observation.notes),
    };
    process_page(include_str!("../../assets/inspection.html"), STYLE, context)
}

fn of_pins(found: &Pins) -> Value {
    if let Some(sentence) = pins::little(found) {
        return context! { head => sentence };
    }
    let row = |group| context! { cells => pins::values(group).to_vec(), name => pins::name(group) };
    context! {
        head => pins::head(found),
        groups => found.groups.iter().map(row).collect::<Vec<Value>>(),
        gains => pins::gains(found),
        remedies => pins::remedies(found),
        notes => pins::beside(found),
    }
}

fn of_blocks(found: &BlockCensus) -> Value {
    let row = |group| {
        context! { cells => blocks::values(group, found).to_vec(), name => blocks::name(group) }
    };
    context! {
        head => blocks::head(found),
        groups => found.groups.iter().map(row).collect::<Vec<Value>>(),
        notes => found.notes.iter().map(|note| printable(note)).collect::<Vec<String>>(),
    }
}

#[cfg(test)]
mod tests {
    use lowtide_model::inspection::Observation;
    use lowtide_model::ledger::{Ledger, Owner};
    use lowtide_model::pins::{PinGroup, PinKind, PinSet};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn inspection() -> Inspection {
        let mut ledger = Ledger::default();
        ledger.add(Owner::Fragmented, 90 * MIB);
        ledger.add(Owner::Allocated, 10 * MIB);
        let group = |kind, name: &str, pinned_mib| PinGroup {
            kind,
            allocator: Some("glibc".to_owned()),
            size_bytes: Some([64, 64]),
            block_type: Some(name.to_owned()),
            age: None,
            stacks: Vec::new(),
            holder: Some("variable index".to_owned()),
            blocks: 1000,
            bytes: 64_000,
            pages: 900,
            pinned_bytes: pinned_mib * MIB,
            gain_bytes: 0,
            gain_free_bytes: 0,
            gain_with_previous_bytes: 80 * MIB,
            estimated: false,
            remedy: None,
        };
        let pins = Pins {
            pinned_bytes: 90 * MIB,
            blocks: 1200,
            groups: vec![
                group(PinKind::Blocks, "C++ Key<script>", 70),
                group(PinKind::Other, "", 20),
            ],
            sets: vec![PinSet {
                groups: vec![0],
                blocks: 1000,
                bytes: 64_000,
                gain_bytes: 80 * MIB,
                gain_free_bytes: 79 * MIB,
                gain_at_least_bytes: None,
                gain_at_most_bytes: 80 * MIB,
                remedies: vec!["change of code: a pool".to_owned()],
            }],
            ..Pins::default()
        };
        let command = vec!["server\x1b[31m".to_owned(), "<b>".to_owned()];
        let rss_bytes = ledger.total();
        let observation =
            Observation { pid: 4711, command, rss_bytes, ledger, ..Observation::default() };
        let mut found = lowtide_analysis::diagnose::diagnose(observation);
        found.pins = Some(pins);
        found
    }

    #[test]
    fn the_page_has_the_groups_their_joint_gain_and_the_remedy_and_escapes_the_target() {
        let page = page(&inspection()).unwrap();
        for text in ["90.0 MiB of free memory is pinned", "if 64 B C++ Key", "80.0 MiB more"] {
            assert!(page.contains(text), "{text}: {page}");
        }
        assert!(page.contains("change of code: a pool"), "{page}");
        assert!(!page.contains("Key<script>") && !page.contains('\x1b'), "{page}");
        assert!(!page.contains("<b>"), "{page}");
    }

    #[test]
    fn the_chart_has_a_bar_for_each_group_and_each_owner() {
        let svg = chart(&inspection()).svg;
        // Two owners, two groups, and the gain of one of them.
        assert_eq!(svg.matches("<rect x=").count(), 5, "{svg}");
        assert!(svg.contains("C++ Key&lt;script&gt;"), "{svg}");
        let none = Inspection { pins: None, ..inspection() };
        assert!(!chart(&none).svg.contains("What pins"));
    }
}
