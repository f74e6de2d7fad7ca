//! Settings of an allocator: sets of environment variables with a label, bound to their allocator.
//!
//! The presets are the settings that matter: those that engineers tried first when a production
//! process retained memory (`trim_threshold`, `mmap_threshold`, `tcache_count`, `arena_max`), and
//! those that determine whether memory is released at all, according to measurements.

use thiserror::Error;

/// A set of environment variables for one allocator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tune {
    /// The allocator that understands them.
    pub allocator: String,
    /// Their name in tables.
    pub label: String,
    /// The variables.
    pub variables: Vec<(String, String)>,
}

/// A named setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// The allocator that understands them.
    pub allocator: &'static str,
    /// The name.
    pub name: &'static str,
    /// The variable.
    variable: &'static str,
    /// The text before and after the value in it.
    around: (&'static str, &'static str),
    /// The default value.
    value: &'static str,
    /// Its effect, in a few words.
    pub about: &'static str,
}

/// All presets. Each is used as `ALLOCATOR/NAME`, or with a custom value as `ALLOCATOR/NAME=VALUE`.
pub const PRESETS: [Preset; 9] = [
    Preset {
        allocator: "glibc",
        name: "trim_threshold",
        variable: "MALLOC_TRIM_THRESHOLD_",
        around: ("", ""),
        value: "65536",
        about: "free bytes at the top of the heap that are returned; also fixes mmap_threshold",
    },
    Preset {
        allocator: "glibc",
        name: "mmap_threshold",
        variable: "MALLOC_MMAP_THRESHOLD_",
        around: ("", ""),
        value: "65536",
        about: "minimum bytes of a block with its own mapping, which is unmapped when freed",
    },
    Preset {
        allocator: "glibc",
        name: "tcache_count",
        variable: "GLIBC_TUNABLES",
        around: ("glibc.malloc.tcache_count=", ""),
        value: "0",
        about: "maximum number of freed blocks of each size that each thread keeps",
    },
    Preset {
        allocator: "glibc",
        name: "arena_max",
        variable: "MALLOC_ARENA_MAX",
        around: ("", ""),
        value: "1",
        about: "number of arenas for all threads",
    },
    Preset {
        allocator: "jemalloc",
        name: "background_thread",
        variable: "MALLOC_CONF",
        around: ("background_thread:true,dirty_decay_ms:", ",muzzy_decay_ms:0"),
        value: "1000",
        about: "returns memory after it was free for this time in ms, also while the program is idle",
    },
    Preset {
        allocator: "mimalloc",
        name: "purge_delay",
        variable: "MIMALLOC_PURGE_DELAY",
        around: ("", ""),
        value: "0",
        about: "time until a free page is returned, in ms; 0: at once",
    },
    Preset {
        allocator: "mimalloc2",
        name: "purge_delay",
        variable: "MIMALLOC_PURGE_DELAY",
        around: ("", ""),
        value: "0",
        about: "time until a free page is returned, in ms; 0: at once",
    },
    Preset {
        allocator: "tcmalloc",
        name: "aggressive_decommit",
        variable: "TCMALLOC_AGGRESSIVE_DECOMMIT",
        around: ("", ""),
        value: "1",
        about: "returns every span as soon as it is free",
    },
    Preset {
        allocator: "tcmalloc",
        name: "release_rate",
        variable: "TCMALLOC_RELEASE_RATE",
        around: ("", ""),
        value: "10",
        about: "rate at which free spans are returned, 0 to 10",
    },
];

/// The reason why settings are invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TuneError {
    /// The syntax is invalid.
    #[error(
        "`{0}` is not a valid setting: write 'ALLOCATOR/LABEL: VARIABLE=VALUE …', or a preset such as glibc/arena_max or glibc/arena_max=2"
    )]
    Malformed(String),
    /// The preset is unknown.
    #[error(
        "`{text}` is not a preset: {allocator} has {known}; for others, write 'ALLOCATOR/LABEL: VARIABLE=VALUE …'"
    )]
    UnknownPreset {
        /// The request.
        text: String,
        /// The allocator.
        allocator: String,
        /// The presets of this allocator.
        known: String,
    },
}

/// Parses settings: `jemalloc/eager: MALLOC_CONF=dirty_decay_ms:0`, `glibc/arena_max`,
/// `glibc/arena_max=2`.
///
/// # Errors
/// Fails if the syntax is invalid, or the preset is unknown.
pub(crate) fn parse(text: &str) -> Result<Tune, TuneError> {
    let malformed = || TuneError::Malformed(text.to_owned());
    let (allocator, rest) = text.trim().split_once('/').ok_or_else(malformed)?;
    let allocator = allocator.trim();
    if allocator.is_empty() || allocator.contains(char::is_whitespace) {
        return Err(malformed());
    }
    // The colon that ends a label is followed by a space: values may contain colons too.
    match rest.split_once(": ") {
        Some((label, variables)) => own(allocator, label.trim(), variables).ok_or_else(malformed),
        None if rest.trim_end().ends_with(':') || rest.trim().is_empty() => Err(malformed()),
        None => preset(allocator, rest.trim(), text),
    }
}

fn own(allocator: &str, label: &str, variables: &str) -> Option<Tune> {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    let variables: Option<Vec<(String, String)>> = variables
        .split_whitespace()
        .map(|pair| {
            let (name, value) = pair.split_once('=')?;
            is_name(name).then(|| (name.to_owned(), value.to_owned()))
        })
        .collect();
    let variables = variables.filter(|v| !v.is_empty())?;
    let label = Some(label).filter(|l| !l.is_empty())?;
    Some(Tune { allocator: allocator.to_owned(), label: label.to_owned(), variables })
}

fn preset(allocator: &str, text: &str, whole: &str) -> Result<Tune, TuneError> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    let found = PRESETS.iter().find(|p| p.allocator == allocator && p.name == name);
    let Some(preset) = found.filter(|_| value != Some("")) else {
        let known: Vec<&str> =
            PRESETS.iter().filter(|p| p.allocator == allocator).map(|p| p.name).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(TuneError::UnknownPreset {
            text: whole.trim().to_owned(),
            allocator: allocator.to_owned(),
            known,
        });
    };
    let (before, behind) = preset.around;
    let value = format!("{before}{}{behind}", value.unwrap_or(preset.value));
    Ok(Tune {
        allocator: allocator.to_owned(),
        label: text.to_owned(),
        variables: vec![(preset.variable.to_owned(), value)],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(text: &str) -> Vec<(String, String)> {
        parse(text).unwrap().variables
    }

    #[test]
    fn a_preset_has_a_default_value_or_takes_one() {
        let set = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        assert_eq!(variables("glibc/arena_max"), set("MALLOC_ARENA_MAX", "1"));
        assert_eq!(variables("glibc/arena_max=12"), set("MALLOC_ARENA_MAX", "12"));
        assert_eq!(
            variables("jemalloc/background_thread=500"),
            set("MALLOC_CONF", "background_thread:true,dirty_decay_ms:500,muzzy_decay_ms:0")
        );
        assert_eq!(
            variables("glibc/tcache_count"),
            set("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0")
        );
        assert_eq!(parse("glibc/arena_max=12").unwrap().label, "arena_max=12");
    }

    #[test]
    fn custom_settings_may_contain_colons_and_equals_signs() {
        let tune =
            parse("jemalloc/eager: MALLOC_CONF=dirty_decay_ms:0,muzzy_decay_ms:0 X=a=b").unwrap();
        assert_eq!((tune.allocator.as_str(), tune.label.as_str()), ("jemalloc", "eager"));
        assert_eq!(tune.variables[1], ("X".to_owned(), "a=b".to_owned()));
    }

    #[test]
    fn an_unknown_preset_is_an_error_that_lists_the_valid_ones() {
        assert_eq!(
            parse("glibc/arenamax").unwrap_err().to_string(),
            "`glibc/arenamax` is not a preset: glibc has trim_threshold, mmap_threshold, tcache_count, \
             arena_max; for others, write 'ALLOCATOR/LABEL: VARIABLE=VALUE …'"
        );
    }

    #[test]
    fn malformed_tune_arguments_are_errors() {
        for text in [
            "",
            "glibc",
            "/x",
            "glibc/",
            "glibc/x:",
            "glibc/x: ",
            "glibc/x: Y",
            "glibc/x: =1",
            "glibc/arena_max=",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
