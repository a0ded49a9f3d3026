//! The settings of metrics beyond the node.

use super::{ConfigError, MetricsListener, Settings, validate::absolute};

// === impl Settings ===

impl Settings {
    pub(super) fn metrics(&self) -> Result<Option<MetricsListener>, ConfigError> {
        let file =
            |name, path: &Option<_>| path.clone().map(|path| absolute(name, Some(path), "")).transpose();
        let certificate = file("--metrics-cert", &self.metrics_cert)?;
        let key = file("--metrics-key", &self.metrics_key)?;
        match (self.metrics_listen, certificate, key) {
            (address, None, None) => {
                Ok(address.map(|address| MetricsListener { address, certificate: None }))
            }
            (Some(address), Some(certificate), Some(key)) => {
                Ok(Some(MetricsListener { address, certificate: Some((certificate, key)) }))
            }
            _ => Err(ConfigError::HalfCertificate),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(listen: bool, cert: bool, key: bool) -> Result<Option<MetricsListener>, ConfigError> {
        let settings = Settings {
            metrics_listen: listen.then(|| "0.0.0.0:9470".parse().unwrap()),
            metrics_cert: cert.then(|| "/c".into()),
            metrics_key: key.then(|| "/k".into()),
            ..Settings::default()
        };
        settings.metrics()
    }

    #[test]
    fn a_certificate_needs_its_key_and_an_address() {
        assert_eq!(metrics(false, false, false).unwrap(), None);
        assert_eq!(metrics(true, false, false).unwrap().unwrap().certificate, None);
        let certificate = Some(("/c".into(), "/k".into()));
        assert_eq!(metrics(true, true, true).unwrap().unwrap().certificate, certificate);
        for (listen, cert, key) in [(true, true, false), (true, false, true), (false, true, true)] {
            assert!(matches!(metrics(listen, cert, key), Err(ConfigError::HalfCertificate)));
        }
    }
}
