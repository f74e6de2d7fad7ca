//! A table whose columns are as wide as their content.

use crate::screen::{Screen, dim};

/// Formats a table. The first column begins at the left, the others end at the right. Columns are
/// two spaces apart, or one if the table is too wide for the screen otherwise.
pub(crate) fn columns(heads: &[&str], rows: &[Vec<String>], screen: Screen) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heads[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let whole = widths.iter().sum::<usize>() + 2 * heads.len();
    let gap = if whole > usize::from(screen.width) { 1 } else { 2 };
    let line = |cells: &[&str]| {
        let cells = cells.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| match column {
            0 => format!(" {cell:<width$}"),
            _ => format!("{:gap$}{cell:>width$}", ""),
        });
        cells.collect::<String>().trim_end().to_owned()
    };
    let mut out = format!("{}\n", dim(&line(heads), screen));
    for row in rows {
        let cells: Vec<&str> = row.iter().map(String::as_str).collect();
        out += &format!("{}\n", line(&cells));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_content_and_closer_on_a_narrow_screen() {
        let rows = [["0", "1,204", "9"], ["12", "7", "1.00 MiB"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let heads = ["arena", "blocks", "free"];
        let screen = Screen { width: 80, colour: false };
        assert_eq!(
            columns(&heads, &rows, screen),
            " arena  blocks      free\n 0       1,204         9\n 12          7  1.00 MiB\n"
        );
        let narrow = Screen { width: 22, colour: false };
        assert_eq!(
            columns(&heads, &rows, narrow),
            " arena blocks     free\n 0      1,204        9\n 12         7 1.00 MiB\n"
        );
    }
}
