//! The buffers of sockets: data that was not read yet.
//!
//! The kernel charges data in a unix socket to the process that has written it, and counts it for
//! its socket until the other side reads it. The buffers of a TCP socket, for both directions, are
//! charged to the cgroup in which it was made. The kernel lists the sockets of a network namespace
//! only to a thread in it (unix_diag.h, inet_diag.h), so each namespace is read by a thread of its
//! own.

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
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;
const UDIAG_SHOW_MEMINFO: u32 = 0x20;
const ALL_STATES: u32 = u32::MAX;
/// All states but TIME_WAIT (net/tcp_states.h): such a socket has no buffers, and there are many.
const WITH_BUFFERS: u32 = !(1 << 6);

/// Places in the counts of `SO_MEMINFO`: received and unread, written and unread, allocated in
/// advance, and written and not acknowledged, in bytes (`SK_MEMINFO_…`).
const RECEIVED: usize = 0;
const WRITTEN: usize = 2;
const IN_ADVANCE: usize = 4;
const QUEUED: usize = 5;

/// How the kernel lists the sockets of a protocol.
struct SocketProtocol {
    requests: fn() -> Vec<Vec<u8>>,
    /// Offset of the inode in the head of a message, and the size of the head, in bytes.
    inode_at: usize,
    head: usize,
    /// The attribute with the counts of `SO_MEMINFO`.
    attribute: u16,
    /// The counts that the cgroup is charged for.
    counts: &'static [usize],
}

/// `struct unix_diag_msg`, `UNIX_DIAG_MEMINFO`.
const UNIX: SocketProtocol = SocketProtocol {
    requests: unix_requests,
    inode_at: 4,
    head: 16,
    attribute: 5,
    counts: &[WRITTEN],
};

/// `struct inet_diag_msg`, `INET_DIAG_SKMEMINFO`.
const TCP: SocketProtocol = SocketProtocol {
    requests: tcp_requests,
    inode_at: 68,
    head: 72,
    attribute: 7,
    counts: &[RECEIVED, IN_ADVANCE, QUEUED],
};

/// The buffers of the sockets of processes, in bytes by PID.
#[derive(Debug, Default)]
pub(super) struct SocketBuffers {
    pub(super) unix: BTreeMap<u32, u64>,
    pub(super) tcp: BTreeMap<u32, u64>,
    /// Whether the sockets of all namespaces could be read.
    pub(super) is_complete: bool,
}

/// The buffers of sockets, by inode.
#[derive(Debug, Default)]
struct ByInode {
    unix: HashMap<u32, u64>,
    tcp: HashMap<u32, u64>,
    /// Whether both lists could be read.
    is_complete: bool,
}

impl SocketBuffers {
    pub(super) fn read(descriptors: &Descriptors) -> Self {
        let mut found = Self { is_complete: true, ..Self::default() };
        let mut namespaces: BTreeMap<u64, ByInode> = BTreeMap::new();
        let mut of_process: Option<(u32, Option<u64>)> = None;
        for (pid, inode) in descriptors.sockets() {
            if of_process.is_none_or(|(process, _)| process != pid) {
                of_process = Some((pid, namespace(pid)));
            }
            let Some((_, Some(namespace))) = of_process else { continue };
            if !namespaces.contains_key(&namespace) {
                let read = namespaces.len() < MAX_NAMESPACES;
                let sockets = read.then(|| buffers(pid)).and_then(Result::ok).unwrap_or_default();
                found.is_complete &= sockets.is_complete;
                namespaces.insert(namespace, sockets);
            }
            let Some(sockets) = namespaces.get_mut(&namespace) else { continue };
            // Each socket once, whatever the number of its descriptors.
            for (sum, of) in
                [(&mut found.unix, &mut sockets.unix), (&mut found.tcp, &mut sockets.tcp)]
            {
                *sum.entry(pid).or_default() += of.remove(&inode).unwrap_or(0);
            }
        }
        found
    }
}

/// Returns the inode of the network namespace of a process.
fn namespace(pid: u32) -> Option<u64> {
    Some(fs::metadata(format!("/proc/{pid}/ns/net")).ok()?.ino())
}

/// Returns the buffers of the sockets in the network namespace of a process.
fn buffers(pid: u32) -> io::Result<ByInode> {
    let own = namespace(std::process::id());
    let namespace_file = File::open(format!("/proc/{pid}/ns/net"))?;
    let is_own = own == Some(namespace_file.metadata()?.ino());
    let read = move || {
        if !is_own {
            move_into_link_name_space(namespace_file.as_fd(), Some(LinkNameSpaceType::Network))?;
        }
        // A kernel can have one list without the other.
        let (unix, tcp) = (UNIX.read(), TCP.read());
        let is_complete = unix.is_ok() && tcp.is_ok();
        let (unix, tcp) = (unix.unwrap_or_default(), tcp.unwrap_or_default());
        Ok(ByInode { unix, tcp, is_complete })
    };
    let ended = thread::Builder::new().spawn(read)?.join();
    ended.unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))
}

impl SocketProtocol {
    fn read(&self) -> io::Result<HashMap<u32, u64>> {
        let mut sockets = HashMap::new();
        for request in (self.requests)() {
            DiagSocket::open()?.dump(SOCK_DIAG_BY_FAMILY, &request, |message| {
                sockets.extend(self.parse(message).filter(|(_, bytes)| *bytes > 0));
            })?;
        }
        Ok(sockets)
    }

    /// Returns the inode of a socket, and the bytes of its buffers.
    fn parse(&self, message: &[u8]) -> Option<(u32, u64)> {
        let inode = u32_at(message, self.inode_at)?;
        let mut attributes = message.get(self.head..)?;
        while let Some(head) = u32_at(attributes, 0) {
            let head = head.to_ne_bytes();
            let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
            if u16::from_ne_bytes([head[2], head[3]]) == self.attribute {
                let counts = attributes.get(4..length)?;
                let count = |place: &usize| u32_at(counts, place * 4).map(u64::from);
                return Some((inode, self.counts.iter().map(count).sum::<Option<u64>>()?));
            }
            attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
        }
        None
    }
}

/// Returns the request for all unix sockets: `struct unix_diag_req`.
fn unix_requests() -> Vec<Vec<u8>> {
    let mut request = vec![AF_UNIX, 0, 0, 0];
    for word in [ALL_STATES, 0, UDIAG_SHOW_MEMINFO, u32::MAX, u32::MAX] {
        request.extend(word.to_ne_bytes());
    }
    vec![request]
}

/// Returns the requests for all TCP sockets: `struct inet_diag_req_v2`, for each family.
fn tcp_requests() -> Vec<Vec<u8>> {
    let extension = 1 << (TCP.attribute - 1);
    let request = |family| {
        let mut request = vec![family, IPPROTO_TCP, extension, 0];
        request.extend(WITH_BUFFERS.to_ne_bytes());
        request.resize(56, 0);
        request
    };
    vec![request(AF_INET), request(AF_INET6)]
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    use super::*;

    fn inode(socket: &dyn AsRawFd) -> u32 {
        let link = fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
        let text = link.to_str().unwrap();
        text.trim_start_matches("socket:[").trim_end_matches(']').parse().unwrap()
    }

    #[test]
    fn unread_data_is_counted_for_the_socket_that_wrote_it() {
        let (mut writer, reader) = UnixStream::pair().unwrap();
        writer.set_nonblocking(true).unwrap();
        let mut written = 0;
        while let Ok(length) = writer.write(&[0; 4096]) {
            written += length as u64;
        }
        let sockets = buffers(std::process::id()).unwrap().unix;
        assert!(sockets[&inode(&writer)] >= written, "{written}: {sockets:?}");
        assert_eq!(sockets.get(&inode(&reader)), None);
    }

    #[test]
    fn the_buffers_of_tcp_are_counted_for_both_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let reader = listener.accept().unwrap().0;
        writer.write_all(&[0; 64 << 10]).unwrap();
        // It may be under way.
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let sockets = buffers(std::process::id()).unwrap().tcp;
            let of = |socket: &dyn AsRawFd| sockets.get(&inode(socket)).copied().unwrap_or(0);
            if of(&reader) + of(&writer) >= 64 << 10 {
                break;
            }
            assert!(Instant::now() < deadline, "{sockets:?}");
        }
    }

    #[test]
    fn malformed_messages_have_no_counts() {
        let mut message = vec![0; UNIX.head];
        assert_eq!(UNIX.parse(&message), None);
        message.extend([255, 255, 5, 0, 1, 2, 3, 4]);
        assert_eq!(UNIX.parse(&message), None);
        message.truncate(UNIX.head);
        message.extend([0; 64]);
        assert_eq!(UNIX.parse(&message), None);
    }
}
