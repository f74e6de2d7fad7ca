//! The definitions of baseline, peak, settled, stays and mean excess, as reports print them.

/// Each metric of a trial with its definition.
pub const DEFINITIONS: [(&str, &str); 5] = [
    (
        "baseline",
        "Memory just before the load: the median of the last second. For a command that loads itself: while \
         its memory was level before its rise; if it never was, at the end of its start-up.",
    ),
    ("peak", "The maximum from the baseline on."),
    (
        "settled",
        "Memory some time after the load: the median of the last 5 s of the settle time. \
         For a command that loads itself: of the last 5 s before its exit, without the last half second \
         (its teardown), and only after its last fall. Unknown if it rose until then.",
    ),
    ("stays", "(settled − baseline) / (peak − baseline): the part of the rise that remains."),
    (
        "mean excess",
        "Memory above the baseline, on average from the end of the load to the end of the settle time. For a \
         command that loads itself: from when it came within 2 % of its peak to its exit. The recommendation \
         compares it.",
    ),
];
