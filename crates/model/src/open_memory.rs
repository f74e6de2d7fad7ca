//! Files that exist only in memory.

use serde::{Deserialize, Serialize};

/// Files that exist only in memory, which a process has open and does not map.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenMemory {
    /// Number of files.
    pub files: u64,
    /// Their bytes in memory.
    pub bytes: u64,
    /// The name that most of these bytes have, or the beginning of all names and `*`; `null` if
    /// neither exists.
    pub name: Option<String>,
}
