//! A measure that would lower RSS, with its predicted effect.

use serde::{Deserialize, Serialize};

/// The kind of a remedy.
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
    /// Smaller caches of threads, or none.
    ThreadCaches,
    /// No huge pages for memory of which little is written.
    HugePages,
    /// Memory that forked processes share, and fewer of them.
    Fork,
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
            Self::ThreadCaches => "thread_caches",
            Self::HugePages => "huge_pages",
            Self::Fork => "fork",
        }
    }
}

/// A measure that would lower RSS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remedy {
    /// Its kind.
    #[serde(rename = "cure")]
    pub kind: RemedyKind,
    /// Predicted gain in bytes, if it is known.
    pub predicted_bytes: Option<u64>,
    /// Whether the prediction is an estimate: measured gains differed from it by more than a
    /// quarter, or were not measured.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
    /// Its effect, and the command or code for it, for people.
    pub how: String,
    /// What to do, in a few words, for a page that has one line for it. Absent if only `how` says
    /// it.
    #[serde(skip)]
    pub brief: Option<String>,
    /// The environment variable that applies it, if there is one.
    pub setting: Option<Setting>,
    /// Its row in the table of remedies, which has the documentation that it rests on, and its
    /// measured gain. Absent for acts of lowtide, and for what only this process shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row: Option<String>,
    /// The documentation that it rests on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
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
    /// Returns a remedy without a setting.
    pub fn new(kind: RemedyKind, predicted_bytes: Option<u64>, how: String) -> Self {
        Self {
            kind,
            predicted_bytes,
            estimated: false,
            how,
            brief: None,
            setting: None,
            row: None,
            source: None,
        }
    }

    /// Adds a description in a few words.
    #[must_use]
    pub fn in_brief(self, brief: String) -> Self {
        Self { brief: Some(brief), ..self }
    }

    /// Replaces a part of its texts wherever they contain it.
    pub fn replace(&mut self, part: &str, with: &str) {
        for text in [Some(&mut self.how), self.brief.as_mut()].into_iter().flatten() {
            *text = text.replace(part, with);
        }
    }

    /// Adds the environment variable that applies it.
    #[must_use]
    pub fn with_setting(self, name: &str, value: &str) -> Self {
        let setting = Setting { name: name.to_owned(), value: value.to_owned() };
        Self { setting: Some(setting), ..self }
    }
}
