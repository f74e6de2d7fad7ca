//! Whose password is verified next, and when.
//!
//! A verification takes a tenth of a second of CPU time or more (bcrypt), and every client can ask
//! for one. So one password is verified at a time, and after a wrong one, a pause follows: wrong
//! passwords cost at most a tenth of a core.
//!
//! A client that has not sent a wrong password for a while comes before those that have, and does
//! not wait for the end of a pause. So clients with wrong passwords delay a new scraper of another
//! address by one verification.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep;

/// Duration of the pause after a wrong password, as a multiple of the CPU time that it cost.
const PAUSE_FACTOR: u32 = 9;
/// Maximum duration of a pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Maximum time after which a request looks again whether it is next: wrong passwords are forgotten
/// with time.
const REORDER: Duration = Duration::from_secs(1);
/// Time for which a wrong password counts against its client.
const MEMORY: Duration = Duration::from_secs(600);
/// Maximum number of clients with wrong passwords. Beyond it, all clients wait like these.
const MAX_CLIENTS: usize = 256;

/// A client: an IPv4 address, or the upper half of an IPv6 address, whose lower half a host chooses
/// freely. All clients of a Unix socket are one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Client {
    Address(IpAddr),
    Local,
}

impl From<IpAddr> for Client {
    fn from(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
            address @ IpAddr::V4(_) => address,
        })
    }
}

/// What a request has to wait for.
#[derive(Debug, PartialEq, Eq)]
enum Wait {
    /// For nothing: it is its turn.
    Nothing,
    /// For another request.
    Change,
    /// For the end of a pause.
    Pause(Duration),
}

/// The requests that wait for a verification.
#[derive(Debug, Default)]
struct Queue {
    next: u64,
    /// By the order of arrival.
    waiting: BTreeMap<u64, Client>,
    is_taken: bool,
    /// The clients with wrong passwords, and the time of the last one.
    wrong: HashMap<Client, Instant>,
    pause_ends: Option<Instant>,
}

impl Queue {
    fn add(&mut self, client: Client) -> u64 {
        let place = self.next;
        self.next += 1;
        self.waiting.insert(place, client);
        place
    }

    fn comes_last(&self, client: Client) -> bool {
        self.wrong.len() >= MAX_CLIENTS || self.wrong.contains_key(&client)
    }

    /// Takes the turn for a place, if it is next.
    fn take(&mut self, place: u64, now: Instant) -> Wait {
        if self.is_taken {
            return Wait::Change;
        }
        self.wrong.retain(|_, last| now.saturating_duration_since(*last) < MEMORY);
        let order = |(place, client): (&u64, &Client)| (self.comes_last(*client), *place);
        let Some((comes_last, first)) = self.waiting.iter().map(order).min() else {
            return Wait::Change;
        };
        if first != place {
            return Wait::Change;
        }
        let rest = self.pause_ends.map(|end| end.saturating_duration_since(now));
        match rest.filter(|rest| comes_last && !rest.is_zero()) {
            Some(rest) => Wait::Pause(rest),
            None => {
                self.waiting.remove(&place);
                self.is_taken = true;
                Wait::Nothing
            }
        }
    }

    /// Notes that a password was wrong, after this CPU time.
    fn add_wrong(&mut self, client: Client, cpu: Duration, now: Instant) {
        if self.wrong.len() < MAX_CLIENTS || self.wrong.contains_key(&client) {
            self.wrong.insert(client, now);
        }
        let end = now + cpu.saturating_mul(PAUSE_FACTOR).min(LONGEST_PAUSE);
        self.pause_ends = self.pause_ends.max(Some(end));
    }
}

/// The verifications, which run one at a time.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    queue: Mutex<Queue>,
    changed: Notify,
}

/// The place of a request that waits, which is removed on drop: its client may have gone.
struct Place {
    turns: Arc<Turns>,
    number: u64,
}

/// The right to verify a password, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Arc<Turns>,
    client: Client,
}

impl Turns {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a password of this client may be verified.
    pub(crate) async fn wait(self: &Arc<Self>, client: Client) -> Turn {
        let place = Place { turns: Arc::clone(self), number: self.queue().add(client) };
        loop {
            // Created before the queue is asked, so that no change is missed.
            let changed = self.changed.notified();
            let wait = self.queue().take(place.number, Instant::now());
            match wait {
                Wait::Nothing => return Turn { turns: Arc::clone(self), client },
                // The order also changes with time.
                Wait::Change => tokio::select! { () = changed => {}, () = sleep(REORDER) => {} },
                Wait::Pause(rest) => tokio::select! { () = changed => {}, () = sleep(rest) => {} },
            }
        }
    }
}

impl Turn {
    /// Notes that the password was wrong, after this CPU time in seconds.
    pub(crate) fn add_wrong(&self, cpu_s: f64) {
        let cpu = Duration::try_from_secs_f64(cpu_s).unwrap_or_default();
        self.turns.queue().add_wrong(self.client, cpu, Instant::now());
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.queue().is_taken = false;
        self.turns.changed.notify_waiters();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.turns.queue().waiting.remove(&self.number);
        self.turns.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: Duration = Duration::from_millis(100);

    fn client(last: u8) -> Client {
        IpAddr::from([192, 0, 2, last]).into()
    }

    /// Returns a queue in which a client has sent a wrong password, and the time of that.
    fn after_a_wrong_password() -> (Queue, Instant) {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let place = queue.add(client(1));
        assert_eq!(queue.take(place, now), Wait::Nothing);
        queue.add_wrong(client(1), CPU, now);
        queue.is_taken = false;
        (queue, now)
    }

    #[test]
    fn after_a_wrong_password_its_client_waits_nine_times_as_long_as_the_verification_took() {
        let (mut queue, now) = after_a_wrong_password();
        let again = queue.add(client(1));
        assert_eq!(queue.take(again, now), Wait::Pause(CPU * 9));
        assert_eq!(queue.take(again, now + CPU * 9), Wait::Nothing);
        let next = queue.add(client(1));
        assert_eq!(queue.take(next, now + CPU * 9), Wait::Change);
    }

    #[test]
    fn another_client_comes_first_and_waits_for_no_pause() {
        let (mut queue, now) = after_a_wrong_password();
        let flood: Vec<u64> = (0..200).map(|_| queue.add(client(1))).collect();
        let new = queue.add(client(2));
        assert!(flood.iter().all(|place| queue.take(*place, now) == Wait::Change));
        assert_eq!(queue.take(new, now), Wait::Nothing);
        // Its password was right.
        queue.is_taken = false;
        assert_eq!(queue.take(flood[0], now), Wait::Pause(CPU * 9));
    }

    #[test]
    fn a_client_is_forgiven_later() {
        let (mut queue, now) = after_a_wrong_password();
        queue.add_wrong(client(2), CPU, now + MEMORY);
        let (late, place) = (queue.add(client(2)), queue.add(client(1)));
        assert_eq!(queue.take(place, now + MEMORY), Wait::Nothing);
        queue.is_taken = false;
        assert_eq!(queue.take(late, now + MEMORY), Wait::Pause(CPU * 9));
    }

    #[test]
    fn clients_of_many_addresses_wait_for_pauses_too() {
        let (mut queue, now) = after_a_wrong_password();
        for last in 0..=255 {
            queue.add_wrong(client(last), CPU, now);
        }
        queue.add_wrong(IpAddr::from([198, 51, 100, 1]).into(), CPU, now);
        assert_eq!(queue.wrong.len(), MAX_CLIENTS);
        let new = queue.add(IpAddr::from([203, 0, 113, 1]).into());
        assert_eq!(queue.take(new, now), Wait::Pause(CPU * 9));
    }

    #[test]
    fn the_addresses_of_one_host_are_one_client() {
        let client = |text: &str| Client::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(client("2001:db8::1"), client("2001:db8::ffff:2:3"));
        assert_ne!(client("2001:db8::1"), client("2001:db8:0:1::1"));
        assert_eq!(client("::ffff:192.0.2.1"), client("192.0.2.1"));
        assert_ne!(client("192.0.2.1"), client("192.0.2.2"));
    }

    #[test]
    fn a_request_that_is_given_up_leaves_the_queue() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let turns = Arc::new(Turns::default());
            let first = turns.wait(client(1)).await;
            let mut given_up = Box::pin(turns.wait(client(2)));
            tokio::select! { _ = &mut given_up => panic!(), () = tokio::task::yield_now() => {} }
            let mut next = Box::pin(turns.wait(client(3)));
            tokio::select! { _ = &mut next => panic!(), () = tokio::task::yield_now() => {} }
            drop(given_up);
            drop(first);
            drop(next.await);
            assert!(turns.queue().waiting.is_empty() && !turns.queue().is_taken);
        });
    }
}
