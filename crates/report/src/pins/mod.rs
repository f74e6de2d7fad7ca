//! What pins fragmented memory, for people: the groups of blocks, and the sets that would free it.

mod samples;

use std::fmt::Write as _;

use lowtide_analysis::pins::holders::SMALL_SET;
use lowtide_model::bytes::Human;
use lowtide_model::leaks::LeakStack;
use lowtide_model::pins::{BlockAge, PinGroup, PinKind, PinSet, Pins};

use crate::screen::{Screen, bold, dim, hanging};
use crate::stacks;
use crate::text::{printable, thousands, wrapped};

pub use samples::{folded, folded_blocks, pprof, pprof_blocks};

/// Amount of pinned memory below which its groups are not shown, in bytes.
const MIN_PINNED: u64 = 1 << 20;

/// Formats the pins of a process.
pub fn render(pins: &Pins, screen: Screen) -> String {
    if let Some(sentence) = little(pins) {
        return format!("\n{}\n", wrapped(&format!("pins: {sentence}"), screen.width));
    }
    let mut out = format!("\n{}\n", bold(&wrapped(&head(pins), screen.width), screen));
    let heads = ["pins", "blocks", "bytes", "pages", "alone", "with all"].map(str::to_owned);
    let _ = writeln!(out, "{}", dim(&format!("{}block", cells(&heads, screen)), screen));
    for group in &pins.groups {
        out += &row(group, screen);
    }
    out.push('\n');
    for sentence in gains(pins) {
        let _ = writeln!(out, "{}", wrapped(&sentence, screen.width));
    }
    for remedy in remedies(pins) {
        out += &hanging(" - ", &remedy, screen);
    }
    for sentence in beside(pins) {
        let _ = writeln!(out, "{}", wrapped(&sentence, screen.width));
    }
    out
}

/// Returns the sentence for a process that has little pinned memory, or of which it is not known.
pub(crate) fn little(pins: &Pins) -> Option<String> {
    let little = format!(
        "only {} of free memory is on pages with blocks in use: there is little to gain",
        Human(pins.pinned_bytes)
    );
    let sentence = if pins.blocks == 0 { pins.notes.last() } else { None };
    (pins.pinned_bytes < MIN_PINNED).then(|| printable(sentence.unwrap_or(&little)))
}

/// Returns the sentence with all pinned memory.
pub(crate) fn head(pins: &Pins) -> String {
    let about = if pins.estimated { "≈" } else { "" };
    format!(
        "{about}{} of free memory is pinned by {about}{} blocks in use on the same pages: no release returns it",
        Human(pins.pinned_bytes),
        thousands(pins.blocks)
    )
}

/// Returns a sentence for each set of groups.
pub(crate) fn gains(pins: &Pins) -> Vec<String> {
    pins.sets.iter().map(|set| sentence(set, pins)).collect()
}

fn row(group: &PinGroup, screen: Screen) -> String {
    let row = hanging(&cells(&values(group), screen), &name(group), screen);
    row + &code(&group.stacks, group.age, screen)
}

/// Formats the code that allocates the blocks of a group.
pub(crate) fn code(stacks: &[LeakStack], age: Option<BlockAge>, screen: Screen) -> String {
    /// Indentation, in columns.
    const INDENT: &str = "            ";
    let mut out = String::new();
    for stack in stacks::shown(stacks) {
        let title = code_title(stack, age);
        out += &hanging(INDENT, &title, screen);
        for line in stacks::lines(stack) {
            out += &hanging(&format!("{INDENT}  "), &line, screen);
        }
    }
    out
}

/// Formats the summary of a stack. The samples are of blocks that are younger than the watch.
fn code_title(stack: &LeakStack, age: Option<BlockAge>) -> String {
    match age {
        Some(BlockAge::BeforeWatch) => format!("later ones were {}", stacks::title(stack)),
        Some(BlockAge::SinceWatch | BlockAge::Unknown) | None => stacks::title(stack),
    }
}

/// Returns the values of a group: its share, its blocks and their bytes, its pages, and its gain
/// alone and with all groups before it.
pub(crate) fn values(group: &PinGroup) -> [String; 6] {
    let about = if group.estimated { "≈" } else { "" };
    let bytes = |bytes: u64| format!("{about}{}", Human(bytes));
    let is_listed = group.kind == PinKind::Blocks;
    let gain = |gain: u64| if is_listed { bytes(gain) } else { String::new() };
    let alone = match group.kind {
        PinKind::Blocks | PinKind::Cached => bytes(group.gain_bytes),
        PinKind::Other | PinKind::Fixed => String::new(),
    };
    let blocks = if group.blocks > 0 { thousands(group.blocks) } else { String::new() };
    let pages = if group.pages > 0 { thousands(group.pages) } else { String::new() };
    [
        bytes(group.pinned_bytes),
        blocks,
        bytes(group.bytes),
        pages,
        alone,
        gain(group.gain_with_previous_bytes),
    ]
}

/// Minimum width of a screen for all columns. A narrow one has no own bytes and no pages.
const ALL_COLUMNS: u16 = 100;

/// Formats the cells of a line before the name of the blocks.
fn cells([pins, blocks, bytes, pages, alone, with_all]: &[String; 6], screen: Screen) -> String {
    let own = match screen.width < ALL_COLUMNS {
        true => String::new(),
        false => format!("{bytes:>9}  {pages:>9}  "),
    };
    format!(" {pins:>9}  {blocks:>10}  {own}{alone:>9}  {with_all:>9}  ")
}

/// Names the blocks of a group.
pub(crate) fn name(group: &PinGroup) -> String {
    match group.kind {
        PinKind::Cached => return "free blocks in the caches of threads".to_owned(),
        PinKind::Other => return "all other blocks".to_owned(),
        PinKind::Fixed => {
            return "the allocator's own, locked memory, memory that was not read".to_owned();
        }
        PinKind::Blocks => {}
    }
    let size = group.size_bytes.map_or(String::new(), sizes);
    described(size, &group.block_type, &group.allocator, &group.holder, group.age)
}

/// Describes blocks by their size, type, allocator and holder.
pub(crate) fn described(
    size: String,
    block_type: &Option<String>,
    allocator: &Option<String>,
    holder: &Option<String>,
    age: Option<BlockAge>,
) -> String {
    let holder = holder.as_ref().map(|holder| format!("held by {holder}"));
    let age = age.map(|age| match age {
        BlockAge::BeforeWatch => "older than the watch".to_owned(),
        BlockAge::SinceWatch => "new in the watch".to_owned(),
        BlockAge::Unknown => "replaced or changed in the watch".to_owned(),
    });
    let parts = [Some(size), block_type.clone(), allocator.clone(), holder, age];
    printable(&parts.into_iter().flatten().collect::<Vec<String>>().join(", "))
}

/// Formats the sizes of blocks.
fn sizes([low, high]: [u64; 2]) -> String {
    if low == high { size(low) } else { format!("{} to {}", size(low), size(high)) }
}

/// Formats the size of a block: exactly, if it is small.
pub(crate) fn size(bytes: u64) -> String {
    if bytes < 10_000 { format!("{} B", thousands(bytes)) } else { Human(bytes).to_string() }
}

fn sentence(set: &PinSet, pins: &Pins) -> String {
    let about = if pins.estimated { "≈" } else { "" };
    let members: Vec<String> =
        set.groups.iter().filter_map(|place| pins.groups.get(*place)).map(short_name).collect();
    let held = common_holder(set, pins)
        .map_or(String::new(), |holder| format!(", most of them held by {},", printable(holder)));
    let bounds = match set.gain_at_least_bytes {
        Some(least) if Human(least).to_string() == Human(set.gain_bytes).to_string() => {
            String::new()
        }
        Some(least) => format!(" (at least {}: caches can hold some back)", Human(least)),
        None => " (caches can hold back some or all of it)".to_owned(),
    };
    format!(
        "if {} ({about}{} blocks, {about}{}){held} were freed, {about}{} more could be returned{bounds}",
        printable(&members.join(" and ")),
        thousands(set.blocks),
        Human(set.bytes),
        Human(set.gain_bytes),
    )
}

/// Returns what holds all groups of a set, if it has several.
fn common_holder<'p>(set: &PinSet, pins: &'p Pins) -> Option<&'p str> {
    let holder = |place: &usize| pins.groups.get(*place)?.holder.as_deref();
    let first = set.groups.first().and_then(holder)?;
    let is_common = set.groups.iter().all(|place| holder(place) == Some(first));
    (set.groups.len() > 1 && is_common).then_some(first)
}

/// Returns what would cure the sets, each remedy once.
pub(crate) fn remedies(pins: &Pins) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for remedy in pins.sets.iter().flat_map(|set| &set.remedies) {
        let remedy = printable(remedy);
        if !all.contains(&remedy) {
            all.push(remedy);
        }
    }
    all
}

fn short_name(group: &PinGroup) -> String {
    let size = group.size_bytes.map_or(String::new(), sizes);
    match &group.block_type {
        Some(name) => format!("{size} {name}"),
        None => size,
    }
}

/// Returns sentences about the values.
pub(crate) fn beside(pins: &Pins) -> Vec<String> {
    let mut found = Vec::new();
    if pins.crowded_bytes > 0 {
        found.push(format!(
            "{} of it is on pages that more than {SMALL_SET} groups share: freeing a few groups returns none of that",
            Human(pins.crowded_bytes)
        ));
    }
    if pins.sets.is_empty() {
        found.push("no small set of groups pins much of it".to_owned());
    }
    if pins.read_share < 1.0 {
        found.push(format!(
            "the heap has very many blocks: {:.0} % of it was read, and the values are scaled",
            pins.read_share * 100.0
        ));
    }
    found.extend(pins.notes.iter().map(|note| format!("note: {}", printable(note))));
    if pins.unread_bytes > 0 {
        found.push(format!(
            "{} changed too fast, or could not be read: the values are estimates",
            Human(pins.unread_bytes)
        ));
    }
    found
}
