//! Registry settings: plain HTTP, trusted CAs, credentials, timeouts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use warren_types::image_reference::{check_domain, is_loopback_registry, normalize_domain};

use super::address_guard::AddressGuard;
use super::credentials::RegistryCredentials;

/// Timeouts and retry limits of a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryPolicy {
    /// For a connection, including its TLS handshake.
    pub connect_timeout: Duration,
    /// Without data, after which the connection is replaced.
    pub stall_timeout: Duration,
    /// Consecutive failures allowed; each new byte of a layer resets the count.
    pub max_tries: u32,
    /// Longest delay before the first retry, of which up to a half is chosen at random; each further one doubles.
    pub min_backoff: Duration,
    /// Limit of the delay, and of the one requested by the registry, which comes before it.
    pub max_backoff: Duration,
    /// For a whole pull, from its first request until the image is runnable.
    pub pull_timeout: Duration,
}

impl Default for RegistryPolicy {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            max_tries: 5,
            min_backoff: Duration::from_millis(500),
            max_backoff: Duration::from_secs(30),
            pull_timeout: Duration::from_secs(3600),
        }
    }
}

/// Registry configuration of this node. By default registries are accessed over TLS with the system
/// certificates, and those on loopback over plain HTTP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistrySettings {
    plain_http: BTreeSet<String>,
    pub(super) authorities: Vec<CertificateDer<'static>>,
    credentials: BTreeMap<String, RegistryCredentials>,
    refuses_internal: bool,
    /// Timeouts and retry limits.
    pub policy: RegistryPolicy,
}

/// A text that is not a registry host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a registry: {reason}; expected HOST or HOST:PORT")]
pub struct InvalidHost {
    text: String,
    reason: &'static str,
}

/// Bytes that are not a CA certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a CA certificate in DER: {reason}")]
pub struct InvalidAuthority {
    reason: String,
}

impl RegistrySettings {
    /// Uses plain HTTP for `host`, written as in image names (`HOST` or `HOST:PORT`).
    ///
    /// # Errors
    /// [`InvalidHost`] when it is not valid in an image name.
    pub fn allow_plain_http(&mut self, host: &str) -> Result<(), InvalidHost> {
        self.plain_http.insert(normalize_host(host)?);
        Ok(())
    }

    /// Sets this node's credentials for the registry `host`, written as in image names. A pull may override
    /// them.
    ///
    /// # Errors
    /// [`InvalidHost`] when it is not valid in an image name.
    pub fn set_credentials(&mut self, host: &str, user: RegistryCredentials) -> Result<(), InvalidHost> {
        self.credentials.insert(normalize_host(host)?, user);
        Ok(())
    }

    /// The credentials of this node for a registry.
    pub(crate) fn credentials_for(&self, domain: &str) -> Option<&RegistryCredentials> {
        self.credentials.get(&domain.to_ascii_lowercase())
    }

    /// Trusts a certificate authority, given in DER, in addition to those of the system.
    ///
    /// # Errors
    /// [`InvalidAuthority`] when it is not a certificate.
    pub fn trust_authority(&mut self, authority: Vec<u8>) -> Result<(), InvalidAuthority> {
        let authority = CertificateDer::from(authority);
        let added = rustls::RootCertStore::empty().add(authority.clone());
        added.map_err(|error| InvalidAuthority { reason: error.to_string() })?;
        self.authorities.push(authority);
        Ok(())
    }

    /// Refuses to connect to addresses of this machine, of links and of metadata services, also for redirects and
    /// tokens, except to the host and port of each registry with plain HTTP.
    pub fn refuse_internal_addresses(&mut self) {
        self.refuses_internal = true;
    }

    /// What is refused, if anything is.
    pub(crate) fn address_guard(&self) -> Option<AddressGuard> {
        self.refuses_internal.then(|| AddressGuard::new(self.plain_http.clone()))
    }

    /// Whether plain HTTP is used for the registry.
    pub(crate) fn uses_plain_http(&self, domain: &str) -> bool {
        is_loopback_registry(domain) || self.plain_http.contains(&domain.to_ascii_lowercase())
    }
}

fn normalize_host(host: &str) -> Result<String, InvalidHost> {
    let invalid = |reason| InvalidHost { text: host.chars().take(300).collect(), reason };
    check_domain(host).map_err(invalid)?;
    Ok(normalize_domain(&host.to_ascii_lowercase()).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_and_listed_hosts_use_plain_http() {
        let mut registries = RegistrySettings::default();
        registries.allow_plain_http("10.0.0.1:5000").unwrap();
        registries.allow_plain_http("Registry.Lan").unwrap();
        registries.allow_plain_http("registry.lan").unwrap();
        for (domain, plain) in [
            ("10.0.0.1:5000", true),
            ("registry.lan", true),
            ("127.0.0.1:5000", true),
            ("127.9.9.9", true),
            ("localhost", true),
            ("LOCALHOST:1", true),
            ("10.0.0.1", false),
            ("10.0.0.1:5001", false),
            ("registry.lan:443", false),
            ("docker.io", false),
            ("128.0.0.1:5000", false),
            ("localhost.example.com", false),
        ] {
            assert_eq!(registries.uses_plain_http(domain), plain, "{domain}");
        }
    }

    #[test]
    fn credentials_are_per_registry() {
        let user = |name: &str| RegistryCredentials { user: name.into(), password: "hush".into() };
        let mut registries = RegistrySettings::default();
        registries.set_credentials("Registry.Lan:5000", user("bob")).unwrap();
        registries.set_credentials("registry.lan:5000", user("anna")).unwrap();
        registries.set_credentials("index.docker.io", user("carl")).unwrap();
        for (domain, want) in [
            ("registry.lan:5000", Some("anna")),
            ("REGISTRY.lan:5000", Some("anna")),
            ("registry.lan", None),
            ("docker.io", Some("carl")),
        ] {
            assert_eq!(registries.credentials_for(domain).map(|user| user.user.as_str()), want, "{domain}");
        }
        assert!(registries.set_credentials("https://x", user("x")).is_err());
        assert!(!format!("{registries:?}").contains("hush"));
    }

    #[test]
    fn only_certificates_are_trusted() {
        let key = rcgen::generate_simple_self_signed(["r.test".to_owned()]).unwrap();
        let mut registries = RegistrySettings::default();
        registries.trust_authority(key.cert.der().to_vec()).unwrap();
        assert!(registries.trust_authority(b"-----BEGIN".to_vec()).is_err());
        assert_eq!(registries.authorities.len(), 1);
    }

    #[test]
    fn invalid_host_is_rejected() {
        for (text, reason) in [
            ("", "host"),
            ("http://x", "port"),
            ("x:y", "port"),
            ("x/y", "host"),
            ("a b", "host"),
            ("10.0.0.0/8", "host"),
        ] {
            let error = RegistrySettings::default().allow_plain_http(text).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("HOST:PORT"), "{text}: {error}");
        }
    }
}
