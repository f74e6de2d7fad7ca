//! A target that is ready for connections: its addresses, TLS configuration and protocol.

use std::net::{IpAddr, SocketAddr};

use rustls::ClientConnection;

use crate::RunError;
use crate::http_choice::HttpChoice;
use crate::limits::SourceAddresses;
use crate::plan::LoadSpec;
use crate::protocol::Request;
use crate::target::LoadTarget;
use crate::tls::TlsConnector;

/// A target with all that its connections need.
#[derive(Debug)]
pub(crate) struct ResolvedTarget {
    /// The target as the user wrote it.
    pub(crate) url: String,
    host: String,
    /// At least one.
    addresses: Vec<SocketAddr>,
    /// `None` without TLS.
    tls: Option<TlsConnector>,
    pub(crate) http: HttpChoice,
    sources: SourceAddresses,
}

impl ResolvedTarget {
    /// Resolves the host and sets up TLS.
    ///
    /// # Errors
    ///
    /// Fails if the host is unknown, TLS cannot be set up, or no certificate can be valid for the
    /// host.
    pub(crate) fn new(
        plan: &LoadSpec,
        target: &LoadTarget,
        sources: SourceAddresses,
    ) -> Result<Self, RunError> {
        let http = http_choice(plan, target);
        let tls = match target.scheme.is_tls() {
            true => Some(TlsConnector::new(http.alpn_offers(), plan.insecure)?),
            false => None,
        };
        let addresses = target.resolve()?;
        let url = target.to_string();
        let resolved = Self { url, host: target.host.clone(), addresses, tls, http, sources };
        // Reports a host name that no certificate can hold before anything starts.
        resolved.session()?;
        Ok(resolved)
    }

    /// Returns the number of addresses.
    pub(crate) fn address_count(&self) -> usize {
        self.addresses.len()
    }

    /// Returns the remote address for this attempt, and the local address, if any, that the
    /// connection with this number binds to.
    pub(crate) fn endpoints(
        &self,
        attempt: usize,
        connection: usize,
    ) -> (SocketAddr, Option<IpAddr>) {
        let to = self.addresses[attempt % self.addresses.len()];
        let from = self.sources.address_of(connection);
        (to, from.filter(|_| to.is_ipv4() && to.ip().is_loopback()))
    }

    /// Returns the client's end of a new TLS connection, or `None` without TLS.
    pub(crate) fn session(&self) -> Result<Option<Box<ClientConnection>>, RunError> {
        let session = self.tls.as_ref().map(|tls| tls.connect(&self.host)).transpose();
        session.map_err(RunError::from)
    }
}

fn http_choice(plan: &LoadSpec, target: &LoadTarget) -> HttpChoice {
    if target.scheme.is_bare() {
        return HttpChoice::Bare;
    }
    let request = Request {
        method: plan.request.method.clone(),
        scheme: target.scheme,
        authority: target.authority.clone(),
        path: target.path.clone(),
        headers: plan.request.headers.clone(),
        body: plan.request.body.clone(),
    };
    HttpChoice::Http { request, version: plan.version }
}
