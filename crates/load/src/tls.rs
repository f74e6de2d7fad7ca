//! TLS: what is offered, whom it trusts, and what went wrong in words.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, ClientConnection, Resumption};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, CertificateError, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme,
};

use crate::failure::Failure;

/// Makes the client's end of TLS connections.
#[derive(Debug, Clone)]
pub(crate) struct Tls(Arc<ClientConfig>);

/// TLS cannot be spoken as it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The host is neither a name nor an address that a certificate could hold.
    #[error("no certificate can be for `{0}`: name the host as its certificate does")]
    Host(String),
    /// The library would not.
    #[error("TLS cannot be set up: {0}")]
    Setup(String),
}

impl Tls {
    /// `protocols` are offered by ALPN, the preferred one first; without any, it is not used.
    pub(crate) fn new(protocols: &[&str], insecure: bool) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let setup = |error: Error| TlsError::Setup(error.to_string());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(setup)?;
        let mut config = if insecure {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Anyone(provider)))
        } else {
            builder.with_root_certificates(roots())
        }
        .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        // Every connection is a new client's, as those of a real load are.
        config.resumption = Resumption::disabled();
        Ok(Self(Arc::new(config)))
    }

    /// The client's end of one connection to a host.
    pub(crate) fn connect(&self, host: &str) -> Result<Box<ClientConnection>, TlsError> {
        let name =
            ServerName::try_from(host.to_owned()).map_err(|_| TlsError::Host(host.to_owned()))?;
        let connection = ClientConnection::new(Arc::clone(&self.0), name);
        connection.map(Box::new).map_err(|error| TlsError::Setup(error.to_string()))
    }
}

/// The certificates that this machine trusts. One that cannot be read is left out: what it would have
/// vouched for is then not trusted, and told so.
fn roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// Why a connection failed.
pub(crate) fn failure(error: &Error) -> Failure {
    match error {
        Error::InvalidCertificate(why) => Failure::NotTrusted(distrust(why)),
        Error::AlertReceived(AlertDescription::NoApplicationProtocol) => Failure::NoProtocol,
        Error::AlertReceived(
            AlertDescription::CertificateRequired | AlertDescription::BadCertificate,
        ) => Failure::Tls("the server wants a certificate of the client"),
        Error::AlertReceived(_) => Failure::Tls("the server broke it off with an alert"),
        Error::InvalidMessage(_) => Failure::Tls("what came was not TLS"),
        Error::PeerIncompatible(_) => Failure::Tls("no version or cipher in common"),
        _ => Failure::Tls("the server broke the rules"),
    }
}

fn distrust(why: &CertificateError) -> &'static str {
    match why {
        CertificateError::UnknownIssuer => "nobody that this machine trusts has signed it",
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "it has expired",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "it is for another host"
        }
        CertificateError::Revoked => "it was revoked",
        _ => "it does not hold",
    }
}

/// Trusts whoever answers, as `--insecure` asks for.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
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
