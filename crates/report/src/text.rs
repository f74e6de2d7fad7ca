//! Text that is printed as it is: without control characters, in lines of a width, with grouped
//! digits.

pub use lowtide_model::text::{printable, printable_lines, steers};

/// Formats `1204` as `1,204`.
pub(crate) fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Breaks lines between words.
pub fn wrapped(text: &str, width: u16) -> String {
    let mut out = String::new();
    let mut column = 0;
    for word in printable(text).split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > usize::from(width) {
            out.push('\n');
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out
}
