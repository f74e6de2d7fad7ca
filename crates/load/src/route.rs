//! The way to one target: its addresses, what is spoken there, and from where.

use std::net::{IpAddr, SocketAddr};

use rustls::ClientConnection;

use crate::RunError;
use crate::limits::SourceAddresses;
use crate::plan::Plan;
use crate::protocol::Request;
use crate::speech::Speech;
use crate::target::{Scheme, Target};
use crate::tls::Tls;

/// The way to one target.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) text: String,
    host: String,
    addresses: Vec<SocketAddr>,
    tls: Option<Tls>,
    pub(crate) speech: Speech,
    sources: SourceAddresses,
}

impl Route {
    /// Finds it.
    pub(crate) fn find(
        plan: &Plan,
        target: &Target,
        sources: SourceAddresses,
    ) -> Result<Self, RunError> {
        let speech = speech(plan, target);
        let tls = match target.scheme.is_tls() {
            true => Some(Tls::new(speech.offers(), plan.insecure)?),
            false => None,
        };
        let addresses = target.resolve()?;
        let route = Self {
            text: target.to_string(),
            host: target.host.clone(),
            addresses,
            tls,
            speech,
            sources,
        };
        // A name that no certificate can hold is told before anything starts.
        route.session()?;
        Ok(route)
    }

    pub(crate) fn addresses(&self) -> usize {
        self.addresses.len()
    }

    /// The address of a turn, and that of this machine from which the connection of a number comes.
    pub(crate) fn ends(&self, turn: usize, number: usize) -> (SocketAddr, Option<IpAddr>) {
        let to = self.addresses[turn % self.addresses.len()];
        let from =
            self.sources.address_of(number).filter(|_| to.is_ipv4() && to.ip().is_loopback());
        (to, from)
    }

    /// The client's end of a new connection with TLS, where TLS is spoken.
    pub(crate) fn session(&self) -> Result<Option<Box<ClientConnection>>, RunError> {
        let session = self.tls.as_ref().map(|tls| tls.connect(&self.host)).transpose();
        session.map_err(RunError::from)
    }
}

fn speech(plan: &Plan, target: &Target) -> Speech {
    let scheme = match target.scheme {
        Scheme::Http => "http",
        Scheme::Https => "https",
        Scheme::Tcp | Scheme::Tls => return Speech::Nothing,
    };
    let request = Request {
        method: plan.ask.method.clone(),
        scheme,
        authority: target.authority.clone(),
        path: target.path.clone(),
        headers: plan.ask.headers.clone(),
        body: plan.ask.body.clone(),
    };
    Speech::Http { request, version: plan.version }
}
