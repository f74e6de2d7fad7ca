//! The definitions of baseline, peak, settled, stays and mean excess, as reports print them.

/// Each metric of a trial with its definition.
pub const DEFINITIONS: [(&str, &str); 5] = [
    (
        "baseline",
        "Memory just before the load: the median of the last second. For a command that \
         generates its own load: the level at which memory stayed constant before it rose, or \
         memory at the end of a start-up that was much steeper than the rise. If memory rose from \
         the start, there is no baseline.",
    ),
    ("peak", "The maximum from the baseline on."),
    (
        "settled",
        "Memory some time after the load: the median of the last 5 s of the settle time. For a \
         command that generates its own load: the median of 5 s that end half a second before its \
         exit, because the command then shuts down. The time before the last fall of memory does \
         not count. If memory rose until the exit, the settled memory is unknown.",
    ),
    (
        "stays",
        "(settled − baseline) / (peak − baseline): the part of the rise that remains. Without a \
         baseline, the rise is counted from an estimate of the memory when it began.",
    ),
    (
        "mean excess",
        "Memory above the baseline, on average from the end of the load to the end of the \
         settle time. For a command that generates its own load: from the time at which memory \
         came within 2 % of its peak to the exit of the command. Without a baseline, it is counted \
         from the same estimate. The recommendation compares this \
         metric between treatments.",
    ),
];
