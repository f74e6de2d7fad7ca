//! TCP connections in the state ESTABLISHED that belong to a set of processes.
//!
//! The kernel is asked for all of them at once (`sock_diag`, one dump of both families, about 0.2 ms),
//! which names each by its inode. Whose an inode is, is found out by looking through the descriptors
//! of our processes, once for each inode that appears. (`/proc/net/tcp` says the same at twenty
//! times the cost.)

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

use crate::process::Process;

/// Counts the connections of a tree.
#[derive(Debug)]
pub struct Sockets {
    socket: OwnedFd,
    buffer: Vec<u8>,
    /// Of each connection that is there now: whether it is ours.
    ours: HashMap<u32, bool>,
    /// Of each process: the sockets behind its descriptors, as far as they were looked up.
    descriptors: HashMap<u32, BTreeMap<u32, Option<u32>>>,
    namespace: Option<u64>,
    /// The last answer: when, for how many open descriptors, and how many connections.
    last: Option<(Instant, u64, Option<u64>)>,
}

/// How old an answer may be. Without a descriptor that is opened or closed, a connection can only
/// change its state: one that was being made is made, or the other side closes it.
const OLDEST: Duration = Duration::from_secs(1);

impl Sockets {
    /// Opens the way to the kernel.
    ///
    /// # Errors
    /// When there is none: a kernel without `inet_diag`, or a sandbox that forbids it.
    pub fn open() -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(SOCK_DIAG),
        )?;
        let namespace = std::fs::metadata("/proc/self/ns/net");
        let mut sockets = Self {
            socket,
            buffer: vec![0; 1 << 16],
            ours: HashMap::new(),
            descriptors: HashMap::new(),
            last: None,
            namespace: namespace.ok().map(|meta| std::os::unix::fs::MetadataExt::ino(&meta)),
        };
        sockets.established()?;
        Ok(sockets)
    }

    /// How many connections the processes have, which have so many descriptors open. `None` when it
    /// cannot be told: one of them lives in another network namespace, or the kernel does not answer.
    pub fn count<'a>(
        &mut self,
        open_files: u64,
        processes: impl Iterator<Item = &'a Process>,
    ) -> Option<u64> {
        match self.last {
            Some((at, then, count)) if then == open_files && at.elapsed() < OLDEST => count,
            _ => {
                let count = self.count_now(processes);
                self.last = Some((Instant::now(), open_files, count));
                count
            }
        }
    }

    fn count_now<'a>(&mut self, processes: impl Iterator<Item = &'a Process>) -> Option<u64> {
        let now = self.established().ok()?;
        let known = std::mem::take(&mut self.ours);
        let new: Vec<u32> = now.iter().copied().filter(|i| !known.contains_key(i)).collect();
        self.ours = now.iter().filter_map(|i| Some((*i, *known.get(i)?))).collect();
        if !new.is_empty() {
            let owned = self.owned(processes)?;
            self.ours.extend(new.iter().map(|i| (*i, owned.contains(i))));
        }
        Some(self.ours.values().filter(|ours| **ours).count() as u64)
    }

    /// The inodes of all sockets of the processes. Descriptors that were a connection which is still
    /// there are not looked at again.
    fn owned<'a>(&mut self, processes: impl Iterator<Item = &'a Process>) -> Option<Vec<u32>> {
        let before = std::mem::take(&mut self.descriptors);
        let mut owned = Vec::new();
        for process in processes {
            if process.network_namespace() != self.namespace {
                return None;
            }
            let known = before.get(&process.pid);
            let mut table = BTreeMap::new();
            for descriptor in process.descriptors().unwrap_or_default() {
                let kept = known
                    .and_then(|k| k.get(&descriptor).copied().flatten())
                    .filter(|inode| self.ours.get(inode) == Some(&true));
                let inode = kept.or_else(|| process.socket_inode(descriptor));
                owned.extend(inode);
                table.insert(descriptor, inode);
            }
            self.descriptors.insert(process.pid, table);
        }
        Some(owned)
    }

    /// The inodes of all established connections of this network namespace.
    fn established(&mut self) -> io::Result<Vec<u32>> {
        let to = SocketAddrNetlink::new(0, 0);
        sendto(&self.socket, &dump_request(), SendFlags::empty(), &to)?;
        let mut inodes = Vec::new();
        loop {
            let (length, _) = recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::empty())?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if read_answer(&self.buffer[..length.min(self.buffer.len())], &mut inodes)? {
                return Ok(inodes);
            }
        }
    }
}

/// `TCPDIAG_GETSOCK`, the older request of inet_diag(7): the one that asks for IPv4 and IPv6 together.
const TCPDIAG_GETSOCK: u16 = 18;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const HEADER: usize = 16;
const TCP_ESTABLISHED: u32 = 1;
/// Where `idiag_inode` stands in `struct inet_diag_msg`.
const INODE_AT: usize = 68;

/// `struct nlmsghdr` and `struct inet_diag_req` of linux/inet_diag.h.
fn dump_request() -> Vec<u8> {
    const BODY: usize = 60;
    let mut request = Vec::with_capacity(HEADER + BODY);
    request.extend(((HEADER + BODY) as u32).to_ne_bytes());
    request.extend(TCPDIAG_GETSOCK.to_ne_bytes());
    request.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    request.extend([0; 8]);
    // Family, lengths of addresses, extensions; the id of a socket; then states and a database.
    request.extend([0; 4 + 48]);
    request.extend((1_u32 << TCP_ESTABLISHED).to_ne_bytes());
    request.extend([0; 4]);
    request
}

/// Takes the inodes out of one datagram. `true` when it is the last.
fn read_answer(mut bytes: &[u8], inodes: &mut Vec<u32>) -> io::Result<bool> {
    let u32_at = |bytes: &[u8], at: usize| -> Option<u32> {
        Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
    };
    while bytes.len() >= HEADER {
        let length = u32_at(bytes, 0).unwrap_or(0) as usize;
        let kind = u16::from_ne_bytes([bytes[4], bytes[5]]);
        if length < HEADER || length > bytes.len() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        match kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let code = u32_at(bytes, HEADER).unwrap_or(0) as i32;
                return Err(io::Error::from_raw_os_error(-code));
            }
            // A connection that nobody has accepted yet has no inode.
            _ => inodes.extend(u32_at(bytes, HEADER + INODE_AT).filter(|inode| *inode != 0)),
        }
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn only_connections_of_the_processes_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (us, _) = Process::open(std::process::id()).unwrap().unwrap();
        let mut sockets = Sockets::open().unwrap();
        let before = sockets.count_now([&us].into_iter()).unwrap();
        let mut open = Vec::new();
        for _ in 0..3 {
            open.push(TcpStream::connect(address).unwrap());
            open.push(listener.accept().unwrap().0);
        }
        let six = TcpListener::bind("[::1]:0").ok().map(|listener| {
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (client, listener.accept().unwrap(), listener)
        });
        let expected = 6 + if six.is_some() { 2 } else { 0 };
        assert_eq!(sockets.count_now([&us].into_iter()), Some(before + expected));
        assert_eq!(Sockets::open().unwrap().count_now(std::iter::empty()), Some(0));
        open.truncate(2);
        assert_eq!(sockets.count_now([&us].into_iter()), Some(before + expected - 4));
    }

    #[test]
    fn a_damaged_answer_is_an_error_and_not_a_loop() {
        let mut inodes = Vec::new();
        assert!(read_answer(&[0; 32], &mut inodes).is_err());
        assert!(!read_answer(&[1, 2, 3], &mut inodes).unwrap());
        assert!(inodes.is_empty());
    }
}
