//! Growth that has a bound, or that the kernel takes back.

use std::path::{Path, PathBuf};
use std::process::Command;

use lowtide_testing::Running;

use super::{because, object};
use crate::schemas::hold_inspection;
use crate::support::{lowtide, until};

/// A program that touches memory that it has from the beginning, or maps more and more, also of
/// memory that it frees lazily.
const FILLING: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
enum { SIZE = 1 << 30, STEP = 128 << 10 };
static char data[SIZE];
static char *mapped(size_t bytes, int flags) {
    return mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags, -1, 0);
}
int main(int count, char **words) {
    char *all = data;
    if (!strcmp(words[1], "block")) all = malloc(SIZE);
    if (!strcmp(words[1], "shared")) all = mapped(SIZE, MAP_SHARED);
    if (!strcmp(words[1], "mapped")) all = mapped(SIZE, MAP_PRIVATE);
    int is_lazy = !strcmp(words[1], "lazy");
    for (size_t at = 0; at < SIZE; at += STEP) {
        int is_new = is_lazy || !strcmp(words[1], "more");
        char *next = is_new ? mapped(STEP, MAP_PRIVATE) : all + at;
        memset(next, 1, STEP);
        if (is_lazy) madvise(next, STEP, MADV_FREE);
        usleep(50000);
    }
    pause();
}
"#;

/// Builds the program in a directory.
fn filling(home: &Path) -> PathBuf {
    let (source, program) = (home.join("filling.c"), home.join("filling"));
    std::fs::write(&source, FILLING).unwrap();
    lowtide_testing::compile(&program, [&source]);
    program
}

#[test]
fn memory_that_is_freed_lazily_leads_to_no_limit() {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(filling(home.path()));
    let process = Running::from(command.arg("lazy").spawn().unwrap());
    let pid = process.id().to_string();
    let found = until("growth of lazily freed memory", || {
        let output = lowtide().args(["--json", "inspect", "--watch", "6s", &pid]).output();
        let found = object(&output.unwrap());
        because(&found).contains("freed lazily (MADV_FREE)").then_some(found)
    });
    hold_inspection(&found);
    assert_eq!(found["growth"]["by"][0]["owner"], "lazily_freed", "{found:#}");
    assert!(found["growth"]["seconds_to_limit"].is_null(), "{found:#}");
    assert_ne!(found["verdict"]["kind"], "growing", "{found:#}");
    assert!(because(&found).contains("they cause no OOM kill"), "{found:#}");
}

#[test]
fn memory_that_becomes_resident_has_a_bound_and_memory_that_is_mapped_has_none() {
    let home = tempfile::tempdir().unwrap();
    let program = filling(home.path());
    for way in ["data", "block", "shared", "mapped", "more"] {
        let process = Running::from(Command::new(&program).arg(way).spawn().unwrap());
        let pid = process.id().to_string();
        let found = until("steady growth", || {
            let look = lowtide().args(["--json", "inspect", "--watch", "4s", &pid]).output();
            let found = object(&look.unwrap());
            (found["growth"]["course"] == "steady" && !because(&found).contains("too few"))
                .then_some(found)
        });
        hold_inspection(&found);
        let growth = &found["growth"];
        let bound = growth["by"][0]["bound_bytes"].as_u64();
        let said = because(&found);
        if way == "more" {
            assert!(bound.is_none() && growth["seconds_to_limit"].is_number(), "{found:#}");
            continue;
        }
        assert!(bound.is_some_and(|bytes| bytes < 1 << 30), "{way}: {found:#}");
        assert!(said.contains(" did not grow: at most "), "{way}: {said}");
        // The machine may have less memory than the bound.
        let is_small = growth["limit_bytes"].as_u64() < Some(4 << 30);
        assert!(growth["seconds_to_limit"].is_null() || is_small, "{found:#}");
    }
}
