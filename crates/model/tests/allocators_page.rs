//! `docs/allocators.md` and the table in the code agree.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use lowtide_model::allocator_kind::AllocatorKind;

/// Returns the cells of the row of an allocator in a page.
fn cells(page: &str, name: &str) -> Vec<String> {
    let start = format!("| {name} |");
    let mut rows = page.lines().filter(|line| line.starts_with(&start));
    let row = rows.next().unwrap_or_else(|| panic!("docs/allocators.md has no row of {name}"));
    assert_eq!(rows.next(), None, "docs/allocators.md has two rows of {name}");
    row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
}

#[test]
fn the_page_of_allocators_agrees_with_the_table_in_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/allocators.md");
    let page = std::fs::read_to_string(path).unwrap();
    for kind in AllocatorKind::NAMED {
        let (name, facts) = (kind.name(), kind.facts());
        let cells = cells(&page, name);
        let [_, read, released, purged] = &cells[..] else { panic!("{name}: {cells:?}") };
        assert_eq!(read != "no", facts.is_walked, "{name}: read");
        let versions = facts.released.join(", ");
        let versions = if versions.is_empty() { "no" } else { &versions };
        assert_eq!(released, versions, "{name}: released");
        let function = match facts.purge {
            None if kind == AllocatorKind::Glibc => Some("malloc_trim"),
            purge => purge.map(|purge| purge.functions[0]),
        };
        let purged_by = function.map_or("no".to_owned(), |function| format!("`{function}`"));
        assert_eq!(*purged, purged_by, "{name}: purged");
    }
}
