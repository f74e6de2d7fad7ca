//! HPACK's static table (RFC 7541, appendix A).

/// The first index after the static table, which is the first one of the dynamic table.
pub(super) const FIRST_DYNAMIC_INDEX: usize = TABLE.len() + 1;

/// Returns the entry with this index.
pub(super) fn entry(index: usize) -> Option<(&'static str, &'static str)> {
    TABLE.get(index.checked_sub(1)?).copied()
}

/// Returns the index of a field.
pub(super) fn index_of(name: &str, value: &str) -> Option<usize> {
    TABLE.iter().position(|entry| *entry == (name, value)).map(|at| at + 1)
}

/// Returns the first index of a name.
pub(super) fn index_of_name(name: &str) -> Option<usize> {
    TABLE.iter().position(|entry| entry.0 == name).map(|at| at + 1)
}

#[rustfmt::skip]
const TABLE: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"), (":method", "POST"),
    (":path", "/"), (":path", "/index.html"),
    (":scheme", "http"), (":scheme", "https"),
    (":status", "200"), (":status", "204"), (":status", "206"), (":status", "304"),
    (":status", "400"), (":status", "404"), (":status", "500"),
    ("accept-charset", ""), ("accept-encoding", "gzip, deflate"), ("accept-language", ""),
    ("accept-ranges", ""), ("accept", ""), ("access-control-allow-origin", ""), ("age", ""),
    ("allow", ""), ("authorization", ""), ("cache-control", ""), ("content-disposition", ""),
    ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
    ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""),
    ("date", ""), ("etag", ""), ("expect", ""), ("expires", ""), ("from", ""), ("host", ""),
    ("if-match", ""), ("if-modified-since", ""), ("if-none-match", ""), ("if-range", ""),
    ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""), ("location", ""),
    ("max-forwards", ""), ("proxy-authenticate", ""), ("proxy-authorization", ""), ("range", ""),
    ("referer", ""), ("refresh", ""), ("retry-after", ""), ("server", ""), ("set-cookie", ""),
    ("strict-transport-security", ""), ("transfer-encoding", ""), ("user-agent", ""), ("vary", ""),
    ("via", ""), ("www-authenticate", ""),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_static_table_matches_the_rfc() {
        assert_eq!(entry(0), None);
        assert_eq!(entry(8), Some((":status", "200")));
        assert_eq!(entry(16), Some(("accept-encoding", "gzip, deflate")));
        assert_eq!(entry(33), Some(("date", "")));
        assert_eq!(entry(61), Some(("www-authenticate", "")));
        assert_eq!(entry(FIRST_DYNAMIC_INDEX), None);
        assert_eq!(index_of(":path", "/index.html"), Some(5));
        assert_eq!(index_of_name("user-agent"), Some(58));
    }
}
