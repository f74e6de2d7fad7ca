//! The conditions that vary from trial to trial.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An allocator, its settings, and a policy that releases memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Treatment {
    /// The allocator's name: `glibc`, `jemalloc`, `mimalloc`, …
    pub allocator: String,
    /// Its version, if known.
    pub allocator_version: Option<String>,
    /// The label of its settings; absent if it runs unchanged.
    pub tune: Option<String>,
    /// The policy that releases memory; `none` if the process is left alone.
    pub policy: String,
}

impl Treatment {
    /// Returns the unchanged allocator, without settings or policy.
    pub fn plain(allocator: &str, version: Option<&str>) -> Self {
        Self {
            allocator: allocator.to_owned(),
            allocator_version: version.map(str::to_owned),
            tune: None,
            policy: NO_POLICY.to_owned(),
        }
    }

    /// Returns the short name for tables, charts and file names: `glibc`,
    /// `jemalloc/background_thread`.
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

/// The policy of a process that is left alone.
pub const NO_POLICY: &str = "none";

/// Name of the allocator of a treatment that leaves a program its own.
pub const OWN: &str = "own";
