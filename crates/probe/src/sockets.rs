//! TCP connections in the state ESTABLISHED that belong to a set of processes.
//!
//! The kernel lists all of them at once (`sock_diag`, one dump of both families, about 0.2 ms),
//! each with its inode. The owner of an inode is found by searching the descriptors of the
//! processes, once for each new inode. (`/proc/net/tcp` has the same data at twenty times the
//! cost.)

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::time::{Duration, Instant};

use crate::proc::is_gone;
use crate::process::ProcReader;
use crate::sock_diag::{DiagSocket, u32_at};

/// Counts the connections of a tree.
#[derive(Debug)]
pub struct Sockets {
    socket: DiagSocket,
    /// The owner of each current connection.
    owners: HashMap<u32, SocketOwner>,
    /// The sockets of each process's descriptors, as far as they were looked up.
    descriptors: HashMap<u32, BTreeMap<u32, Option<u32>>>,
    /// lowtide's network namespace, and the processes that are known to be in it.
    namespace: Option<u64>,
    neighbours: BTreeSet<(u32, u64)>,
    /// The last result: time, number of open descriptors, and number of connections.
    last: Option<(Instant, u64, Option<u64>)>,
}

/// The owner of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SocketOwner {
    /// One of the processes.
    Us,
    /// None of the processes, after this number of checks. A connection that is being accepted has
    /// no descriptor yet, and a new process is not known yet, so the check is repeated.
    Other(u8),
}

/// Number of checks after which a connection is considered foreign.
const ENOUGH_LOOKS: u8 = 3;

/// Maximum age of a result. Unless a descriptor is opened or closed, a connection can only change
/// its state: it becomes established, or the other side closes it.
const OLDEST: Duration = Duration::from_secs(1);

/// An address at which a process accepts connections.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listening {
    /// An address at which it can be reached from the same machine, in brackets for IPv6.
    pub address: String,
    /// The port.
    pub port: u16,
}

impl std::fmt::Display for Listening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.address, self.port)
    }
}

/// Returns the listening address of a process with the lowest port; `None` if it does not listen,
/// or if that may not be read.
pub fn listening(process: &ProcReader) -> Option<Listening> {
    let descriptors = process.descriptors().ok()?;
    let own: HashSet<u32> =
        descriptors.into_iter().filter_map(|number| process.socket_inode(number)).collect();
    let tables = ["net/tcp", "net/tcp6"];
    let lines = tables.iter().filter_map(|name| process.read_text(name).ok());
    let found = lines.flat_map(|text| listeners(&text));
    found.filter(|(inode, _)| own.contains(inode)).map(|(_, place)| place).min_by_key(|l| l.port)
}

/// Returns the listening sockets in a table of the kernel
/// (Documentation/networking/proc_net_tcp.rst), with their inodes.
fn listeners(table: &str) -> Vec<(u32, Listening)> {
    const LISTEN: &str = "0A";
    let listener = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let (address, port) = local.split_once(':')?;
        let place =
            Listening { address: reachable(address)?, port: u16::from_str_radix(port, 16).ok()? };
        (*state == LISTEN).then_some((inode.parse().ok()?, place))
    };
    table.lines().skip(1).filter_map(listener).collect()
}

/// Parses an address of the table, whose words are in the machine's byte order. Returns the
/// loopback address for the unspecified one.
fn reachable(hex: &str) -> Option<String> {
    let word = |at: usize| u32::from_str_radix(hex.get(at..at + 8)?, 16).ok();
    if hex.len() == 8 {
        let address = std::net::Ipv4Addr::from(word(0)?.to_ne_bytes());
        let address =
            if address.is_unspecified() { std::net::Ipv4Addr::LOCALHOST } else { address };
        return Some(address.to_string());
    }
    let mut bytes = [0; 16];
    for (place, at) in bytes.chunks_exact_mut(4).zip([0, 8, 16, 24]) {
        place.copy_from_slice(&word(at)?.to_ne_bytes());
    }
    let address = std::net::Ipv6Addr::from(bytes);
    match address.to_ipv4_mapped() {
        Some(address) => Some(address.to_string()),
        // Most such sockets accept IPv4 connections as well.
        None if address.is_unspecified() => Some("127.0.0.1".to_owned()),
        None => Some(format!("[{address}]")),
    }
}

impl Sockets {
    /// Opens the netlink socket.
    ///
    /// # Errors
    /// Fails if the kernel has no `inet_diag`, or if a sandbox forbids it.
    pub fn open() -> io::Result<Self> {
        let namespace = std::fs::metadata("/proc/self/ns/net");
        let mut sockets = Self {
            socket: DiagSocket::open()?,
            owners: HashMap::new(),
            descriptors: HashMap::new(),
            namespace: namespace.ok().map(|meta| std::os::unix::fs::MetadataExt::ino(&meta)),
            neighbours: BTreeSet::new(),
            last: None,
        };
        sockets.established()?;
        Ok(sockets)
    }

    /// Returns the number of connections of the processes, which have `open_files` open
    /// descriptors. `None` if it cannot be determined: one of them is in another network namespace,
    /// or the kernel does not answer.
    pub fn count<'a>(
        &mut self,
        open_files: u64,
        processes: impl Iterator<Item = &'a ProcReader>,
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

    fn count_now<'a>(&mut self, processes: impl Iterator<Item = &'a ProcReader>) -> Option<u64> {
        let processes: Vec<&ProcReader> = processes.collect();
        if !processes.iter().all(|process| self.is_neighbour(process)) {
            return None;
        }
        let now = self.established().ok()?;
        let known = std::mem::take(&mut self.owners);
        self.owners = now
            .into_iter()
            .map(|inode| (inode, known.get(&inode).copied().unwrap_or(SocketOwner::Other(0))))
            .collect();
        if self.owners.values().any(|owner| owner.is_open()) {
            let owned = self.owned(&processes)?;
            for (inode, owner) in self.owners.iter_mut().filter(|(_, owner)| owner.is_open()) {
                *owner = match *owner {
                    _ if owned.contains(inode) => SocketOwner::Us,
                    SocketOwner::Other(looks) => SocketOwner::Other(looks + 1),
                    SocketOwner::Us => SocketOwner::Us,
                };
            }
        }
        Some(self.owners.values().filter(|owner| **owner == SocketOwner::Us).count() as u64)
    }

    /// Returns whether a process is in lowtide's network namespace: the kernel does not report the
    /// connections of others.
    fn is_neighbour(&mut self, process: &ProcReader) -> bool {
        let key = (process.pid, process.start_ticks);
        if self.neighbours.contains(&key) {
            return true;
        }
        let namespace = process.network_namespace();
        // A process that has just ended has no connections either.
        let is_one = namespace == self.namespace
            || namespace.is_none() && process.has_ended(&mut Vec::new());
        if is_one {
            self.neighbours.insert(key);
        }
        is_one
    }

    /// Returns the inodes of all sockets of the processes; `None` if one of them may not be
    /// inspected. Descriptors of connections that still exist are not read again.
    fn owned(&mut self, processes: &[&ProcReader]) -> Option<HashSet<u32>> {
        let before = std::mem::take(&mut self.descriptors);
        let mut owned = HashSet::new();
        for process in processes {
            let known = before.get(&process.pid);
            let mut table = BTreeMap::new();
            let descriptors = match process.descriptors() {
                Ok(descriptors) => descriptors,
                Err(error) if is_gone(&error) => Vec::new(),
                Err(_) => return None,
            };
            for descriptor in descriptors {
                let kept = known
                    .and_then(|k| k.get(&descriptor).copied().flatten())
                    .filter(|inode| self.owners.get(inode) == Some(&SocketOwner::Us));
                let inode = kept.or_else(|| process.socket_inode(descriptor));
                owned.extend(inode);
                table.insert(descriptor, inode);
            }
            self.descriptors.insert(process.pid, table);
        }
        Some(owned)
    }

    /// Returns the inodes of all established connections of this network namespace.
    fn established(&mut self) -> io::Result<Vec<u32>> {
        let mut inodes = Vec::new();
        // A connection that was not accepted yet has no inode.
        let inode = |message: &[u8]| u32_at(message, INODE_AT).filter(|inode| *inode != 0);
        self.socket.dump(TCPDIAG_GETSOCK, &established_request(), |message| {
            inodes.extend(inode(message));
        })?;
        Ok(inodes)
    }
}

impl SocketOwner {
    /// Returns whether the owner must still be searched for.
    fn is_open(self) -> bool {
        matches!(self, Self::Other(looks) if looks < ENOUGH_LOOKS)
    }
}

/// Returns the number of connections of a process, also in another network namespace. It reads the
/// tables of the process's own namespace, which costs more. `None` if they, or its descriptors, may
/// not be read.
pub(crate) fn count_in_its_namespace(process: &ProcReader) -> Option<u64> {
    let descriptors = process.descriptors().ok()?;
    let owned: HashSet<u32> =
        descriptors.into_iter().filter_map(|d| process.socket_inode(d)).collect();
    let table = |name: &str| process.read_text(&format!("net/{name}")).ok();
    let tables = [table("tcp")?, table("tcp6").unwrap_or_default()];
    let inodes = tables.iter().flat_map(|text| established_in(text));
    Some(inodes.filter(|inode| owned.contains(inode)).count() as u64)
}

/// Returns the inodes of established connections in the text of `/proc/PID/net/tcp`.
fn established_in(text: &str) -> impl Iterator<Item = u32> {
    text.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let is_established = fields.nth(3)? == "01";
        let inode = fields.nth(5)?.parse().ok()?;
        is_established.then_some(inode)
    })
}

/// `TCPDIAG_GETSOCK`, the older request of inet_diag(7): the one that asks for IPv4 and IPv6
/// together.
const TCPDIAG_GETSOCK: u16 = 18;
const TCP_ESTABLISHED: u32 = 1;
/// Offset of `idiag_inode` in `struct inet_diag_msg`, in bytes.
const INODE_AT: usize = 68;

/// Returns the request: `struct inet_diag_req` of linux/inet_diag.h.
fn established_request() -> Vec<u8> {
    // Family, lengths of addresses, extensions; the id of a socket; then states and a database.
    let mut request = vec![0; 4 + 48];
    request.extend((1_u32 << TCP_ESTABLISHED).to_ne_bytes());
    request.extend([0; 4]);
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listening_port_of_a_process_is_found() {
        let (process, _) = ProcReader::open(std::process::id()).unwrap().unwrap();
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let text = process.read_text("net/tcp").unwrap();
        let found = listeners(&text).into_iter().map(|(_, place)| place).find(|l| l.port == port);
        assert_eq!(found.unwrap().to_string(), format!("127.0.0.1:{port}"));
        assert!(listening(&process).is_some());
        assert_eq!(reachable("00000000").as_deref(), Some("127.0.0.1"));
        assert_eq!(reachable(&"0".repeat(32)).as_deref(), Some("127.0.0.1"));
        assert_eq!(reachable("xyz"), None);
    }
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn only_connections_of_the_given_processes_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (us, _) = ProcReader::open(std::process::id()).unwrap().unwrap();
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
        // A child that another test has just forked holds them until it executes its program.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while sockets.count_now([&us].into_iter()) != Some(before + expected - 4) {
            assert!(std::time::Instant::now() < deadline, "closed connections still count");
            std::thread::yield_now();
        }
    }

    #[test]
    fn established_connections_are_parsed_from_the_kernels_table() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
           0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 123 1 0 100 0 0 10 0\n\
           1: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 456 1 0 20 4 30 10 -1\n";
        assert_eq!(established_in(text).collect::<Vec<_>>(), [456]);
    }
}
