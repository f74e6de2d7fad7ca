//! Memory that forked processes no longer share.

use lowtide_model::remedy::RemedyKind;

use super::{Case, FORKED, MemoryState, Row, row};

const FORK: Case = Case(FORKED, MemoryState::InUse, RemedyKind::Fork);

pub(super) static ROWS: &[Row] = &[
    row(
        "fork/cpython",
        FORK,
        "gc.freeze() right before the fork; fewer processes",
        "collections write to every object that they visit, which copies its page: gc.disable() before the data is \
         loaded, gc.freeze() right before the fork, and gc.enable() in the children leave what was loaded before the \
         fork shared, but for reference counts; fewer processes, with threads, copy less",
        (
            "Python's documentation, gc.freeze",
            "ignore all current objects in future collections: gc.disable() early, gc.freeze() right before fork(), \
             gc.enable() early in children maximize sharing",
        ),
    ),
    row(
        "fork/ruby_compact",
        FORK,
        "GC.compact right before the fork; fewer processes",
        "the first collections after a fork write to all objects, which copies their pages: GC.compact right before \
         the fork (before_fork of Puma and Unicorn) leaves them shared; fewer processes, with \
         threads, copy less",
        (
            "Ruby's documentation, GC.compact; bench/remedies",
            "moves objects together, after full collections that make the survivors old",
        ),
    ),
    row(
        "fork/ruby_warmup",
        FORK,
        "Process.warmup right before the fork; fewer processes",
        "the first collections after a fork write to all objects, which copies their pages: Process.warmup right \
         before the fork leaves them shared; fewer processes, with threads, copy less",
        (
            "Ruby's documentation, Process.warmup",
            "a major collection, compaction, and promotion of all surviving objects to the old generation, before a \
             fork",
        ),
    ),
    row(
        "fork/fewer",
        FORK,
        "fewer processes, with threads, have fewer copies",
        "each process has its own copy of what it writes to: fewer processes, with threads, have fewer copies; what is \
         only read stays shared",
        ("fork(2), NOTES", "pages are copied on write"),
    ),
];
