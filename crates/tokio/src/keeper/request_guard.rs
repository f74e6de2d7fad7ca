//! A request that the program counts itself.

use std::sync::Arc;

use super::shared::Shared;

/// A request in flight, until it is dropped:
/// [`Keeper::count_request`](super::Keeper::count_request).
#[derive(Debug)]
#[must_use = "the request is in flight until this is dropped"]
pub struct RequestGuard {
    shared: Arc<Shared>,
}

impl RequestGuard {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        shared.begin_request();
        Self { shared }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.shared.end_request();
    }
}
