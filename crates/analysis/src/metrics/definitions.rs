//! The definitions of baseline, peak, settled, stays and mean excess, as reports print them.

/// Each metric of a trial with its definition.
pub const DEFINITIONS: [(&str, &str); 5] = [
    (
        "baseline",
        "Memory just before the load: the median of the last second. For a command that loads itself: where \
         its memory stood still before its rise; if it did not, where its start-up became the rise.",
    ),
    ("peak", "The highest reading from the baseline on."),
    (
        "settled",
        "Memory when the load is gone and time has passed: the median of the last 5 s of the settle time. \
         For a command that loads itself: of the last 5 s before its exit, without the last half second, in \
         which it tears down, and not before its last fall. Unknown if it rose until then.",
    ),
    (
        "stays",
        "(settled − baseline) / (peak − baseline): the part of the rise that did not go away.",
    ),
    (
        "mean excess",
        "Memory above the baseline, on average from the end of the load to the end of the settle time. For a \
         command that loads itself: from when it came within 2 % of its peak to its exit. The recommendation \
         compares it.",
    ),
];
