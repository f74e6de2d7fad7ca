//! Translates the contract between lowtide and its code in the target to Rust: the numbers of
//! `stub/shared.h`, and the fields, operations and calls of `stub/contract.def`.

use std::collections::HashMap;
use std::fmt::Write;

/// A line of `contract.def`: `KIND(words)`, with the comment before it.
struct Entry<'t> {
    doc: String,
    kind: &'t str,
    words: Vec<&'t str>,
}

/// The contract: its entries, and the numbers of the header by name.
pub(crate) struct Contract<'t> {
    entries: Vec<Entry<'t>>,
    numbers: Vec<(&'t str, &'t str)>,
}

/// A field of the block: its offset, the size of one of its words, and their number if it is an
/// array.
struct Field<'t> {
    doc: &'t str,
    name: &'t str,
    offset: u64,
    kind: &'t str,
    count: Option<u64>,
}

impl<'t> Contract<'t> {
    /// Reads the header and the contract.
    pub(crate) fn parse(header: &'t str, contract: &'t str) -> Self {
        let number = |line: &'t str| {
            let mut words = line.strip_prefix("#define ")?.split_ascii_whitespace();
            let (name, value) = (words.next()?, words.next()?);
            value.starts_with(|c: char| c.is_ascii_digit()).then_some((name, value))
        };
        let numbers = header.lines().filter_map(number).collect();
        Self { entries: entries(contract), numbers }
    }

    /// Returns the Rust code.
    pub(crate) fn rust(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.numbers {
            let (digits, kind) = match value.strip_suffix('u') {
                Some(digits) => (digits, "u32"),
                None => (*value, "u64"),
            };
            let _ = writeln!(text, "pub(crate) const {name}: {kind} = {digits};");
        }
        let (fields, end) = self.fields();
        text.push_str(
            "/// The fields of the block.\npub(crate) mod field {\n    use super::Field;\n",
        );
        for Field { doc, name, offset, kind, count } in fields {
            let kind = count.map_or(kind.to_owned(), |count| format!("[{kind}; {count}]"));
            let name = name.to_uppercase();
            if !doc.is_empty() {
                let _ = writeln!(text, "    /// {doc}");
            }
            let _ =
                writeln!(text, "    pub(crate) const {name}: Field<{kind}> = Field::at({offset});");
        }
        text.push_str("}\n");
        let _ = writeln!(text, "/// Offset of the operations.\npub(crate) const OPS: u64 = {end};");
        self.write_ops(&mut text);
        self.write_calls(&mut text);
        text
    }

    /// Returns the header with the offsets of the fields, for the code in assembler, which asserts
    /// that the C compiler computes the same.
    pub(crate) fn offsets(&self) -> String {
        let mut text = String::new();
        for Field { name, offset, .. } in self.fields().0 {
            let _ = writeln!(
                text,
                "#define OFF_{} {offset}\n_Static_assert(__builtin_offsetof(struct shared_block, \
                 {name}) == {offset}, \"{name}\");",
                name.to_uppercase()
            );
        }
        text
    }

    fn number(&self, word: &str) -> Option<u64> {
        let value = self.numbers.iter().find(|(name, _)| *name == word).map_or(word, |n| n.1);
        value.parse().ok()
    }

    /// Returns the fields, and the end of the last one.
    fn fields(&self) -> (Vec<Field<'_>>, u64) {
        let (mut fields, mut end) = (Vec::new(), 0_u64);
        for entry in self.entries.iter().filter(|entry| entry.kind.starts_with("FIELD")) {
            let (kind, name) = (entry.words[0], entry.words[1]);
            let size = if kind == "u32" { 4 } else { 8 };
            let count = entry.words.get(2).map(|count| self.number(count).expect(count));
            let offset = end.next_multiple_of(size);
            end = offset + size * count.unwrap_or(1);
            fields.push(Field { doc: &entry.doc, name, offset, kind, count });
        }
        (fields, end)
    }

    fn write_ops(&self, text: &mut String) {
        let (mut variants, mut heads, mut checks) = (String::new(), String::new(), String::new());
        for entry in self.entries.iter().filter(|entry| entry.kind == "OP") {
            let (number, words) = (entry.words[2], &entry.words[3..]);
            let name = camel_case(entry.words[1]);
            let fields: Vec<&str> =
                words.iter().copied().filter(|w| !w.contains("unused")).collect();
            let _ = writeln!(variants, "    /// {}\n    {name} {{", entry.doc);
            for field in &fields {
                let kind = if *field == "checks" { "Vec<CheckWords>" } else { "u64" };
                let _ = writeln!(variants, "        {field}: {kind},");
            }
            variants.push_str("    },\n");
            let values = words.iter().map(|word| match *word {
                "checks" => "checks.len() as u64".to_owned(),
                word if word.contains("unused") => "0".to_owned(),
                word => format!("*{word}"),
            });
            let values: Vec<String> = values.collect();
            let _ = writeln!(
                heads,
                "            Self::{name} {{ {} }} => [{}, {number}],",
                fields.join(", "),
                values.join(", ")
            );
            if fields.contains(&"checks") {
                let _ = writeln!(checks, "            Self::{name} {{ checks, .. }} => checks,");
            }
        }
        let _ = write!(
            text,
            "/// One operation of the code in the target.\n\
             #[derive(Debug, Clone, PartialEq, Eq)]\n\
             pub(crate) enum Op {{\n{variants}}}\n\
             impl Op {{\n    \
                 /// Returns its own slot, which its checks follow.\n    \
                 pub(crate) fn head(&self) -> SlotWords {{\n        match self {{\n{heads}        }}\n    }}\n    \
                 /// Returns its checks.\n    \
                 pub(crate) fn checks(&self) -> &[CheckWords] {{\n        match self {{\n{checks}            \
                     _ => &[],\n        }}\n    }}\n}}\n"
        );
    }

    fn write_calls(&self, text: &mut String) {
        let calls: Vec<&Entry<'_>> =
            self.entries.iter().filter(|entry| entry.kind.contains("CALL")).collect();
        for (name, _) in self.numbers.iter().filter(|(name, _)| name.starts_with("NR_")) {
            let is_it = |call: &&&Entry<'_>| call.words.contains(&&name["NR_".len()..]);
            assert!(calls.iter().any(|call| is_it(&call)), "contract.def has no call of {name}");
        }
        text.push_str("/// The calls of the code.\npub(crate) const CALLS: &[StubCall] = &[\n");
        for call in calls {
            // A call in assembler has no name.
            let words = &call.words[usize::from(call.kind != "ASSEMBLER_CALL")..];
            let (number, parameters, arguments) = (words[0], words[1], &words[2..]);
            let inner = parameters.trim_matches(['(', ')']);
            let kinds: HashMap<&str, &str> =
                inner.split(", ").filter_map(|p| p.rsplit_once(' ').map(|(k, n)| (n, k))).collect();
            let argument = |place: usize| match arguments.get(place) {
                Some(word) => match kinds.get(word) {
                    Some(kind) => format!("Argument::{}", camel_case(kind)),
                    None => format!("Argument::Constant({word})"),
                },
                None => "Argument::Constant(0)".to_owned(),
            };
            let arguments: Vec<String> = (0..6).map(argument).collect();
            let _ = writeln!(
                text,
                "    StubCall {{ name: \"{}\", number: NR_{number}, args: [{}], is_of_borrowed: {} }},",
                number.to_lowercase(),
                arguments.join(", "),
                inner.starts_with("struct borrowed"),
            );
        }
        text.push_str("];\n");
    }
}

/// Splits `contract.def` into its entries. Lines of the preprocessor are none.
fn entries(text: &str) -> Vec<Entry<'_>> {
    let (mut entries, mut rest, mut doc) = (Vec::new(), text, String::new());
    loop {
        rest = rest.trim_start();
        if let Some(comment) = rest.strip_prefix("/*") {
            let (comment, after) = comment.split_once("*/").expect("the comment ends");
            let words = comment.split_ascii_whitespace().filter(|word| *word != "*");
            (doc, rest) = (words.collect::<Vec<_>>().join(" "), after);
        } else if rest.starts_with('#') {
            rest = rest.split_once('\n').map_or("", |(_, after)| after);
        } else if let Some((kind, after)) = rest.split_once('(') {
            let (words, after) = split_words(after);
            entries.push(Entry { doc: std::mem::take(&mut doc), kind, words });
            rest = after;
        } else {
            return entries;
        }
    }
}

/// Splits a text at the commas before the next closing parenthesis, and returns what follows it.
fn split_words(text: &str) -> (Vec<&str>, &str) {
    let (mut words, mut depth, mut begin) = (Vec::new(), 0, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' if depth == 0 => {
                words.push(text[begin..at].trim());
                return (words, &text[at + 1..]);
            }
            b')' => depth -= 1,
            b',' if depth == 0 => {
                words.push(text[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
    }
    panic!("an entry of contract.def does not end");
}

fn camel_case(name: &str) -> String {
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    name.split('_').map(capital).collect()
}
