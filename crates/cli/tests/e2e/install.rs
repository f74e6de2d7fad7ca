//! `packaging/install.sh`, with packages that hold a script in place of the program.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/install.sh");

/// A directory with packages, and one to install to.
struct Place {
    directory: tempfile::TempDir,
    /// Name of the package of this processor, without its ending.
    name: String,
}

impl Place {
    fn new() -> Self {
        let name = format!("lowtide-9.8.7-{}-linux", std::env::consts::ARCH);
        let place = Self { directory: tempfile::tempdir().unwrap(), name };
        place.pack("#!/bin/sh\necho lowtide 9.8.7\n");
        place.sum(&format!("{}.tar.gz", place.name));
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes the package, with a program of this text.
    fn pack(&self, program: &str) {
        let tree = self.path(&self.name);
        fs::create_dir_all(&tree).unwrap();
        fs::write(tree.join("lowtide"), program).unwrap();
        fs::set_permissions(tree.join("lowtide"), fs::Permissions::from_mode(0o755)).unwrap();
        let package = format!("{}.tar.gz", self.name);
        self.shell(&format!("tar -czf {package} {0} && rm -r {0}", self.name));
    }

    /// Writes the checksums of files.
    fn sum(&self, files: &str) {
        self.shell(&format!("sha256sum {files} > SHA256SUMS"));
    }

    fn shell(&self, text: &str) {
        let done = Command::new("sh").args(["-euc", text]).current_dir(&self.directory).output();
        let done = done.unwrap();
        assert!(done.status.success(), "{text}: {done:?}");
    }

    fn url(&self) -> String {
        format!("file://{}/", self.directory.path().display())
    }

    fn install(&self, url: &str) -> Output {
        self.install_to(url, &self.path("bin"))
    }

    fn install_to(&self, url: &str, directory: &Path) -> Output {
        let mut command = Command::new("sh");
        command.arg(SCRIPT).arg(directory).env("LOWTIDE_URL", url);
        command.env("TMPDIR", self.directory.path()).output().unwrap()
    }

    /// Checks that the script fails with one sentence, and that it leaves nothing behind.
    fn fails(&self, url: &str, sentence: &str) {
        let done = self.install(url);
        let errors = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(1), "{done:?}");
        assert!(errors.contains(sentence), "{errors}");
        assert!(!self.path("bin/lowtide").exists(), "{errors}");
        self.has_no_remains();
    }

    fn has_no_remains(&self) {
        let names = fs::read_dir(self.directory.path()).unwrap();
        let names: Vec<String> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert!(!names.iter().any(|name| name.starts_with("tmp.")), "{names:?}");
    }
}

#[test]
fn the_script_installs_what_has_the_checksum() {
    let place = Place::new();
    let done = place.install(&place.url());
    let printed = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{done:?}");
    let program = place.path("bin/lowtide");
    assert!(printed.contains(&format!("lowtide 9.8.7 is in {}", program.display())), "{printed}");
    assert!(printed.contains("PATH does not contain"), "{printed}");
    let output = Command::new(&program).output().unwrap();
    assert_eq!(output.stdout, b"lowtide 9.8.7\n");
    place.has_no_remains();
}

#[test]
fn the_script_replaces_an_older_program() {
    let place = Place::new();
    fs::create_dir(place.path("bin")).unwrap();
    fs::write(place.path("bin/lowtide"), "old").unwrap();
    assert!(place.install(&place.url()).status.success());
    assert!(fs::read_to_string(place.path("bin/lowtide")).unwrap().contains("9.8.7"));
}

#[test]
fn the_script_installs_nothing_that_differs_from_its_checksum() {
    let place = Place::new();
    place.pack("#!/bin/sh\necho changed\n");
    place.fails(&place.url(), "has another checksum than in SHA256SUMS: nothing was installed");
}

#[test]
fn the_script_installs_no_program_that_does_not_run() {
    let place = Place::new();
    place.pack("#!/bin/sh\nexit 1\n");
    place.sum(&format!("{}.tar.gz", place.name));
    place.fails(&place.url(), "contains a program that does not run here: nothing was installed");
}

#[test]
fn the_script_names_what_is_wrong_with_the_address() {
    let place = Place::new();
    place.fails("", "LOWTIDE_URL is not set");
    place.fails("ftp://127.0.0.1", "is not an address");
    place.fails(&format!("{}nowhere", place.url()), "could not be read: check LOWTIDE_URL");
    place.shell("sed -i s/linux.tar/plan9.tar/ SHA256SUMS");
    place.fails(&place.url(), "names no package for");
}

#[test]
fn the_script_chooses_no_version_of_several() {
    let place = Place::new();
    let package = format!("{}.tar.gz", place.name);
    let newer = package.replace("9.8.7", "9.8.8");
    place.shell(&format!("cp {package} {newer}"));
    place.sum(&format!("{package} {newer}"));
    place.fails(&place.url(), "has several versions: name the directory of one");
}

#[test]
fn a_directory_that_cannot_be_written_to_is_named() {
    let place = Place::new();
    fs::write(place.path("file"), "").unwrap();
    let done = place.install_to(&place.url(), &place.path("file"));
    let errors = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    assert!(errors.contains("cannot be written to: name another directory"), "{errors}");
}
