//! The limits that runtimes have set for their own memory.

use std::ops::Range;

use lowtide_heap::hotspot::JavaHeap;
use lowtide_heap::memory::Memory;
use lowtide_heap::zend;
use lowtide_model::growth::{ProcessLimitKind, RuntimeLimit};
use lowtide_model::inspection::Observation;
use lowtide_model::ledger::{State, WalkedRuntime};
use lowtide_model::runtime_kind::RuntimeKind;

use crate::detect::{self, Detected};
use crate::proc::environ;
use crate::proc::maps::Mapping;

/// The option of V8 that limits its heap, in MiB. It takes `-` and `_` alike.
const V8_OPTION: &str = "--max-old-space-size";

/// Returns the limits that could be read, of the runtimes whose memory the observation has.
pub(super) fn of_runtimes(
    memory: &impl Memory,
    maps: &[Mapping],
    detected: &Detected,
    observation: &Observation,
) -> Vec<RuntimeLimit> {
    let in_use = |runtime| observation.ledger.bytes_of(runtime, State::Allocated);
    let java = in_use(WalkedRuntime::HotSpot);
    let java = (java > 0).then(|| match detect::java_heap(memory, detected, maps)? {
        JavaHeap::Reserved(range) => Some(RuntimeLimit {
            kind: ProcessLimitKind::JavaHeap,
            limit_bytes: range.end - range.start,
            used_bytes: java,
        }),
        JavaHeap::InFile => None,
    });
    let v8 = in_use(WalkedRuntime::V8);
    let v8 = (v8 > 0).then(|| {
        // With workers, the option limits the heap of each of them.
        let limit_bytes = v8_option(&observation.command)
            .or_else(|| node_variable(observation.pid, detected))
            .filter(|limit| *limit > v8)?;
        Some(RuntimeLimit { kind: ProcessLimitKind::V8Heap, limit_bytes, used_bytes: v8 })
    });
    let php = detected.has(RuntimeKind::Php).then(|| {
        let wanted = maps.iter().filter(|mapping| detect::is_private_memory(mapping));
        let anonymous: Vec<Range<u64>> = wanted.map(|m| m.start..m.end).collect();
        let zend::RequestMemory { used_bytes, limit_bytes } = zend::limit(memory, &anonymous)?;
        Some(RuntimeLimit { kind: ProcessLimitKind::PhpMemory, limit_bytes, used_bytes })
    });
    [java, v8, php].into_iter().flatten().flatten().collect()
}

/// Returns the limit in a command line, in bytes. The options of V8 end at the first word without a
/// dash: later ones can be options of the script.
fn v8_option(command: &[String]) -> Option<u64> {
    let is_option = |word: &&str| word.starts_with('-') && *word != "--";
    last_option(command.iter().skip(1).map(String::as_str).take_while(is_option))
}

/// Returns the limit in the variable `NODE_OPTIONS` with which a program was started, in bytes: its
/// command line overrides it.
fn node_variable(pid: u32, detected: &Detected) -> Option<u64> {
    let is_node = detected.has(RuntimeKind::Node);
    let environment = is_node.then(|| environ::read(pid, environ::MAX_BYTES).ok()).flatten()?;
    node_options(&environment)
}

/// Returns the limit in the variable `NODE_OPTIONS` of an environment, in bytes; `None` if words in
/// it are quoted.
fn node_options(environment: &[u8]) -> Option<u64> {
    let mut variables = environment.split(|byte| *byte == 0);
    let value = variables.find_map(|variable| variable.strip_prefix(b"NODE_OPTIONS="))?;
    let value = str::from_utf8(value).ok().filter(|value| !value.contains(['"', '\\']))?;
    last_option(value.split(' '))
}

/// Returns the limit in words, in bytes; the last one counts.
fn last_option<'a>(words: impl Iterator<Item = &'a str>) -> Option<u64> {
    let option = |word: &str| {
        let (name, value) = word.split_once('=')?;
        let is_it = name.replace('_', "-") == V8_OPTION;
        is_it.then(|| value.parse::<u64>().ok()?.checked_mul(1 << 20)).flatten()
    };
    words.filter_map(option).last().filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_v8_is_read_from_its_option() {
        let limit = |words: &[&str]| {
            v8_option(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(limit(&["node", "--max-old-space-size=150", "a.js"]), Some(150 << 20));
        assert_eq!(
            limit(&["node", "--max_old_space_size=9", "--max-old-space-size=2"]),
            Some(2 << 20)
        );
        assert_eq!(limit(&["node", "a.js", "--max-old-space-size=2"]), None);
        assert_eq!(limit(&["node", "--max-old-space-size=many"]), None);
        assert_eq!(limit(&["node", "--max-old-space-size=99999999999999999"]), None);
        assert_eq!(limit(&["node", "a.js"]), None);
    }
    #[test]
    fn the_limit_of_node_is_read_from_its_variable() {
        let limit = |text: &str| node_options(text.as_bytes());
        let variables =
            "HOME=/\0NODE_OPTIONS=--max-old-space-size=9 --max_old_space_size=150\0A=b\0";
        assert_eq!(limit(variables), Some(150 << 20));
        assert_eq!(limit("NODE_OPTIONS=--require \"a b\" --max-old-space-size=150\0"), None);
        assert_eq!(limit("NODE_OPTIONS=--inspect\0"), None);
        assert_eq!(limit("X_NODE_OPTIONS=--max-old-space-size=9\0"), None);
    }
}
