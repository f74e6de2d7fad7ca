//! The text of `memory.stat`.

/// Returns the values of a `memory.stat` that count a group with all groups below it, in bytes:
/// all in version 2; in version 1 those whose keys begin with `total_`, without that. Lines that
/// are not a key and a number are skipped.
pub(crate) fn stat_values(version: u32, text: &str) -> impl Iterator<Item = (&str, u64)> {
    let value = move |line| {
        let (key, value): (&str, &str) = str::split_once(line, ' ')?;
        let key = if version == 1 { key.strip_prefix("total_")? } else { key };
        Some((key, value.trim().parse().ok()?))
    };
    text.lines().filter_map(value)
}
