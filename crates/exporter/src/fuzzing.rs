//! What the exporter itself parses of a request, on any bytes. The request as a whole is parsed by
//! hyper.

use crate::server::wants_open_metrics;
use crate::web_config::credentials;

/// Parses a value as `Accept` and as `Authorization`.
pub fn request(bytes: &[u8]) {
    let _ = wants_open_metrics(&String::from_utf8_lossy(bytes));
    if let Some((name, password)) = credentials(bytes) {
        assert!(!name.contains(':') && name.len() + password.len() < bytes.len());
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn damaged_requests_are_parsed_or_rejected() {
        lowtide_model::fuzzing::run_seeds("request", 300, super::request);
    }
}
