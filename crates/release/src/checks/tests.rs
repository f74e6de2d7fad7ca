use super::*;
use std::path::PathBuf;

use lowtide_model::inspection::{CLibrary, Linkage};
use lowtide_model::runtime_kind::RuntimeKind;
use lowtide_probe::detect::{DetectedAllocator, DetectedRuntime, OwnMemory};
use lowtide_probe::proc::maps::FileId;

fn named(name: &str, version: Option<&str>) -> Option<DetectedAllocator> {
    Some(DetectedAllocator {
        kind: AllocatorKind::parse(name),
        version: version.map(str::to_owned),
        linkage: Linkage::Dynamic,
        path: PathBuf::new(),
    })
}

fn with_malloc(name: &str, version: Option<&str>) -> Detected {
    Detected { malloc: named(name, version), ..Detected::default() }
}

/// Checks the version of the program's own allocator.
fn version_of(detected: &Detected) -> Result<(), Refusal> {
    check_version(detected.allocator().unwrap())
}

fn check_allocators(detected: &Detected, options: &Options) -> Result<(), Refusal> {
    check_any(detected, |allocator| check_allocator(allocator, detected, options), || false)
}

#[test]
fn an_untested_glibc_is_refused_with_a_list_of_the_tested_versions() {
    assert_eq!(version_of(&with_malloc("glibc", Some("2.41"))), Ok(()));
    let refused = version_of(&with_malloc("glibc", Some("2.30"))).unwrap_err().to_string();
    assert!(refused.contains("its glibc is 2.30") && refused.contains("2.27, 2.31"), "{refused}");
    let refused = version_of(&with_malloc("glibc", None)).unwrap_err();
    assert!(matches!(refused, Refusal::Untested { .. }), "{refused}");
}

#[test]
fn the_refusal_of_an_unsupported_allocator_names_it() {
    let any = Options::default();
    let name = |detected: &Detected| match check_allocators(detected, &any) {
        Err(Refusal::Allocator { name }) => name,
        other => panic!("{other:?}"),
    };
    assert_eq!(check_allocators(&with_malloc("glibc", None), &any), Ok(()));
    assert_eq!(name(&with_malloc("scudo", None)), "scudo");
    assert_eq!(name(&Detected::default()), "unknown");
    let of_go = DetectedRuntime {
        kind: RuntimeKind::Go,
        version: None,
        file: FileId::default(),
        memory: OwnMemory::None,
        is_started: true,
    };
    let go = Detected { runtimes: vec![of_go], ..Detected::default() };
    assert_eq!(name(&go), "Go's own");
    assert_eq!(name(&with_malloc("tcmalloc", None)), "tcmalloc");
}

#[test]
fn one_heap_that_may_be_released_is_enough_and_the_others_are_refused_alone() {
    let any = Options::default();
    let google = Detected { own: named("tcmalloc", None), ..with_malloc("glibc", None) };
    assert_eq!(check_allocators(&google, &any), Ok(()));
    let own = google.own.as_ref().unwrap();
    let refused = check_heap(own, &google, &any);
    assert_eq!(refused, Err(Refusal::Allocator { name: "tcmalloc".to_owned() }));
    let both = Detected { own: named("tcmalloc", None), ..with_malloc("scudo", None) };
    let refused = check_allocators(&both, &any);
    assert_eq!(refused, Err(Refusal::Allocator { name: "tcmalloc".to_owned() }));
}

#[test]
fn another_allocator_is_accepted_only_with_locks_that_are_known_and_if_selected() {
    let with_library = |name| Detected {
        own: named("jemalloc", Some("5.3.0")),
        c_library: Some(CLibrary { name, version: None }),
        ..with_malloc(name, Some("2.36"))
    };
    let any = Options::default();
    let only = |kind| Options { allocators: Some(vec![kind]), ..Options::default() };
    assert_eq!(check_allocators(&with_library("glibc"), &any), Ok(()));
    assert_eq!(check_allocators(&with_library("glibc"), &only(AllocatorKind::Jemalloc)), Ok(()));
    assert_eq!(check_allocators(&with_library("glibc"), &only(AllocatorKind::Glibc)), Ok(()));
    let refused = check_allocators(&with_library("glibc"), &only(AllocatorKind::Mimalloc));
    assert_eq!(refused, Err(Refusal::NotChosen { name: "jemalloc".to_owned() }));
    let of_musl = Detected { malloc: named("musl", Some("1.2.5")), ..with_library("musl") };
    let check = |found: &Option<_>| check_allocator(found.as_ref().unwrap(), &of_musl, &any);
    let refused = check(&of_musl.own).unwrap_err().to_string();
    assert!(refused.contains("jemalloc with the locks of musl"), "{refused}");
    assert_eq!(check(&of_musl.malloc), Ok(()));
}

#[test]
fn only_exactly_the_tested_versions_of_other_allocators_are_accepted() {
    let with = |version| Detected {
        own: named("jemalloc", version),
        ..with_malloc("glibc", Some("2.36"))
    };
    for version in
        ["5.1.0", "5.2.1-0-gea6b3e973b47", "5.2.1-2", "5.3.0", "5.3.0-0-g54eaed1d8b56", "5.3.1"]
    {
        assert_eq!(version_of(&with(Some(version))), Ok(()), "{version}");
    }
    let later = [Some("5.3.0-145"), Some("5.3.0-145-g54eaed1d8b56"), Some("5.3.1-1")];
    let others = [None, Some("5.3.10"), Some("5.3"), Some("5.2.2"), Some("15.3.0")];
    for version in later.into_iter().chain(others) {
        let refused = version_of(&with(version)).unwrap_err();
        assert!(matches!(refused, Refusal::Untested { .. }), "{version:?}");
    }
}

#[test]
fn the_refusal_of_a_sanitized_program_names_the_sanitizer() {
    use lowtide_probe::program::Sanitizer;
    let detected = Detected { sanitizer: Some(Sanitizer::Memory), ..with_malloc("glibc", None) };
    let refused = Err(Refusal::Sanitizer { name: "MemorySanitizer" });
    assert_eq!(check_sanitizer(&detected), refused);
}

#[test]
fn one_thread_with_a_shadow_stack_or_a_tracer_causes_a_refusal() {
    let plain = Status::default();
    assert_eq!((check_shadow_stack(&[plain]), check_traced(&[plain])), (Ok(()), Ok(())));
    let shadowed = Status { shadow_stack: true, ..plain };
    assert_eq!(check_shadow_stack(&[plain, shadowed]), Err(Refusal::ShadowStack));
    let second = Status { tracer: u32::MAX, ..plain };
    assert_eq!(check_traced(&[plain, second]), Err(Refusal::Traced { tracer: u32::MAX }));
}

#[test]
fn only_x86_64_elf_programs_are_accepted() {
    let mut header = [0; 20];
    header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    header[18] = 62;
    assert!(is_for(&header, 62));
    let other = |at: usize, byte| {
        let mut header = header;
        header[at] = byte;
        is_for(&header, 62)
    };
    // x32, aarch64, s390x's high byte, no ELF.
    assert!(!other(4, 1) && !other(18, 183) && !other(19, 1) && !other(0, b'#'));
}
