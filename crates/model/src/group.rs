//! What several processes are together: the object that ends the stream of a verb that was given a selector.

use serde::Serialize;

/// What the object's `schema` says.
pub const SCHEMA: &str = "lowtide.whole/1";

/// Several processes together. What is not known is `None`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupTotals {
    /// Always [`SCHEMA`].
    pub schema: &'static str,
    /// How many processes were looked at.
    pub processes: u64,
    /// How many of the selected ones could not be.
    pub unreadable: u64,
    /// Their proportional memory in bytes: pages that several of them share count once for all of them together.
    pub pss_bytes: Option<u64>,
    /// The same before a release; absent of a look.
    pub pss_before_bytes: Option<u64>,
    /// Whether PSS of some is estimated: of one with a large heap all anonymous memory counts as its own, since its
    /// threads would have to wait for the kernel to count.
    pub pss_is_estimate: bool,
    /// The sum of their resident bytes, in which pages that several of them share count several times.
    pub rss_bytes: u64,
    /// Bytes that they have allocated, where their heaps were walked; absent of a release.
    pub allocated_bytes: Option<u64>,
    /// Bytes that a release would return; absent of a release.
    pub reclaimable_bytes: Option<u64>,
    /// Bytes that were returned; absent of a look.
    pub returned_bytes: Option<u64>,
    /// How many were refused; absent of a look.
    pub refused: Option<u64>,
}

impl Default for GroupTotals {
    fn default() -> Self {
        Self {
            schema: SCHEMA,
            processes: 0,
            unreadable: 0,
            pss_bytes: None,
            pss_before_bytes: None,
            pss_is_estimate: false,
            rss_bytes: 0,
            allocated_bytes: None,
            reclaimable_bytes: None,
            returned_bytes: None,
            refused: None,
        }
    }
}
