//! The open connections, in a bounded number.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::task::AbortHandle;

use crate::turns::Client;

/// Maximum number of connections at once. A further one replaces one of the client that has most:
/// the one that has been without a complete request for the longest time.
pub(crate) const MAX_CONNECTIONS: usize = 256;

/// A connection.
#[derive(Debug)]
struct Connection {
    client: Client,
    /// The time of its last complete request, or of its start.
    last_request: Instant,
    has_request: bool,
    /// `None` until its task has started.
    task: Option<AbortHandle>,
}

/// The open connections.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    open: Mutex<(u64, HashMap<u64, Connection>)>,
}

/// The entry of a connection, which is removed on drop.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionEntry(Arc<Place>);

#[derive(Debug)]
struct Place {
    connections: Arc<Connections>,
    id: u64,
    client: Client,
}

impl Connections {
    fn open(&self) -> MutexGuard<'_, (u64, HashMap<u64, Connection>)> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection. Returns its entry, and whether another one was closed for it.
    pub(crate) fn add(self: &Arc<Self>, client: Client) -> (ConnectionEntry, bool) {
        let mut open = self.open();
        let (next, open) = &mut *open;
        let is_full = open.len() >= MAX_CONNECTIONS;
        if is_full {
            let mut counts = HashMap::new();
            open.values().for_each(|one| *counts.entry(one.client).or_insert(0) += 1);
            let most = counts.values().max();
            let of_most = open.iter().filter(|(_, one)| counts.get(&one.client) == most);
            let longest = of_most.min_by_key(|(id, one)| (one.last_request, **id));
            let longest = longest.map(|(id, _)| *id);
            if let Some(task) = longest.and_then(|id| open.remove(&id)?.task) {
                task.abort();
            }
        }
        let id = *next;
        *next += 1;
        let last_request = Instant::now();
        open.insert(id, Connection { client, last_request, has_request: false, task: None });
        (ConnectionEntry(Arc::new(Place { connections: Arc::clone(self), id, client })), is_full)
    }
}

impl ConnectionEntry {
    /// Returns the client.
    pub(crate) fn client(&self) -> Client {
        self.0.client
    }

    fn update(&self, with: impl FnOnce(&mut Connection)) {
        if let Some(connection) = self.0.connections.open().1.get_mut(&self.0.id) {
            with(connection);
        }
    }

    /// Sets the task that serves the connection.
    pub(crate) fn set_task(&self, task: AbortHandle) {
        self.update(|connection| connection.task = Some(task));
    }

    /// Notes that a request is complete.
    pub(crate) fn add_request(&self) {
        self.update(|connection| {
            connection.last_request = Instant::now();
            connection.has_request = true;
        });
    }

    /// Returns whether there was a complete request.
    pub(crate) fn has_request(&self) -> bool {
        let mut has_request = false;
        self.update(|connection| has_request = connection.has_request);
        has_request
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.open().1.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_open(entry: &ConnectionEntry) -> bool {
        entry.0.connections.open().1.contains_key(&entry.0.id)
    }

    #[test]
    fn the_connection_without_a_request_for_the_longest_time_is_replaced() {
        let connections = Arc::new(Connections::default());
        let mut entries: Vec<_> =
            (0..MAX_CONNECTIONS).map(|_| connections.add(Client::Local).0).collect();
        entries[0].add_request();
        let (new, has_replaced) = connections.add(Client::Local);
        assert!(has_replaced && is_open(&new) && is_open(&entries[0]));
        assert!(!is_open(&entries[1]) && is_open(&entries[2]));
        // The end of the replaced connection makes no room for another one.
        drop(entries.remove(1));
        assert!(connections.add(Client::Local).1);
    }

    #[test]
    fn a_client_with_many_connections_closes_none_of_another() {
        let connections = Arc::new(Connections::default());
        let other = Client::from(std::net::IpAddr::from([192, 0, 2, 1]));
        let (first, _) = connections.add(other);
        let entries: Vec<_> =
            (0..MAX_CONNECTIONS).map(|_| connections.add(Client::Local).0).collect();
        assert!(is_open(&first) && !is_open(&entries[0]));
    }

    #[test]
    fn a_closed_connection_makes_room() {
        let connections = Arc::new(Connections::default());
        let mut entries: Vec<_> =
            (0..MAX_CONNECTIONS).map(|_| connections.add(Client::Local).0).collect();
        entries.pop();
        assert!(!connections.add(Client::Local).1);
    }
}
