//! How registries are reached: which of them speak plain HTTP, whom TLS trusts, and how long to wait.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use rustls::pki_types::CertificateDer;

use super::access::Credentials;
use crate::reference::{check_domain, normal_domain};

/// How long a registry may take, and how often it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For a connection, its TLS handshake included.
    pub connect: Duration,
    /// Without one byte, after which the connection is given up and made anew.
    pub stall: Duration,
    /// How often in a row the registry may fail; each new byte of a layer starts the count again.
    pub tries: u32,
    /// Before the second try; each further pause is twice as long.
    pub pause: Duration,
    /// No pause is longer, also when the registry asks for it.
    pub longest_pause: Duration,
    /// For a whole pull, from its first request until the image can be run.
    pub pull: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            tries: 5,
            pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(30),
            pull: Duration::from_secs(3600),
        }
    }
}

/// What a person says of registries. Without a word every registry is reached over TLS, trusted by the
/// machine's certificates, and those on loopback over plain HTTP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registries {
    plain_http: BTreeSet<String>,
    pub(super) authorities: Vec<CertificateDer<'static>>,
    users: BTreeMap<String, Credentials>,
    /// How long to wait.
    pub patience: Patience,
}

/// A text that names no registry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a registry: {reason}; want HOST or HOST:PORT")]
pub struct InvalidHost {
    text: String,
    reason: &'static str,
}

/// Bytes that are no certificate of an authority.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the certificate of an authority in DER: {reason}")]
pub struct InvalidAuthority {
    reason: String,
}

impl Registries {
    /// Reaches `host`, written as in image names (`HOST` or `HOST:PORT`), over plain HTTP from now on.
    ///
    /// # Errors
    /// [`InvalidHost`] when image names cannot name it.
    pub fn allow_plain_http(&mut self, host: &str) -> Result<(), InvalidHost> {
        self.plain_http.insert(checked(host)?);
        Ok(())
    }

    /// Says who this node is to the registry `host`, written as in image names, unless a pull says otherwise.
    ///
    /// # Errors
    /// [`InvalidHost`] when image names cannot name it.
    pub fn log_in(&mut self, host: &str, user: Credentials) -> Result<(), InvalidHost> {
        self.users.insert(checked(host)?, user);
        Ok(())
    }

    /// Who this node is to the registry of that name.
    pub(crate) fn user(&self, domain: &str) -> Option<&Credentials> {
        self.users.get(&domain.to_ascii_lowercase())
    }

    /// Trusts a certificate authority, given in DER, besides those of the machine.
    ///
    /// # Errors
    /// [`InvalidAuthority`] when it is no certificate.
    pub fn trust(&mut self, authority: Vec<u8>) -> Result<(), InvalidAuthority> {
        let authority = CertificateDer::from(authority);
        let added = rustls::RootCertStore::empty().add(authority.clone());
        added.map_err(|error| InvalidAuthority { reason: error.to_string() })?;
        self.authorities.push(authority);
        Ok(())
    }

    /// Whether the registry of that name is spoken to without TLS.
    pub(crate) fn is_plain(&self, domain: &str) -> bool {
        is_loopback(domain) || self.plain_http.contains(&domain.to_ascii_lowercase())
    }
}

fn checked(host: &str) -> Result<String, InvalidHost> {
    let invalid = |reason| InvalidHost { text: host.chars().take(300).collect(), reason };
    check_domain(host).map_err(invalid)?;
    Ok(normal_domain(&host.to_ascii_lowercase()).to_owned())
}

/// Whether a registry is on this machine. Its traffic leaves the machine by no way, not by a proxy either.
pub(crate) fn is_loopback(domain: &str) -> bool {
    let host = domain.split(':').next().unwrap_or(domain);
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|ip: Ipv4Addr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_and_what_was_named_is_plain() {
        let mut registries = Registries::default();
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
            assert_eq!(registries.is_plain(domain), plain, "{domain}");
        }
    }

    #[test]
    fn each_registry_has_its_user() {
        let user = |name: &str| Credentials { user: name.into(), password: "hush".into() };
        let mut registries = Registries::default();
        registries.log_in("Registry.Lan:5000", user("bob")).unwrap();
        registries.log_in("registry.lan:5000", user("anna")).unwrap();
        registries.log_in("index.docker.io", user("carl")).unwrap();
        for (domain, want) in [
            ("registry.lan:5000", Some("anna")),
            ("REGISTRY.lan:5000", Some("anna")),
            ("registry.lan", None),
            ("docker.io", Some("carl")),
        ] {
            assert_eq!(registries.user(domain).map(|user| user.user.as_str()), want, "{domain}");
        }
        assert!(registries.log_in("https://x", user("x")).is_err());
        assert!(!format!("{registries:?}").contains("hush"));
    }

    #[test]
    fn only_certificates_are_trusted() {
        let key = rcgen::generate_simple_self_signed(["r.test".to_owned()]).unwrap();
        let mut registries = Registries::default();
        registries.trust(key.cert.der().to_vec()).unwrap();
        assert!(registries.trust(b"-----BEGIN".to_vec()).is_err());
        assert_eq!(registries.authorities.len(), 1);
    }

    #[test]
    fn what_no_image_can_name_is_refused() {
        for (text, reason) in [
            ("", "host"),
            ("http://x", "port"),
            ("x:y", "port"),
            ("x/y", "host"),
            ("a b", "host"),
            ("10.0.0.0/8", "host"),
        ] {
            let error = Registries::default().allow_plain_http(text).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("HOST:PORT"), "{text}: {error}");
        }
    }
}
