//! The definitions of baseline, peak, settled, stays and mean excess, as reports print them.

/// Each metric of a trial with its definition.
pub const DEFINITIONS: [(&str, &str); 5] = [
    (
        "baseline",
        "Memory just before the load: the median of the last second. For a command that generates its own \
         load: the level of memory before its rise or, if it was never level, the memory at the end of its \
         start-up.",
    ),
    ("peak", "The maximum from the baseline on."),
    (
        "settled",
        "Memory some time after the load: the median of the last 5 s of the settle time. \
         For a command that generates its own load: the median of the last 5 s before its exit, without the \
         last half second, in which it shuts down, and without the time before its last fall. It is unknown \
         if memory rose until the exit.",
    ),
    ("stays", "(settled − baseline) / (peak − baseline): the part of the rise that remains."),
    (
        "mean excess",
        "Memory above the baseline, on average from the end of the load to the end of the settle time. For a \
         command that generates its own load: from the time at which it came within 2 % of its peak to its \
         exit. The recommendation compares this metric between treatments.",
    ),
];
