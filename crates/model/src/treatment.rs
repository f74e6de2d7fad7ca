//! What is varied from trial to trial.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An allocator, its settings, and a policy of giving memory back.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Treatment {
    /// The allocator's name: `glibc`, `jemalloc`, `mimalloc`, …
    pub allocator: String,
    /// Its version, where it can be told.
    pub allocator_version: Option<String>,
    /// The label of its settings; absent when it runs as it is.
    pub tune: Option<String>,
    /// When memory is released; `none` when the process is left to itself.
    pub policy: String,
}

impl Treatment {
    /// The allocator as it is: no settings, no policy.
    pub fn plain(allocator: &str, version: Option<&str>) -> Self {
        Self {
            allocator: allocator.to_owned(),
            allocator_version: version.map(str::to_owned),
            tune: None,
            policy: NO_POLICY.to_owned(),
        }
    }

    /// The short name used in tables, charts and file names: `glibc`, `jemalloc/background_thread`.
    pub fn label(&self) -> String {
        let mut label = self.allocator.clone();
        if let Some(tune) = &self.tune {
            label = format!("{label}/{tune}");
        }
        if self.policy != NO_POLICY {
            label = format!("{label} + {}", self.policy);
        }
        label
    }
}

impl fmt::Display for Treatment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.label())
    }
}

/// The policy of a process that is left to itself.
pub const NO_POLICY: &str = "none";
