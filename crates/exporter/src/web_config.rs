//! TLS and passwords, from a file in Prometheus' web configuration format.
//!
//! Source: docs/web-configuration.md of prometheus/exporter-toolkit. Unsupported settings are
//! errors, so that no setting except `http2` is silently ignored.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use serde::Deserialize;
use thiserror::Error;

/// The reason why a configuration cannot be used.
#[derive(Debug, Error)]
#[error("{}: {reason}", .path.display())]
pub struct WebConfigError {
    path: PathBuf,
    reason: String,
}

/// The settings for serving and authenticating clients.
#[derive(Debug, Default)]
pub struct WebConfig {
    /// TLS; `None` for plain HTTP.
    pub tls: Option<Arc<ServerConfig>>,
    /// The users who are admitted; `None` admits every client.
    pub users: Option<Users>,
    /// Headers of every response.
    pub headers: Vec<(String, String)>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    tls_server_config: Option<TlsSection>,
    http_server_config: Option<HttpSection>,
    basic_auth_users: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct TlsSection {
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    client_auth_type: Option<String>,
    client_ca_file: Option<PathBuf>,
    min_version: Option<String>,
    max_version: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct HttpSection {
    /// HTTP/1.1 is served in either case.
    #[serde(rename = "http2")]
    _http2: Option<bool>,
    headers: Option<BTreeMap<String, String>>,
}

/// Headers that the format permits.
const HEADERS: [&str; 6] = [
    "Content-Security-Policy",
    "Cross-Origin-Opener-Policy",
    "Strict-Transport-Security",
    "X-Content-Type-Options",
    "X-Frame-Options",
    "X-XSS-Protection",
];

impl WebConfig {
    /// Reads a file. Paths in it are relative to its directory.
    ///
    /// # Errors
    /// Fails if this file or a file that it names cannot be read, or if a setting is invalid or not
    /// supported.
    pub fn read(path: &Path) -> Result<Self, WebConfigError> {
        let failed = |reason: String| WebConfigError { path: path.to_owned(), reason };
        let text = fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let home = path.parent().unwrap_or(Path::new("."));
        Self::parse(&text, home).map_err(failed)
    }

    fn parse(text: &str, home: &Path) -> Result<Self, String> {
        let file: File = match text.trim() {
            "" => File::default(),
            _ => serde_saphyr::from_str(text).map_err(|error| error.to_string())?,
        };
        let headers = file.http_server_config.unwrap_or_default().headers.unwrap_or_default();
        if let Some(name) = headers.keys().find(|name| !HEADERS.contains(&name.as_str())) {
            return Err(format!(
                "http_server_config: the header {name} is not supported: remove it"
            ));
        }
        let users = file.basic_auth_users.filter(|users| !users.is_empty());
        Ok(Self {
            tls: file.tls_server_config.map(|tls| tls.config(home)).transpose()?,
            users: users.map(Users::new).transpose()?,
            headers: headers.into_iter().collect(),
        })
    }
}

impl TlsSection {
    fn config(self, home: &Path) -> Result<Arc<ServerConfig>, String> {
        let file = |name: &str, path: Option<PathBuf>| {
            path.map(|path| home.join(path)).ok_or(format!("tls_server_config: {name} is missing"))
        };
        let certificate = file("cert_file", self.cert_file)?;
        let key = file("key_file", self.key_file)?;
        let versions = versions(self.min_version.as_deref(), self.max_version.as_deref())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&versions)
            .map_err(|error| format!("tls_server_config: {error}"))?;
        let builder = match (self.client_auth_type.as_deref(), self.client_ca_file) {
            (None | Some("NoClientCert"), None) => builder.with_no_client_auth(),
            (Some("RequireAndVerifyClientCert"), Some(path)) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(&home.join(path))? {
                    roots.add(certificate).map_err(|error| format!("client_ca_file: {error}"))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                let verifier = verifier.map_err(|error| format!("client_ca_file: {error}"))?;
                builder.with_client_cert_verifier(verifier)
            }
            (Some("RequireAndVerifyClientCert"), None) => {
                return Err("tls_server_config: client_ca_file is missing".to_owned());
            }
            (None | Some("NoClientCert"), Some(_)) => {
                return Err("tls_server_config: client_ca_file requires client_auth_type: \
                            RequireAndVerifyClientCert"
                    .to_owned());
            }
            (Some(other), _) => {
                return Err(format!(
                    "tls_server_config: client_auth_type {other} is not supported: write NoClientCert \
                     or RequireAndVerifyClientCert"
                ));
            }
        };
        let chain = certificates(&certificate)?;
        let key_of = PrivateKeyDer::from_pem_file(&key)
            .map_err(|error| format!("{}: {error}", key.display()))?;
        let config = builder.with_single_cert(chain, key_of).map_err(|error| {
            format!(
                "the certificate {} and the key {} cannot be used together: {error}",
                certificate.display(),
                key.display()
            )
        })?;
        Ok(Arc::new(config))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let failed = |reason: &dyn std::fmt::Display| format!("{}: {reason}", path.display());
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))?.collect();
    let found = found.map_err(|error| failed(&error))?;
    if found.is_empty() { Err(failed(&"the file contains no certificate")) } else { Ok(found) }
}

fn versions(
    min: Option<&str>,
    max: Option<&str>,
) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    let place = |text: &str| match text {
        "TLS12" => Ok(0),
        "TLS13" => Ok(1),
        other => Err(format!("tls_server_config: {other} is not supported: write TLS12 or TLS13")),
    };
    let (min, max) = (place(min.unwrap_or("TLS12"))?, place(max.unwrap_or("TLS13"))?);
    if min > max {
        return Err("tls_server_config: min_version is higher than max_version".to_owned());
    }
    Ok([&rustls::version::TLS12, &rustls::version::TLS13][min..=max].to_vec())
}

/// Names and hashed passwords of the users who are admitted.
#[derive(Debug)]
pub struct Users {
    hashes: BTreeMap<String, String>,
    /// A hash to check for unknown names, so that response times do not reveal which names exist.
    any: String,
    /// Keyed hashes of credentials that were verified. A verification by bcrypt takes 0.1 s of CPU
    /// time. The users do not change, so the results stay valid.
    verified: Mutex<Verified>,
    key: RandomState,
}

/// Keyed hashes of credentials, by result.
#[derive(Debug, Default)]
struct Verified {
    right: HashSet<u64>,
    wrong: HashSet<u64>,
}

/// Maximum number of wrong credentials that are kept.
const MAX_WRONG: usize = 1024;

impl Users {
    fn new(hashes: BTreeMap<String, String>) -> Result<Self, String> {
        for (name, hash) in &hashes {
            if bcrypt::verify("", hash).is_err() {
                return Err(format!(
                    "basic_auth_users: the password of {name} is not a bcrypt hash: create one with htpasswd \
                     -nBC 10 {name}"
                ));
            }
        }
        let any = hashes.values().next().cloned().unwrap_or_default();
        Ok(Self { hashes, any, verified: Mutex::default(), key: RandomState::new() })
    }

    /// Returns whether the value of an `Authorization` header contains the name and the password of
    /// a user.
    pub fn admit(&self, authorization: Option<&[u8]>) -> bool {
        if let Some(is_right) = self.known(authorization) {
            return is_right;
        }
        let Some((name, password)) = authorization.and_then(credentials) else { return false };
        let hash = self.hashes.get(&name);
        let is_right = bcrypt::verify(&password, hash.unwrap_or(&self.any)).unwrap_or(false);
        let is_right = is_right && hash.is_some();
        let mut verified = self.verified();
        // Each user has one valid password, in as many spellings as bcrypt truncates to it, so a
        // bound costs nothing.
        let (set, max) = match is_right {
            true => (&mut verified.right, 2 * self.hashes.len()),
            false => (&mut verified.wrong, MAX_WRONG),
        };
        if set.len() >= max {
            set.clear();
        }
        set.insert(self.key.hash_one((name, password)));
        is_right
    }

    /// Returns the result of [`Users::admit`], if it requires no verification.
    pub fn known(&self, authorization: Option<&[u8]>) -> Option<bool> {
        let Some(key) = self.key_of(authorization) else { return Some(false) };
        let verified = self.verified();
        match verified.right.contains(&key) {
            true => Some(true),
            false => verified.wrong.contains(&key).then_some(false),
        }
    }

    /// Returns a keyed hash of the credentials in the value of an `Authorization` header; `None` if
    /// it contains none.
    pub(crate) fn key_of(&self, authorization: Option<&[u8]>) -> Option<u64> {
        Some(self.key.hash_one(authorization.and_then(credentials)?))
    }

    fn verified(&self) -> MutexGuard<'_, Verified> {
        self.verified.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the name and the password in `Basic BASE64` (RFC 7617).
pub(crate) fn credentials(value: &[u8]) -> Option<(String, Vec<u8>)> {
    let text = std::str::from_utf8(value).ok()?;
    let (scheme, encoded) = text.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = STANDARD.decode(encoded.trim()).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    let name = String::from_utf8(decoded[..colon].to_vec()).ok()?;
    Some((name, decoded[colon + 1..].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result of `bcrypt::hash("secret", 4)`.
    fn hash() -> String {
        bcrypt::hash("secret", 4).unwrap()
    }

    fn parse(text: &str) -> Result<WebConfig, String> {
        WebConfig::parse(text, Path::new("/nonexistent"))
    }

    #[test]
    fn only_the_correct_password_authenticates_a_user() {
        let config = parse(&format!("basic_auth_users:\n  alice: {}\n", hash())).unwrap();
        let users = config.users.unwrap();
        let header = |text: &str| format!("Basic {}", STANDARD.encode(text));
        for _ in 0..2 {
            assert!(users.admit(Some(header("alice:secret").as_bytes())));
            assert!(!users.admit(Some(header("alice:wrong").as_bytes())));
            assert!(!users.admit(Some(header("bob:secret").as_bytes())));
        }
        for wrong in ["Basic", "Basic ????", "Bearer x", &header("alice"), ""] {
            assert!(!users.admit(Some(wrong.as_bytes())), "{wrong}");
        }
        assert!(!users.admit(None));
    }

    #[test]
    fn a_password_is_verified_once() {
        let config = parse(&format!("basic_auth_users:\n  alice: {}\n", hash())).unwrap();
        let users = config.users.unwrap();
        for (text, is_right) in [("alice:secret", true), ("alice:wrong", false), ("bob:x", false)] {
            let header = format!("Basic {}", STANDARD.encode(text));
            assert_eq!(users.known(Some(header.as_bytes())), None, "{text}");
            assert_eq!(users.admit(Some(header.as_bytes())), is_right, "{text}");
            assert_eq!(users.known(Some(header.as_bytes())), Some(is_right), "{text}");
        }
        assert_eq!(users.known(None), Some(false));
    }

    #[test]
    fn the_number_of_known_wrong_passwords_is_bounded() {
        let users = parse(&format!("basic_auth_users:\n  alice: {}\n", hash())).unwrap().users;
        let users = users.unwrap();
        let header = |text: &str| format!("Basic {}", STANDARD.encode(text));
        assert!(users.admit(Some(header("alice:secret").as_bytes())));
        users.verified().wrong = (0..MAX_WRONG as u64).collect();
        assert!(!users.admit(Some(header("alice:wrong").as_bytes())));
        assert_eq!(users.verified().wrong.len(), 1);
        assert_eq!(users.known(Some(header("alice:secret").as_bytes())), Some(true));
    }

    #[test]
    fn an_empty_config_means_plain_http_without_authentication() {
        let config = parse("").unwrap();
        assert!(config.tls.is_none() && config.users.is_none());
    }

    #[test]
    fn invalid_or_unsupported_settings_are_named_in_the_error() {
        for (text, part) in [
            ("basic_auth_user: {}", "basic_auth_user"),
            ("basic_auth_users:\n  alice: secret\n", "not a bcrypt hash"),
            ("tls_server_config:\n  cert_file: a\n", "key_file is missing"),
            ("tls_server_config:\n  cert_file: a\n  key_file: b\n", "/nonexistent/a"),
            (
                "tls_server_config:\n  cert_file: a\n  key_file: b\n  min_version: TLS10\n",
                "TLS10 is not supported",
            ),
            (
                "tls_server_config:\n  cert_file: a\n  key_file: b\n  client_auth_type: RequestClientCert\n",
                "RequestClientCert is not supported",
            ),
            ("tls_server_config:\n  cipher_suites: []\n", "cipher_suites"),
            ("http_server_config:\n  headers:\n    X-Other: 1\n", "X-Other"),
            ("a: [", ""),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
