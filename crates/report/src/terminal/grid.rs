//! A table as text, in the widest form that fits on the terminal.

use std::collections::BTreeSet;

use comfy_table::{
    Attribute, Cell, CellAlignment, Color, ContentArrangement, ContentLineStyle, LineStyle,
    Table as Grid, TableStyle,
};

use crate::screen::Screen;
use crate::table::{Cell as TableCell, MEAN_EXCESS, Table};
use crate::text::{printable, wrapped};

/// Formats a table in the widest form that fits.
pub(super) fn grid(table: &Table, screen: Screen) -> String {
    let full = drawn(table, screen, &|_, cell| cell.full.clone());
    let fits = |text: &str| {
        let widest = text.lines().map(|l| visible(l).chars().count()).max().unwrap_or(0);
        widest <= usize::from(screen.width)
    };
    let without_excess = |head: &str, cell: &TableCell| -> String {
        if head == MEAN_EXCESS { cell.short.clone() } else { cell.full.clone() }
    };
    let mut out = full;
    if !fits(&out) {
        out = drawn(table, screen, &without_excess);
    }
    if !fits(&out) {
        out = drawn(table, screen, &|_, cell| cell.short.clone());
    }
    // Still too wide: shorten the names, then leave out the least informative columns, from the
    // second on.
    let mut narrow = table.clone();
    if !fits(&out) {
        let most = usize::from(screen.width) / 3;
        let cells = || narrow.rows.iter().filter_map(|row| row.cells.first());
        let names = cut_apart(&cells().map(|cell| cell.short.as_str()).collect::<Vec<_>>(), most);
        let cells = narrow.rows.iter_mut().filter_map(|row| row.cells.first_mut());
        cells.zip(names).for_each(|(cell, name)| cell.short = name);
        out = drawn(&narrow, screen, &|_, cell| cell.short.clone());
    }
    while !fits(&out) && narrow.heads.len() > 3 {
        let least = [
            "baseline",
            "per connection",
            MEAN_EXCESS,
            "latency",
            "load time",
            "mean",
            "50 %",
            "90 %",
            "peak",
            // Owners of a ledger that no allocator affects.
            "program data",
            "stacks",
            "shared",
            "files",
            "rest",
            "cached",
        ];
        let place = least.iter().find_map(|l| narrow.heads.iter().position(|h| h == l));
        let place = place.unwrap_or(1);
        narrow.heads.remove(place);
        for row in &mut narrow.rows {
            row.cells.remove(place);
        }
        out = drawn(&narrow, screen, &|_, cell| cell.short.clone());
    }
    out += &format!("{}\n", wrapped(&table.caption, screen.width));
    for row in &table.rows {
        if let Some(warning) = &row.warning {
            let name = row.cells.first().map_or("", |c| c.full.as_str());
            out += &format!("{}\n", wrapped(&format!("! {name}: {warning}"), screen.width));
        }
    }
    out
}

/// Shortens names to `most` characters. They are cut in the middle, because they may end with a
/// policy or an event; or elsewhere, if more of them then remain distinct.
fn cut_apart(names: &[&str], most: usize) -> Vec<String> {
    let all = |begin: usize| names.iter().map(|name| cut(name, most, begin)).collect::<Vec<_>>();
    let different = |names: &[String]| names.iter().collect::<BTreeSet<_>>().len();
    let middle = all(most.saturating_sub(1) / 2);
    // Of the cuts with the most distinct names, the last one is taken.
    let tried = (0..most).map(all).chain([middle]);
    tried.max_by_key(|names| different(names)).unwrap_or_default()
}

/// Shortens a name to `most` characters: `begin` from its start, the others from its end.
fn cut(name: &str, most: usize, begin: usize) -> String {
    let name: Vec<char> = name.chars().collect();
    if name.len() <= most {
        return name.into_iter().collect();
    }
    let end = most.saturating_sub(1 + begin);
    name[..begin].iter().chain(&['…']).chain(&name[name.len() - end..]).collect()
}

fn drawn(table: &Table, screen: Screen, text: &dyn Fn(&str, &TableCell) -> String) -> String {
    let mut grid = Grid::new();
    grid.load_style(
        TableStyle::new()
            .header_separator(LineStyle::none().fill('─').junction('─'))
            .header_lines(ContentLineStyle::none())
            .content_lines(ContentLineStyle::none()),
    )
    .set_content_arrangement(ContentArrangement::Disabled);
    if screen.colour {
        grid.enforce_styling();
    } else {
        grid.force_no_tty();
    }
    grid.set_header(
        table.heads.iter().map(|h| Cell::new(printable(h)).add_attribute(Attribute::Dim)),
    );
    for row in &table.rows {
        let cells = row.cells.iter().zip(&table.heads).map(|(cell, head)| {
            let cell = Cell::new(printable(&text(head, cell)));
            match (&row.warning, row.recommended) {
                (Some(_), _) => cell.fg(Color::Yellow),
                (None, true) => cell.fg(Color::Green),
                (None, false) => cell,
            }
        });
        grid.add_row(cells);
    }
    for column in grid.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    grid.to_string().lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Returns a line without the escape sequences of its colours.
fn visible(line: &str) -> String {
    let mut out = String::new();
    let mut parts = line.split('\x1b');
    out.push_str(parts.next().unwrap_or_default());
    for part in parts {
        out.push_str(part.split_once('m').map_or("", |(_, rest)| rest));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_shortened_in_the_middle_and_stay_distinct() {
        let names = |all: &[&str]| cut_apart(all, 26);
        let name = "glibc/node-24.21.0 + release after a collection";
        let (peak, settled) = (format!("{name}, peak"), format!("{name}, settled"));
        let short = ["glibc/node-2…lection, peak", "glibc/node-2…tion, settled", "glibc"];
        assert_eq!(names(&[&peak, &settled, "glibc"]), short);
        let alike = names(&["glibc 2.36/tasks-runtime-each", "glibc 2.36/tcp-runtime-each"]);
        assert!(alike[0] != alike[1] && alike.iter().all(|n| n.chars().count() == 26), "{alike:?}");
    }
}
