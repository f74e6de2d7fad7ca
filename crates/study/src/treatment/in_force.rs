//! Checks whether a treatment is in force in a process: whether its allocator provides malloc
//! there.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use lowtide_probe::program::{ProgramError, ProgramFacts, Provider};
use lowtide_record::v1::AllocatorCheck;

use super::ResolvedTreatment;
use crate::allocator::Delivery;
use crate::programs::find_program;

const SETUID: &str = "it is a setuid program: the loader ignores LD_PRELOAD";

impl ResolvedTreatment {
    /// Checks whether the treatment is in force in a process that was examined.
    pub fn check(
        &self,
        command: &[String],
        found: &Result<ProgramFacts, ProgramError>,
    ) -> AllocatorCheck {
        match found {
            Ok(found) => self.check_found(found),
            Err(error) => {
                let setuid = matches!(error, ProgramError::NotPermitted)
                    && command.first().is_some_and(|program| is_setuid(program))
                    && matches!(self.allocator.delivery, Delivery::Preload { .. });
                AllocatorCheck {
                    active: setuid.then_some(false),
                    provider: None,
                    because: Some(if setuid { SETUID.to_owned() } else { error.to_string() }),
                }
            }
        }
    }

    fn check_found(&self, found: &ProgramFacts) -> AllocatorCheck {
        if self.allocator.delivery == Delivery::Own {
            let (Provider::Library(file) | Provider::Executable(file) | Provider::Static(file)) =
                &found.provider;
            let provider = Some(file.path.display().to_string());
            return AllocatorCheck { active: Some(true), provider, because: None };
        }
        let (Provider::Library(file) | Provider::Executable(file) | Provider::Static(file)) =
            &found.provider;
        let path = file.path.display();
        let wanted = match &self.allocator.delivery {
            Delivery::Own => true,
            Delivery::System => file.is_c_library() && !path.to_string().contains("ld-musl"),
            Delivery::Preload { path, library } => file.id == *library || file.path == *path,
            Delivery::Loader { library, libraries, .. } => {
                file.id == *library || (file.is_c_library() && file.path.starts_with(libraries))
            }
        };
        let because = if matches!(found.provider, Provider::Static(_)) {
            Some("it is linked statically: its own malloc cannot be replaced".to_owned())
        } else if matches!(found.provider, Provider::Executable(_)) {
            Some("it exports its own malloc, which precedes that of every library".to_owned())
        } else if let Some(built_in) = &found.built_in {
            Some(format!("it has its own allocator compiled in ({})", built_in.kind))
        } else if wanted {
            None
        } else if found.is_secure {
            Some(SETUID.to_owned())
        } else if matches!(self.allocator.delivery, Delivery::Loader { .. }) {
            Some(format!("it was started by the system's loader, and runs on {path}"))
        } else if file.is_c_library() && matches!(self.allocator.delivery, Delivery::Preload { .. })
        {
            Some(format!(
                "its malloc comes from {path}: LD_PRELOAD did not reach it, as with su, sudo or env -i. Run lowtide \
                 as that user, or start the program with setpriv --reuid=USER, which keeps the environment"
            ))
        } else {
            Some(format!("its malloc comes from {path}"))
        };
        AllocatorCheck {
            active: Some(because.is_none()),
            provider: Some(path.to_string()),
            because,
        }
    }
}

fn is_setuid(program: &str) -> bool {
    let meta = find_program(program, None, None).and_then(|path| fs::metadata(path).ok());
    let us = rustix::process::geteuid().as_raw();
    meta.is_some_and(|m| m.permissions().mode() & 0o6000 != 0 && m.uid() != us)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::TreatmentAllocator;
    use crate::treatment::fixtures::{glibc, preloaded};
    use lowtide_model::allocator_kind::AllocatorKind;
    use lowtide_probe::proc::maps::FileId;
    use lowtide_probe::program::{BuiltIn, LoadedFile};

    fn file(path: &str, inode: u64) -> LoadedFile {
        LoadedFile { path: path.into(), id: FileId { device: (8, 1), inode } }
    }

    fn found(provider: Provider) -> ProgramFacts {
        ProgramFacts { provider, built_in: None, is_secure: false }
    }

    #[test]
    fn a_preloaded_library_is_in_force_when_it_provides_malloc() {
        let ours = found(Provider::Library(file("/elsewhere/same.so", 7)));
        assert_eq!(preloaded().check_found(&ours).active, Some(true));
        let libc = found(Provider::Library(file("/lib/libc.so.6", 9)));
        let because = preloaded().check_found(&libc).because.unwrap();
        assert!(because.starts_with("its malloc comes from /lib/libc.so.6: LD_PRELOAD did not"));
    }

    #[test]
    fn glibc_is_not_in_force_in_a_program_that_is_linked_with_jemalloc() {
        let redis = found(Provider::Library(file("/usr/lib/libjemalloc.so.2", 9)));
        assert_eq!(glibc().check_found(&redis).active, Some(false));
        let libc = found(Provider::Library(file("/lib/libc.so.6", 9)));
        assert_eq!(glibc().check_found(&libc).active, Some(true));
        let musl = found(Provider::Library(file("/lib/ld-musl-x86_64.so.1", 9)));
        assert_eq!(glibc().check_found(&musl).active, Some(false));
    }

    #[test]
    fn static_setuid_and_built_in_allocators_are_reported_with_the_reason() {
        let reason = |e: &ProgramFacts| preloaded().check_found(e).because.unwrap_or_default();
        assert!(reason(&found(Provider::Static(file("/bin/x", 1)))).contains("statically"));
        assert!(reason(&found(Provider::Executable(file("/bin/x", 1)))).contains("its own malloc"));
        let mut rust = found(Provider::Library(file("/cache/libjemalloc.so", 7)));
        rust.built_in = Some(BuiltIn { kind: AllocatorKind::Mimalloc });
        assert!(reason(&rust).contains("compiled in (mimalloc)"));
        let mut setuid = found(Provider::Library(file("/lib/libc.so.6", 9)));
        setuid.is_secure = true;
        assert!(reason(&setuid).contains("setuid"));
    }

    #[test]
    fn the_own_allocator_of_a_program_is_always_in_force() {
        let allocator =
            TreatmentAllocator { name: "own".into(), version: None, delivery: Delivery::Own };
        let own = ResolvedTreatment::new(&allocator, None);
        let found = found(Provider::Static(file("/bin/x", 1)));
        assert_eq!(own.check_found(&found).active, Some(true));
    }
}
