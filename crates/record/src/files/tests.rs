use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use rustix::fs::mknodat;

use super::*;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Returns the reason in the error of a result.
fn reason<T: std::fmt::Debug>(result: io::Result<T>) -> UnsafePath {
    let error = result.unwrap_err();
    UnsafePath::of(&error).unwrap_or_else(|| panic!("{error}"))
}

#[test]
fn a_file_is_replaced_only_on_request_and_atomically() {
    let home = tempfile::tempdir().unwrap();
    let page = home.path().join("page.html");
    write_whole(&page, b"one", false).unwrap();
    let error = write_whole(&page, b"two", false).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&page).unwrap(), b"one");
    write_whole(&page, b"two", true).unwrap();
    assert_eq!(fs::read(&page).unwrap(), b"two");
    assert_eq!(page.metadata().unwrap().permissions().mode() & 0o777, MODE);
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1, "nothing else is left");
}

#[test]
fn symbolic_links_and_fifos_are_rejected() {
    let home = tempfile::tempdir().unwrap();
    let [victim, link, fifo] = ["victim", "link", "fifo"].map(|name| home.path().join(name));
    fs::write(&victim, "precious").unwrap();
    symlink(&victim, &link).unwrap();
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
    for path in [&link, &fifo] {
        assert!(create(path).is_err(), "{path:?}");
        assert!(append_private(path).is_err(), "{path:?}");
        assert!(open_read(path).is_err(), "{path:?}");
        for replace in [false, true] {
            assert!(write_whole(path, b"new", replace).is_err(), "{path:?}");
        }
    }
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
}

#[test]
fn an_existing_file_that_others_may_have_opened_or_named_is_rejected() {
    let home = tempfile::tempdir().unwrap();
    let [victim, name] = ["victim", "name"].map(|name| home.path().join(name));
    fs::write(&victim, "precious").unwrap();
    set_mode(&victim, 0o640);
    fs::hard_link(&victim, &name).unwrap();
    assert_eq!(reason(append_private(&name)), UnsafePath::HardLinks);
    assert_eq!(reason(create(&name)), UnsafePath::HardLinks);
    fs::remove_file(&name).unwrap();
    set_mode(&victim, 0o666);
    assert_eq!(reason(append_private(&victim)), UnsafePath::SharedFile);
    assert_eq!(reason(create(&victim)), UnsafePath::SharedFile);
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    set_mode(&victim, 0o640);
    append_private(&victim).unwrap().write_all(b"!").unwrap();
    assert_eq!(fs::read(&victim).unwrap(), b"precious!");
}

#[test]
fn an_interface_of_the_kernel_is_no_file_to_write_to() {
    let comm = Path::new("/proc/self/comm");
    let before = fs::read(comm).unwrap();
    assert_eq!(reason(create(comm)), UnsafePath::KernelFile);
    assert!(append_private(comm).is_err());
    assert_eq!(fs::read(comm).unwrap(), before);
}

#[test]
fn a_directory_is_private_only_if_no_other_user_can_change_it() {
    let home = tempfile::tempdir().unwrap();
    let [above, directory] = ["above", "above/directory"].map(|name| home.path().join(name));
    create_directories(&directory, 0o777).unwrap();
    let file = directory.join("file");
    for (mode_above, mode, is_private, is_path_private) in [
        (0o755, 0o755, true, true),
        (0o755, 0o775, false, false),
        (0o755, 0o1777, false, false),
        (0o777, 0o755, true, false),
        // Like /tmp.
        (0o1777, 0o755, true, true),
        // Like /var/log of Ubuntu.
        (0o775, 0o755, true, true),
    ] {
        set_mode(&above, mode_above);
        set_mode(&directory, mode);
        let modes = format!("{mode_above:o} {mode:o}");
        for opened in [append_private(&file).map(drop), replace_for_all(&file, b"")] {
            assert_eq!(opened.is_ok(), is_private, "{modes}");
        }
        assert_eq!(check_private(&file).is_ok(), is_private, "{modes}");
        assert_eq!(replace_library(&file, b"").is_ok(), is_path_private, "{modes}");
        // One file for one run may be anywhere.
        write_whole(&file, b"", true).unwrap();
        fs::remove_file(&file).unwrap();
    }
    set_mode(&directory, 0o777);
    assert_eq!(reason(append_private(&file)), UnsafePath::SharedDirectory);
}

#[test]
fn own_links_to_directories_are_followed() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name);
    create_directories(&path("disk/of/mine"), 0o777).unwrap();
    symlink(path("disk"), path("absolute")).unwrap();
    symlink("../disk/of", path("disk/relative")).unwrap();
    symlink("loop", path("loop")).unwrap();
    create_new(&path("absolute/relative/mine/file")).unwrap();
    assert!(path("disk/of/mine/file").exists());
    create_directories(&path("absolute/new/er"), 0o777).unwrap();
    assert!(path("disk/new/er").is_dir());
    let looped = create_new(&path("loop/file")).unwrap_err();
    assert_eq!(looped.raw_os_error(), Some(Errno::LOOP.raw_os_error()));
    let through_file = create_new(&path("disk/of/mine/file/x")).unwrap_err();
    assert_eq!(through_file.kind(), io::ErrorKind::NotADirectory);
}

#[test]
fn a_relative_path_starts_in_the_working_directory() {
    assert!(open_existing(Path::new("Cargo.toml")).is_ok());
    let created = create_new(Path::new("./Cargo.toml")).unwrap_err();
    assert_eq!(created.kind(), io::ErrorKind::AlreadyExists);
}

#[test]
fn only_a_socket_of_the_caller_is_shared() {
    let home = tempfile::tempdir().unwrap();
    let [victim, link, socket] = ["victim", "link", "socket"].map(|name| home.path().join(name));
    fs::write(&victim, "").unwrap();
    set_mode(&victim, 0o600);
    symlink(&victim, &link).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    share_socket(&socket).unwrap();
    assert!(share_socket(&victim).is_err() && share_socket(&link).is_err());
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&socket), mode(&victim)), (0o666, 0o600));
}

/// Changes the owner of a path, but not of what a link leads to.
fn give_to_nobody(path: &Path) {
    std::os::unix::fs::lchown(path, Some(65_534), Some(65_534)).unwrap();
}

#[test]
#[ignore = "needs root, to give files to another user"]
fn as_root_no_directory_file_or_link_of_another_user_is_trusted() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { home.path().join(name) };
    for name in ["foreign/below", "own", "victim"] {
        create_directories(&path(name), 0o777).unwrap();
    }
    give_to_nobody(&path("foreign"));
    let log = path("foreign/log");
    assert_eq!(reason(append_private(&log)), UnsafePath::ForeignDirectory);
    assert_eq!(reason(replace_for_all(&log, b"")), UnsafePath::ForeignDirectory);
    // Like /var/lib/prometheus/node-exporter of Debian.
    append_private(&path("foreign/below/log")).unwrap();
    let library = replace_library(&path("foreign/below/library"), b"");
    assert_eq!(reason(library), UnsafePath::ForeignDirectory);
    fs::write(path("own/log"), "").unwrap();
    give_to_nobody(&path("own/log"));
    assert_eq!(reason(append_private(&path("own/log"))), UnsafePath::ForeignFile);
    assert_eq!(reason(create(&path("own/log"))), UnsafePath::ForeignFile);
    symlink(path("victim"), path("foreign/link")).unwrap();
    give_to_nobody(&path("foreign/link"));
    for name in ["foreign/link/new", "foreign/link/deeper/new"] {
        assert_eq!(reason(create_new(&path(name))), UnsafePath::ForeignLink, "{name}");
        assert_eq!(
            reason(create_directories(&path(name), 0o777)),
            UnsafePath::ForeignLink,
            "{name}"
        );
        assert_eq!(reason(write_whole(&path(name), b"", true)), UnsafePath::ForeignLink, "{name}");
    }
    assert_eq!(fs::read_dir(path("victim")).unwrap().count(), 0);
}
