//! Data in unix sockets that was written and not read yet.
//!
//! The kernel charges it to the process that has written it, and counts it for its socket until the
//! other side reads it. It lists the sockets of a network namespace only to a thread in it
//! (unix_diag.h), so each namespace is read by a thread of its own.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::descriptors::Descriptors;
use crate::sock_diag::{DiagSocket, u32_at};

/// Maximum number of network namespaces.
const MAX_NAMESPACES: usize = 64;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const AF_UNIX: u8 = 1;
const UDIAG_SHOW_MEMINFO: u32 = 0x20;
/// Attribute with the counts of `SO_MEMINFO`.
const UNIX_DIAG_MEMINFO: u16 = 5;
/// Place of the written and unread bytes in it (`SK_MEMINFO_WMEM_ALLOC`).
const WRITTEN: usize = 2;
/// Offset of `udiag_ino` in `struct unix_diag_msg`, and its size, in bytes.
const INODE_AT: usize = 4;
const MESSAGE: usize = 16;

/// The unread bytes of unix sockets by the process that wrote them.
#[derive(Debug, Default)]
pub(super) struct UnixSockets {
    pub(super) bytes: BTreeMap<u32, u64>,
    /// Whether the sockets of all namespaces could be read.
    pub(super) is_complete: bool,
}

impl UnixSockets {
    pub(super) fn read(descriptors: &Descriptors) -> Self {
        let mut found = Self { is_complete: true, ..Self::default() };
        let mut namespaces: BTreeMap<u64, HashMap<u32, u64>> = BTreeMap::new();
        let mut of_process: Option<(u32, Option<u64>)> = None;
        for (pid, inode) in descriptors.sockets() {
            if of_process.is_none_or(|(process, _)| process != pid) {
                of_process = Some((pid, namespace(pid)));
            }
            let Some((_, Some(namespace))) = of_process else { continue };
            if !namespaces.contains_key(&namespace) {
                let read = namespaces.len() < MAX_NAMESPACES;
                let sockets = read.then(|| unread(pid)).and_then(Result::ok);
                found.is_complete &= sockets.is_some();
                namespaces.insert(namespace, sockets.unwrap_or_default());
            }
            // Each socket once, whatever the number of its descriptors.
            let bytes = namespaces.get_mut(&namespace).and_then(|all| all.remove(&inode));
            *found.bytes.entry(pid).or_default() += bytes.unwrap_or(0);
        }
        found
    }
}

/// Returns the inode of the network namespace of a process.
fn namespace(pid: u32) -> Option<u64> {
    Some(fs::metadata(format!("/proc/{pid}/ns/net")).ok()?.ino())
}

/// Returns the unread bytes of the sockets in the network namespace of a process, by inode.
fn unread(pid: u32) -> io::Result<HashMap<u32, u64>> {
    let own = namespace(std::process::id());
    let namespace_file = File::open(format!("/proc/{pid}/ns/net"))?;
    let is_own = own == Some(namespace_file.metadata()?.ino());
    let read = move || {
        if !is_own {
            move_into_link_name_space(namespace_file.as_fd(), Some(LinkNameSpaceType::Network))?;
        }
        let mut sockets = HashMap::new();
        DiagSocket::open()?.dump(SOCK_DIAG_BY_FAMILY, &request(), |message| {
            sockets.extend(parse(message).filter(|(_, bytes)| *bytes > 0));
        })?;
        Ok(sockets)
    };
    let ended = thread::Builder::new().spawn(read)?.join();
    ended.unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))
}

/// Returns the request: `struct unix_diag_req`.
fn request() -> Vec<u8> {
    let mut request = vec![AF_UNIX, 0, 0, 0];
    let all_states = u32::MAX;
    for word in [all_states, 0, UDIAG_SHOW_MEMINFO, u32::MAX, u32::MAX] {
        request.extend(word.to_ne_bytes());
    }
    request
}

/// Returns the inode of a socket, and the bytes that it has written and that are unread.
fn parse(message: &[u8]) -> Option<(u32, u64)> {
    let inode = u32_at(message, INODE_AT)?;
    let mut attributes = message.get(MESSAGE..)?;
    while let Some(head) = u32_at(attributes, 0) {
        let head = head.to_ne_bytes();
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        if u16::from_ne_bytes([head[2], head[3]]) == UNIX_DIAG_MEMINFO {
            let counts = attributes.get(4..length)?;
            return Some((inode, u64::from(u32_at(counts, WRITTEN * 4)?)));
        }
        attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn unread_data_is_counted_for_the_socket_that_wrote_it() {
        let (mut writer, reader) = UnixStream::pair().unwrap();
        writer.set_nonblocking(true).unwrap();
        let mut written = 0;
        while let Ok(length) = writer.write(&[0; 4096]) {
            written += length as u64;
        }
        let sockets = unread(std::process::id()).unwrap();
        let inode = |socket: &UnixStream| {
            let link = fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
            let text = link.to_str().unwrap().to_owned();
            text.trim_start_matches("socket:[").trim_end_matches(']').parse::<u32>().unwrap()
        };
        assert!(sockets[&inode(&writer)] >= written, "{written}: {sockets:?}");
        assert_eq!(sockets.get(&inode(&reader)), None);
    }

    #[test]
    fn malformed_messages_have_no_counts() {
        let mut message = vec![0; MESSAGE];
        assert_eq!(parse(&message), None);
        message.extend([255, 255, 5, 0, 1, 2, 3, 4]);
        assert_eq!(parse(&message), None);
        message.truncate(MESSAGE);
        message.extend([0; 64]);
        assert_eq!(parse(&message), None);
    }
}
