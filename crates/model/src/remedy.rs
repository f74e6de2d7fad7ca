//! Something that would lower RSS, with its predicted effect.

use serde::{Deserialize, Serialize};

/// What kind of thing a remedy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemedyKind {
    /// A release by lowtide.
    Release,
    /// A call of `malloc_trim(0)` in the program.
    MallocTrim,
    /// A purge of all arenas by the program itself (jemalloc).
    Purge,
    /// Fewer open connections.
    CloseConnections,
    /// Fewer arenas of glibc.
    ArenaMax,
    /// glibc's trim threshold.
    TrimThreshold,
    /// Another allocator.
    Allocator,
    /// A setting or call of a runtime, or of an allocator that lowtide does not release.
    Runtime,
}

impl RemedyKind {
    /// Returns the name for reports and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::MallocTrim => "malloc_trim",
            Self::Purge => "purge",
            Self::CloseConnections => "close_connections",
            Self::ArenaMax => "arena_max",
            Self::TrimThreshold => "trim_threshold",
            Self::Allocator => "allocator",
            Self::Runtime => "runtime",
        }
    }
}

/// Something that would lower RSS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remedy {
    /// Its kind.
    #[serde(rename = "cure")]
    pub kind: RemedyKind,
    /// What it would return, in bytes, where that is known exactly.
    pub predicted_bytes: Option<u64>,
    /// What it does, and what to type, for people.
    pub how: String,
    /// The variable of the environment that does it, where one does.
    pub setting: Option<Setting>,
}

/// A variable of a program's environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

impl Remedy {
    /// A remedy without a setting.
    pub fn new(kind: RemedyKind, predicted_bytes: Option<u64>, how: String) -> Self {
        Self { kind, predicted_bytes, how, setting: None }
    }

    /// Adds the environment variable that does it.
    #[must_use]
    pub fn with_setting(self, name: &str, value: &str) -> Self {
        let setting = Setting { name: name.to_owned(), value: value.to_owned() };
        Self { setting: Some(setting), ..self }
    }
}
