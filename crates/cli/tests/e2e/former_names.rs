//! Studies and subjects once had the numbers of documents in their names. Links preserve those names.

use std::fs;
use std::path::{Path, PathBuf};

use lowtide_study::Settings;

const STUDIES: [(&str, &str); 8] = [
    ("000-million-streams", "million-streams"),
    ("001-containers", "containers"),
    ("001-frameworks", "frameworks"),
    ("001-three-servers", "three-servers"),
    ("001-uploads", "uploads"),
    ("002-python-httpx", "python-httpx"),
    ("003-hoard", "hoard"),
    ("004-node-tls", "node-tls"),
];

const SUBJECTS: [(&str, &str); 5] = [
    ("000-server", "million-streams"),
    ("001-containers", "containers"),
    ("001-frameworks", "frameworks"),
    ("003-hoard", "hoard"),
    ("004-node-tls", "node-tls"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the settings of a study as text, with `{cache}` in place of its cache directory, which is named
/// after the file.
fn said(study: &str) -> String {
    let file = root().join("studies").join(format!("{study}.toml"));
    let settings = Settings::read(&file, &[], Path::new("/cache")).unwrap();
    format!("{settings:#?}").replace(&format!("/cache/studies/{study}"), "{cache}")
}

#[test]
fn a_former_name_of_a_study_gives_the_same_study() {
    for (former, name) in STUDIES {
        assert_eq!(said(former), said(name));
    }
}

/// Records refer to the folders of studies, and studies of other projects may refer to those of subjects.
#[test]
fn former_folder_names_resolve_to_the_renamed_studies_and_subjects() {
    let studies = STUDIES.map(|names| ("studies", names));
    let subjects = SUBJECTS.map(|names| ("subjects", names));
    let mut found = 0;
    for (parent, (former, name)) in studies.into_iter().chain(subjects) {
        let folder = root().join(parent).join(name);
        if folder.is_dir() {
            let by_former_name = root().join(parent).join(former);
            assert_eq!(
                fs::canonicalize(by_former_name).unwrap(),
                fs::canonicalize(folder).unwrap()
            );
            found += 1;
        }
    }
    assert_eq!(found, 12, "of the studies, only `uploads` has no folder");
}
