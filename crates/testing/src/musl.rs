//! Programs that are linked with musl.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::{compile, library_of_compiler};

/// A musl: the system's (Debian: `musl-dev`), or one in a directory (`.ci/fetch-packages`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Musl {
    root: PathBuf,
}

/// The way in which a program is linked with musl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MuslLinkage {
    /// With its shared library.
    Dynamic,
    /// Statically, at a fixed address.
    Static,
    /// Statically, at any address.
    StaticPie,
}

impl MuslLinkage {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Dynamic, Self::Static, Self::StaticPie];
}

impl Musl {
    /// Returns the system's.
    pub fn systems() -> Self {
        Self { root: PathBuf::from("/") }
    }

    /// Returns the system's, and those in the directories that `LOWTIDE_TEST_MUSLS` lists, with
    /// colons between.
    pub fn all() -> Vec<Self> {
        let listed = std::env::var("LOWTIDE_TEST_MUSLS").unwrap_or_default();
        let others = listed.split(':').filter(|root| !root.is_empty());
        let others = others.map(|root| Self { root: PathBuf::from(root) });
        std::iter::once(Self::systems()).chain(others).collect()
    }

    /// Returns the directory of its libraries.
    fn libraries(&self) -> PathBuf {
        self.root.join(format!("usr/lib/{}-linux-musl", std::env::consts::ARCH))
    }

    /// Returns its shared library. Debian's were in `/lib` up to Debian 11.
    fn shared_library(&self) -> PathBuf {
        let usual = self.libraries().join("libc.so");
        let older = format!("lib/{}-linux-musl/libc.so", std::env::consts::ARCH);
        if usual.exists() { usual } else { self.root.join(older) }
    }

    /// Returns its version, from the text that its shared library contains.
    ///
    /// # Panics
    /// Panics if it is not there.
    pub fn version(&self) -> String {
        let library = self.shared_library();
        let bytes = std::fs::read(&library).unwrap_or_else(|error| panic!("{library:?}: {error}"));
        let texts = bytes.split(|byte| *byte == 0).filter_map(|text| str::from_utf8(text).ok());
        let is_version = |text: &&str| {
            let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
            text.starts_with("1.") && text.split('.').count() == 3 && text.split('.').all(digits)
        };
        texts.filter(is_version).map(str::to_owned).next().expect("a version")
    }

    /// Compiles a program. The arguments are sources and flags.
    ///
    /// # Panics
    /// Panics if it does not compile.
    pub fn compile<A: AsRef<OsStr>>(
        &self,
        linkage: MuslLinkage,
        program: &Path,
        arguments: impl IntoIterator<Item = A>,
    ) {
        let arch = std::env::consts::ARCH;
        let library = |name: &str| self.libraries().join(name).into_os_string();
        let text = |text: &str| OsString::from(text);
        let include = self.root.join(format!("usr/include/{arch}-linux-musl"));
        let mut all = vec![text("-nostdinc"), text("-isystem"), include.into_os_string()];
        // Those of the compiler, and of the kernel.
        let kernels = ["/usr/include".to_owned(), format!("/usr/include/{arch}-linux-gnu")];
        let others = std::iter::once(library_of_compiler("include"));
        for directory in others.chain(kernels.map(PathBuf::from)) {
            all.extend([text("-idirafter"), directory.into_os_string()]);
        }
        all.push(text("-nostdlib"));
        let (flags, start): (&[&str], _) = match linkage {
            MuslLinkage::Dynamic => (&["-pie", "-fPIE"], "Scrt1.o"),
            MuslLinkage::Static => (&["-static", "-no-pie", "-fno-pie"], "crt1.o"),
            MuslLinkage::StaticPie => (&["-static-pie", "-fPIE"], "rcrt1.o"),
        };
        all.extend(flags.iter().map(|flag| text(flag)));
        let c_library = match linkage {
            MuslLinkage::Dynamic => self.shared_library().into_os_string(),
            MuslLinkage::Static | MuslLinkage::StaticPie => library("libc.a"),
        };
        if linkage == MuslLinkage::Dynamic {
            let mut loader = text("-Wl,-dynamic-linker,");
            loader.push(&c_library);
            all.push(loader);
        }
        all.extend([library(start), library("crti.o")]);
        all.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        // The two need each other.
        let end = [c_library.clone(), text("-lgcc"), c_library, library("crtn.o")];
        compile(program, all.into_iter().chain(end));
    }
}
