//! Compares the calls that the filters permit with lists in `seal/`. The filters are interpreted as
//! in the kernel, for every number, for arguments around every condition, and for x32.
//!
//! With `LOWTIDE_TEST_UPDATE=1`, the lists are written.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use lowtide_exporter::seal::calls::{Condition, permitted};
use lowtide_exporter::seal::{Role, filters};
use lowtide_release::testing::{Call, Filter, FilterAction, Instruction, decide};

/// Numbers of system calls, with room for those of later kernels.
const NUMBERS: std::ops::Range<u32> = 0..1024;
/// `__X32_SYSCALL_BIT` of arch/x86/include/uapi/asm/unistd.h.
const X32: u32 = 0x4000_0000;

/// The filters of a process.
struct Seal {
    role: Role,
    filters: Vec<Filter>,
}

impl Seal {
    fn new(role: Role) -> Self {
        let filters = filters(role).unwrap();
        let filters = [filters.clone3, filters.list].into_iter().map(|program| {
            let instructions = program.into_iter().map(|one| Instruction {
                code: one.code,
                if_true: one.jt,
                if_false: one.jf,
                operand: one.k,
            });
            Filter::new(instructions.collect())
        });
        Self { role, filters: filters.collect() }
    }

    fn permits(&self, number: u32, args: [u64; 6]) -> bool {
        let action = decide(&self.filters, &Call { number, args, ..Call::default() });
        assert!(
            matches!(action, FilterAction::Allow | FilterAction::Errno),
            "{number} {args:x?}: {action:?}"
        );
        action == FilterAction::Allow
    }

    /// Returns the arguments with which a call is most likely permitted.
    fn arguments(&self, number: u32) -> [u64; 6] {
        let mut args = [0; 6];
        let call = permitted(self.role).find(|call| call.number == i64::from(number));
        for condition in call.map_or(&[][..], |call| call.conditions) {
            let (place, value) = match *condition {
                Condition::OneOf(place, values) => (place, values[0]),
                Condition::Bits { place, value, .. } => (place, value),
                Condition::Null(place) => (place, 0),
                Condition::OwnProcess(place) => (place, u64::from(std::process::id())),
            };
            args[usize::from(place)] = value;
        }
        args
    }

    /// Describes the arguments with which a call is permitted; `None` if it is refused with all of
    /// them.
    fn conditions(&self, number: u32) -> Option<Vec<String>> {
        let base = self.arguments(number);
        let values = values(number);
        let permits = |place: usize, value: u64| {
            let mut args = base;
            args[place] = value;
            self.permits(number, args)
        };
        let is_permitted = (0..6).any(|place| values.iter().any(|value| permits(place, *value)));
        let conditions = (0..6).filter_map(|place| {
            let permitted: Vec<u64> =
                values.iter().copied().filter(|value| permits(place, *value)).collect();
            let refused_bits = (0..64).map(|bit| 1 << bit);
            let refused_bits = refused_bits.filter(|bit| !permits(place, base[place] ^ bit));
            let mask: u64 = refused_bits.sum();
            let is_masked = |value: &&u64| (**value ^ base[place]) & mask == 0;
            if permitted.len() == values.len() {
                None
            } else if values.iter().filter(is_masked).eq(&permitted) {
                let value = name_of(base[place] & mask);
                Some(format!("argument {place} & {mask:#x} == {value}"))
            } else {
                let lower = permitted.iter().map(|value| *value as u32).collect::<BTreeSet<_>>();
                let lower: Vec<_> = lower.iter().map(|value| format!("{value:#x}")).collect();
                Some(format!("argument {place} is one of {}", lower.join(" ")))
            }
        });
        is_permitted.then(|| conditions.collect())
    }

    /// Describes the calls that are permitted, one a line.
    fn list(&self) -> String {
        let mut text = String::new();
        for number in NUMBERS {
            let Some(conditions) = self.conditions(number) else { continue };
            let call = permitted(self.role).find(|call| call.number == i64::from(number));
            let name = call.map_or("?", |call| call.name.trim_start_matches("SYS_"));
            let line = [&[format!("{number} {name}")], conditions.as_slice()].concat().join(", ");
            writeln!(text, "{line}").unwrap();
        }
        text
    }
}

fn name_of(value: u64) -> String {
    match value == u64::from(std::process::id()) {
        true => "PID".to_owned(),
        false => format!("{value:#x}"),
    }
}

/// Returns values of arguments: small ones, single bits, and those that have a meaning for a call.
fn values(number: u32) -> Vec<u64> {
    const THREAD: u64 = 0x003d_0f00;
    let mut values: Vec<u64> = (0..=64).chain(1024..=1040).collect();
    values.extend((0..64).map(|bit| 1_u64 << bit));
    values.extend([u64::from(u32::MAX), u64::MAX]);
    // Not for other calls, for which the result would depend on the bits of the PID.
    if i64::from(number) == libc::SYS_tgkill {
        let pid = u64::from(std::process::id());
        values.extend([pid, pid ^ 1, pid | 1 << 32]);
    }
    // prctl: PR_GET_AUXV; ioctl: TCGETS, PAGEMAP_SCAN, FIONBIO, FIOASYNC, FIOSETOWN, TIOCSTI,
    // FS_IOC_SETFLAGS; sign extended as by musl
    values.extend([
        0x4155_5856,
        0x5401,
        0xc060_6610,
        0xffff_ffff_c060_6610,
        0x5421,
        0x5452,
        0x8901,
        0x5412,
        0x4008_6602,
    ]);
    // clone: threads of glibc and musl, with CLONE_NEWUSER, without CLONE_THREAD
    values.extend([THREAD, THREAD | 0x40_0000, THREAD | 0x1000_0000, THREAD & !0x1_0000]);
    // open: O_WRONLY | O_CREAT | O_EXCL, with other flags, with O_RDWR, without O_EXCL; O_TMPFILE
    values.extend([0o301, 0o2_400_301, 0o302, 0o303, 0o101, 0o20_200_001, 0o20_200_000]);
    values.sort_unstable();
    values.dedup();
    values
}

fn check(role: Role, name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/seal").join(name);
    let list = Seal::new(role).list();
    if std::env::var_os("LOWTIDE_TEST_UPDATE").is_some() {
        std::fs::write(&path, &list).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    for (line, wanted) in list.lines().zip(expected.lines()) {
        assert_eq!(line, wanted);
    }
    assert_eq!(list, expected);
}

#[test]
fn the_exporter_may_make_only_the_calls_of_its_list() {
    check(Role::Exporter, "exporter.txt");
}

#[test]
fn the_process_for_files_may_make_only_the_calls_of_its_list() {
    check(Role::Files, "files.txt");
}

#[test]
fn no_x32_call_and_no_unknown_call_is_permitted() {
    for role in [Role::Exporter, Role::Files] {
        let seal = Seal::new(role);
        let unknown = [NUMBERS.end, X32 - 1, 0x8000_0000, u32::MAX];
        for number in NUMBERS.map(|number| number | X32).chain(unknown) {
            assert!(!seal.permits(number, seal.arguments(number & !X32)), "{number:#x}");
            for value in values(number & !X32) {
                assert!(!seal.permits(number, [value; 6]), "{number:#x} {value:#x}");
            }
        }
    }
}
