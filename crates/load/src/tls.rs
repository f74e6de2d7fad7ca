//! TLS: configuration, trust, and the causes of failures.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, ClientConnection, Resumption};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, CertificateError, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme,
};

use crate::failure::{RequestFailure, TlsFailure};

/// Starts TLS connections to one target.
#[derive(Debug, Clone)]
pub(crate) struct TlsConnector(Arc<ClientConfig>);

/// TLS cannot be set up as requested.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The host is neither a name nor an address that a certificate can contain.
    #[error(
        "no certificate can contain `{0}`: write the host name as it is in the certificate of the server"
    )]
    Host(String),
    /// The library reported an error.
    #[error("TLS cannot be set up: {0}")]
    Setup(String),
}

impl TlsConnector {
    /// Creates a connector. `protocols` are offered in ALPN, the preferred one first; without any,
    /// ALPN is not used.
    pub(crate) fn new(protocols: &[&str], insecure: bool) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let setup = |error: Error| TlsError::Setup(error.to_string());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(setup)?;
        let mut config = if insecure {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        } else {
            builder.with_root_certificates(roots())
        }
        .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        // Each connection stands for a new client, as in a real load.
        config.resumption = Resumption::disabled();
        Ok(Self(Arc::new(config)))
    }

    /// Returns the client's end of a new connection to a host.
    pub(crate) fn connect(&self, host: &str) -> Result<Box<ClientConnection>, TlsError> {
        let name =
            ServerName::try_from(host.to_owned()).map_err(|_| TlsError::Host(host.to_owned()))?;
        let connection = ClientConnection::new(Arc::clone(&self.0), name);
        connection.map(Box::new).map_err(|error| TlsError::Setup(error.to_string()))
    }
}

/// Returns the root certificates that this machine trusts, without those that cannot be read.
/// Certificates that depend on such a root fail as not trusted.
fn roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// Converts an error of a TLS connection.
pub(crate) fn failure(error: &Error) -> RequestFailure {
    match error {
        Error::InvalidCertificate(why) => RequestFailure::NotTrusted(distrust(why)),
        Error::AlertReceived(AlertDescription::NoApplicationProtocol) => RequestFailure::NoProtocol,
        Error::AlertReceived(
            AlertDescription::CertificateRequired | AlertDescription::BadCertificate,
        ) => RequestFailure::Tls(TlsFailure::ClientCertificateRequired),
        Error::AlertReceived(_) => RequestFailure::Tls(TlsFailure::Alert),
        Error::InvalidMessage(_) => RequestFailure::Tls(TlsFailure::NotTls),
        Error::PeerIncompatible(_) => RequestFailure::Tls(TlsFailure::Incompatible),
        _ => RequestFailure::Tls(TlsFailure::ProtocolViolation),
    }
}

fn distrust(why: &CertificateError) -> &'static str {
    match why {
        CertificateError::UnknownIssuer => "its issuer is not trusted on this machine",
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "it has expired",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "it is for another host"
        }
        CertificateError::Revoked => "it was revoked",
        _ => "it is invalid",
    }
}

/// Trusts any certificate, for `--insecure`.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
