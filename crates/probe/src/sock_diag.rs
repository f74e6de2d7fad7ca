//! The kernel's lists of sockets (sock_diag(7)).

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Size of `struct nlmsghdr`, in bytes.
const HEADER: usize = 16;

/// A netlink socket that lists the sockets of the network namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct DiagSocket {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl DiagSocket {
    /// Opens it.
    ///
    /// # Errors
    /// Fails if the kernel has no `sock_diag`, or if a sandbox forbids it.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { socket: open()?, buffer: vec![0; 1 << 16] })
    }

    /// Sends a request of a type, and calls a function with the payload of each message of the
    /// answer.
    ///
    /// # Errors
    /// Fails if the kernel does not know the request. The socket then has no rest of an answer.
    pub(crate) fn dump(
        &mut self,
        kind: u16,
        body: &[u8],
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        let done = self.try_dump(kind, body, &mut each);
        if done.is_err() {
            self.socket = open()?;
        }
        done
    }

    fn try_dump(&mut self, kind: u16, body: &[u8], each: &mut impl FnMut(&[u8])) -> io::Result<()> {
        let to = SocketAddrNetlink::new(0, 0);
        sendto(&self.socket, &request(kind, body), SendFlags::empty(), &to)?;
        loop {
            let (length, _) = recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::empty())?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if read_answer(&self.buffer[..length.min(self.buffer.len())], each)? {
                return Ok(());
            }
        }
    }
}

fn open() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
    Ok(socket_with(family, kind, SocketFlags::CLOEXEC, Some(SOCK_DIAG))?)
}

fn request(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut request = Vec::with_capacity(HEADER + body.len());
    request.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    request.extend([0; 8]);
    request.extend(body);
    request
}

/// Returns the word at an offset.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Reads the messages of one datagram. Returns `true` if it is the last.
fn read_answer(mut bytes: &[u8], each: &mut impl FnMut(&[u8])) -> io::Result<bool> {
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
            _ => each(&bytes[HEADER..length]),
        }
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_reply_is_an_error_and_not_an_endless_loop() {
        let mut messages = 0;
        assert!(read_answer(&[0; 32], &mut |_| messages += 1).is_err());
        assert!(!read_answer(&[1, 2, 3], &mut |_| messages += 1).unwrap());
        assert_eq!(messages, 0);
    }
}
