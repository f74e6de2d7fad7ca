//! Memory that only huge pages made resident.

use lowtide_model::remedy::RemedyKind;

use super::{Case, HUGE_PAGES, MemoryState, Row, row};

const HUGE: Case = Case(HUGE_PAGES, MemoryState::InUse, RemedyKind::HugePages);

pub(super) static ROWS: &[Row] = &[
    row(
        "huge_pages/variable",
        HUGE,
        "{variable} makes it ask for no huge pages",
        "without huge pages, only what is written becomes resident: {variable} makes it ask for none",
        (
            "glibc's manual, Memory Allocation Tunables, glibc.malloc.hugetlb; jemalloc(3), opt.thp; NumPy's \
             documentation, Global Configuration Options",
            "hugetlb=1 makes malloc call madvise(MADV_HUGEPAGE); thp:always makes jemalloc do it; NumPy does it for \
             large arrays, unless NUMPY_MADVISE_HUGEPAGE is 0",
        ),
    ),
    row(
        "huge_pages/hotspot",
        HUGE,
        "remove -XX:+UseTransparentHugePages",
        "without huge pages, only what is written becomes resident: -XX:+UseTransparentHugePages on its command line \
         asks for them",
        ("java(1), -XX:+UseTransparentHugePages", "enables the use of large pages that can grow"),
    ),
    row(
        "huge_pages/asked",
        HUGE,
        "prctl(PR_SET_THP_DISABLE) forbids huge pages to it",
        "without huge pages, only what is written becomes resident: the program or a library asks for them \
         (madvise(MADV_HUGEPAGE)), and prctl(PR_SET_THP_DISABLE) forbids them to a whole process and its children",
        (
            "the kernel's Documentation/admin-guide/mm/transhuge.rst; PR_SET_THP_DISABLE(2const)",
            "with madvise, only regions that a program names get huge pages; the prctl disables them for a process",
        ),
    ),
    row(
        "huge_pages/always",
        HUGE,
        "prctl(PR_SET_THP_DISABLE) forbids huge pages to it",
        "without huge pages, only what is written becomes resident: this system grants them to all memory; madvise \
         in /sys/kernel/mm/transparent_hugepage/enabled grants them where a program asks, and \
         prctl(PR_SET_THP_DISABLE) forbids them to this process and its children",
        (
            "the kernel's Documentation/admin-guide/mm/transhuge.rst; PR_SET_THP_DISABLE(2const)",
            "an application may map a large region and touch one byte of it: 2 MiB are allocated then; madvise avoids \
             that",
        ),
    ),
];
