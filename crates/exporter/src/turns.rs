//! Whose password is verified next, and when.
//!
//! A verification takes a tenth of a second of CPU time or more (bcrypt), and every client can ask
//! for one. So one password is verified at a time, and after a wrong one, a pause follows: wrong
//! passwords cost at most a tenth of a core.
//!
//! A client that has not sent a wrong password for a while comes before those that have, and does
//! not wait for the end of a pause. So clients with wrong passwords delay a new scraper of another
//! address by one verification.
//!
//! At the address of such clients, a new scraper cannot be distinguished from them, except in one
//! way: it sends the same password again. So a request whose credentials have waited in vain comes
//! before those whose credentials are new.

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
/// Time for which a wrong password counts against its client, and for which credentials that have
/// waited in vain count for it.
const MEMORY: Duration = Duration::from_secs(600);
/// Maximum number of clients with wrong passwords. Beyond it, all clients wait like these.
const MAX_CLIENTS: usize = 256;
/// Minimum time for which credentials wait in vain to be remembered. With this and the bound on
/// connections, at most 256 are added each second,
const MIN_WAIT: Duration = Duration::from_secs(1);
/// and this maximum number of them holds those of a minute: Prometheus scrapes once a minute.
const MAX_UNVERIFIED: usize = 1 << 14;

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

/// A request that waits for a verification.
#[derive(Debug)]
struct Waiting {
    client: Client,
    /// A keyed hash of its credentials.
    credentials: u64,
    begin: Instant,
    /// The time at which these credentials first waited.
    first: Instant,
}

/// The requests that wait for a verification.
#[derive(Debug, Default)]
struct Queue {
    next: u64,
    /// By the order of arrival.
    waiting: BTreeMap<u64, Waiting>,
    /// Credentials that have waited in vain, and the time at which they first waited.
    unverified: HashMap<u64, Instant>,
    is_taken: bool,
    /// The clients with wrong passwords, and the time of the last one.
    wrong: HashMap<Client, Instant>,
    pause_ends: Option<Instant>,
}

impl Queue {
    fn add(&mut self, client: Client, credentials: u64, now: Instant) -> u64 {
        let place = self.next;
        self.next += 1;
        let earlier = self.unverified.get(&credentials).copied();
        let first = earlier.filter(|first| is_remembered(*first, now)).unwrap_or(now);
        self.waiting.insert(place, Waiting { client, credentials, begin: now, first });
        place
    }

    /// Removes a request that no longer waits. One without its turn has waited in vain.
    fn remove(&mut self, place: u64, now: Instant) {
        let Some(waiting) = self.waiting.remove(&place) else { return };
        if now.saturating_duration_since(waiting.begin) < MIN_WAIT {
            return;
        }
        let is_known = self.unverified.contains_key(&waiting.credentials);
        if !is_known && self.unverified.len() >= MAX_UNVERIFIED {
            let oldest = self.unverified.iter().min_by_key(|(_, first)| **first);
            let oldest = oldest.map(|(credentials, _)| *credentials);
            oldest.and_then(|credentials| self.unverified.remove(&credentials));
        }
        self.unverified.insert(waiting.credentials, waiting.first);
    }

    fn comes_last(&self, client: Client) -> bool {
        self.wrong.len() >= MAX_CLIENTS || self.wrong.contains_key(&client)
    }

    /// Takes the turn for a place, if it is next.
    fn take(&mut self, place: u64, now: Instant) -> Wait {
        if self.is_taken {
            return Wait::Change;
        }
        self.wrong.retain(|_, last| is_remembered(*last, now));
        let order = |(place, waiting): (&u64, &Waiting)| {
            (self.comes_last(waiting.client), waiting.first, *place)
        };
        let Some((comes_last, _, next)) = self.waiting.iter().map(order).min() else {
            return Wait::Change;
        };
        if next != place {
            return Wait::Change;
        }
        let rest = self.pause_ends.map(|end| end.saturating_duration_since(now));
        match rest.filter(|rest| comes_last && !rest.is_zero()) {
            Some(rest) => Wait::Pause(rest),
            None => {
                if let Some(waiting) = self.waiting.remove(&place) {
                    self.unverified.remove(&waiting.credentials);
                }
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

fn is_remembered(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < MEMORY
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

    /// Waits until a password of this client may be verified. `credentials` is a keyed hash of it.
    pub(crate) async fn wait(self: &Arc<Self>, client: Client, credentials: u64) -> Turn {
        let number = self.queue().add(client, credentials, Instant::now());
        let place = Place { turns: Arc::clone(self), number };
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
        self.turns.queue().remove(self.number, Instant::now());
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

    /// Returns the place of a request with credentials that no other request has.
    fn add(queue: &mut Queue, client: Client, now: Instant) -> u64 {
        queue.add(client, queue.next, now)
    }

    /// Returns a queue in which a client has sent a wrong password, and the time of that.
    fn after_a_wrong_password() -> (Queue, Instant) {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let place = add(&mut queue, client(1), now);
        assert_eq!(queue.take(place, now), Wait::Nothing);
        queue.add_wrong(client(1), CPU, now);
        queue.is_taken = false;
        (queue, now)
    }

    #[test]
    fn after_a_wrong_password_its_client_waits_nine_times_as_long_as_the_verification_took() {
        let (mut queue, now) = after_a_wrong_password();
        let again = add(&mut queue, client(1), now);
        assert_eq!(queue.take(again, now), Wait::Pause(CPU * 9));
        assert_eq!(queue.take(again, now + CPU * 9), Wait::Nothing);
        let next = add(&mut queue, client(1), now);
        assert_eq!(queue.take(next, now + CPU * 9), Wait::Change);
    }

    #[test]
    fn another_client_comes_first_and_waits_for_no_pause() {
        let (mut queue, now) = after_a_wrong_password();
        let flood: Vec<u64> = (0..200).map(|_| add(&mut queue, client(1), now)).collect();
        let new = add(&mut queue, client(2), now);
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
        let (late, place) = (add(&mut queue, client(2), now), add(&mut queue, client(1), now));
        assert_eq!(queue.take(place, now + MEMORY), Wait::Nothing);
        queue.is_taken = false;
        assert_eq!(queue.take(late, now + MEMORY), Wait::Pause(CPU * 9));
    }

    #[test]
    fn at_the_address_of_a_flood_a_scraper_that_comes_again_is_next() {
        let flood = |queue: &mut Queue, client, now| -> Vec<u64> {
            (0..255).map(|_| add(queue, client, now)).collect()
        };
        for client in [client(1), Client::Local] {
            let (mut queue, now) = (Queue::default(), Instant::now());
            queue.add_wrong(client, CPU, now);
            let flooding = flood(&mut queue, client, now);
            let scraper = queue.add(client, u64::MAX, now);
            let now = now + MIN_WAIT;
            assert_eq!(queue.take(scraper, now), Wait::Change);
            // None of them waits any longer.
            flooding.iter().chain([&scraper]).for_each(|place| queue.remove(*place, now));
            let now = now + Duration::from_secs(60);
            let flooding = flood(&mut queue, client, now);
            let scraper = queue.add(client, u64::MAX, now);
            assert!(flooding.iter().all(|place| queue.take(*place, now) == Wait::Change));
            assert_eq!(queue.take(scraper, now), Wait::Nothing);
            assert!(!queue.unverified.contains_key(&u64::MAX));
        }
    }

    #[test]
    fn credentials_that_left_at_once_or_long_ago_count_for_nothing() {
        let (mut queue, now) = after_a_wrong_password();
        let [short, old] = [1, 2].map(|credentials| queue.add(client(1), credentials, now));
        queue.remove(short, now + MIN_WAIT / 2);
        queue.remove(old, now + MIN_WAIT);
        assert_eq!(queue.unverified.keys().collect::<Vec<_>>(), [&2]);
        let now = now + MEMORY;
        queue.add_wrong(client(1), CPU, now);
        let new = add(&mut queue, client(1), now);
        let again = queue.add(client(1), 2, now);
        assert_eq!(queue.take(again, now + CPU * 9), Wait::Change);
        assert_eq!(queue.take(new, now + CPU * 9), Wait::Nothing);
    }

    #[test]
    fn of_too_many_credentials_the_oldest_are_forgotten() {
        let (mut queue, now) = after_a_wrong_password();
        for credentials in 0..=MAX_UNVERIFIED as u64 {
            let place = queue.add(client(1), credentials, now + CPU * credentials as u32);
            queue.remove(place, now + CPU * credentials as u32 + MIN_WAIT);
        }
        assert!(!queue.unverified.contains_key(&0) && queue.unverified.contains_key(&1));
        assert_eq!(queue.unverified.len(), MAX_UNVERIFIED);
    }

    #[test]
    fn clients_of_many_addresses_wait_for_pauses_too() {
        let (mut queue, now) = after_a_wrong_password();
        for last in 0..=255 {
            queue.add_wrong(client(last), CPU, now);
        }
        queue.add_wrong(IpAddr::from([198, 51, 100, 1]).into(), CPU, now);
        assert_eq!(queue.wrong.len(), MAX_CLIENTS);
        let new = add(&mut queue, IpAddr::from([203, 0, 113, 1]).into(), now);
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
            let first = turns.wait(client(1), 1).await;
            let mut given_up = Box::pin(turns.wait(client(2), 2));
            tokio::select! { _ = &mut given_up => panic!(), () = tokio::task::yield_now() => {} }
            let mut next = Box::pin(turns.wait(client(3), 3));
            tokio::select! { _ = &mut next => panic!(), () = tokio::task::yield_now() => {} }
            drop(given_up);
            drop(first);
            drop(next.await);
            assert!(turns.queue().waiting.is_empty() && !turns.queue().is_taken);
        });
    }
}
