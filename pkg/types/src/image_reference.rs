//! The grammar of image references: `[HOST[:PORT]/]PATH[:TAG][@sha256:DIGEST]`.
//!
//! Source: the distribution project's reference specification.

use std::net::Ipv4Addr;

use crate::name::is_image_digest;
use crate::{ImageDigest, ImageReference};

/// The registry of a reference without a host.
pub const DEFAULT_DOMAIN: &str = "docker.io";
const LEGACY_DOMAIN: &str = "index.docker.io";
/// The host that serves [`DEFAULT_DOMAIN`].
const DEFAULT_DOMAIN_SERVER: &str = "registry-1.docker.io";
/// The ports of a registry without one: over TLS, and over plain HTTP.
const DEFAULT_PORTS: [&str; 2] = [":443", ":80"];
const OFFICIAL_PREFIX: &str = "library/";
const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;

/// The parts of a reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReferenceParts<'a> {
    /// Host and port of the registry, [`DEFAULT_DOMAIN`] by default.
    pub domain: &'a str,
    /// The repository within the registry: `library/nginx` for `nginx`.
    pub path: String,
    /// As given.
    pub tag: Option<&'a str>,
    /// `sha256:` and 64 digits, as given.
    pub digest: Option<&'a str>,
}

impl ImageReference {
    /// The digest that the reference names.
    pub fn digest(&self) -> Option<ImageDigest> {
        let (_, digest) = self.as_str().split_once('@')?;
        digest.parse().ok()
    }
}

/// Splits a reference as users write it.
///
/// # Errors
/// What is wrong with it.
pub fn split_reference(text: &str) -> Result<ReferenceParts<'_>, &'static str> {
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (text, None),
    };
    if digest.is_some_and(|digest| !is_image_digest(digest)) {
        return Err("its digest is malformed");
    }
    // A colon after the last slash starts the tag; one before it belongs to a port.
    let (name, tag) = match rest.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (rest, None),
    };
    if tag.is_some_and(|tag| !is_tag(tag)) {
        return Err("its tag is malformed");
    }
    let (domain, path) = split_domain(name);
    let path = match domain == DEFAULT_DOMAIN && !path.contains('/') {
        true => format!("{OFFICIAL_PREFIX}{path}"),
        false => path.to_owned(),
    };
    check_domain(domain)?;
    check_path(&path)?;
    if domain.len() + 1 + path.len() > MAX_NAME {
        return Err("its name is longer than 255 characters");
    }
    Ok(ReferenceParts { domain, path, tag, digest })
}

/// The first component is a host only if it has the form of one; otherwise `team/app` would have the host
/// `team`.
fn split_domain(name: &str) -> (&str, &str) {
    match name.split_once('/') {
        Some((first, path)) if first.contains(['.', ':']) || first == "localhost" => {
            (normalize_domain(first), path)
        }
        _ => (DEFAULT_DOMAIN, name),
    }
}

/// The canonical name of a registry in image names.
pub fn normalize_domain(domain: &str) -> &str {
    let is_default = [DEFAULT_DOMAIN, LEGACY_DOMAIN].iter().any(|name| domain.eq_ignore_ascii_case(name));
    if is_default { DEFAULT_DOMAIN } else { domain }
}

/// What two spellings of the same registry have in common: lower case, no default port, one name for `docker.io`.
pub fn canonical_domain(domain: &str) -> String {
    let domain = domain.to_ascii_lowercase();
    let host = DEFAULT_PORTS.iter().find_map(|port| domain.strip_suffix(*port)).unwrap_or(&domain);
    if host == DEFAULT_DOMAIN_SERVER { DEFAULT_DOMAIN.to_owned() } else { normalize_domain(host).to_owned() }
}

/// Checks host and port of a registry.
///
/// # Errors
/// What is wrong with them.
pub fn check_domain(domain: &str) -> Result<(), &'static str> {
    let (host, port) = match domain.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (domain, None),
    };
    // One spelling for each port: no sign, no leading zeros.
    if port.is_some_and(|port| !port.parse::<u16>().is_ok_and(|number| number.to_string() == port)) {
        return Err("its port is malformed");
    }
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    match host.split('.').all(label) {
        true => Ok(()),
        false => Err("its host is malformed"),
    }
}

/// Whether the registry is at an address of the loopback interface by its name: on each machine it is another one.
/// Image names have no IPv6 addresses.
pub fn is_loopback_registry(domain: &str) -> bool {
    let host = domain.split(':').next().unwrap_or(domain).to_ascii_lowercase();
    host == "localhost"
        || host.ends_with(".localhost")
        || host.parse().is_ok_and(|ip: Ipv4Addr| ip.is_loopback())
}

fn check_path(path: &str) -> Result<(), &'static str> {
    if path.bytes().any(|b| b.is_ascii_uppercase()) {
        return Err("its path must be lower case");
    }
    match path.split('/').all(is_path_component) {
        true => Ok(()),
        false => Err("its path is empty or has characters other than a-z, 0-9 and . _ - between them"),
    }
}

/// Letters and digits, separated by one `.`, one or two `_`, or any number of `-`.
fn is_path_component(component: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = component.as_bytes();
    let ends = bytes.first().zip(bytes.last()).is_some_and(|(a, b)| alphanumeric(*a) && alphanumeric(*b));
    ends && bytes.split(|b| alphanumeric(*b)).all(|separator| {
        matches!(separator, b"" | b"." | b"_" | b"__") || separator.iter().all(|b| *b == b'-')
    })
}

fn is_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let mut bytes = tag.bytes();
    tag.len() <= MAX_TAG && bytes.next().is_some_and(word) && bytes.all(|b| word(b) || b == b'.' || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_split() {
        let parts = |text| split_reference(text).map(|it| (it.domain, it.path, it.tag)).unwrap();
        assert_eq!(parts("nginx"), ("docker.io", "library/nginx".into(), None));
        assert_eq!(parts("team/app:1"), ("docker.io", "team/app".into(), Some("1")));
        assert_eq!(parts("localhost:5000/a/b__c"), ("localhost:5000", "a/b__c".into(), None));
        assert_eq!(parts("GHCR.io/x:V1_"), ("GHCR.io", "x".into(), Some("V1_")));
        for domain in ["docker.io", "Docker.io", "index.docker.io", "INDEX.docker.io"] {
            let text = format!("{domain}/nginx");
            let found = split_reference(&text).unwrap();
            assert_eq!((found.domain, &*found.path), ("docker.io", "library/nginx"));
        }
    }

    #[test]
    fn reference_names_a_digest() {
        let digest: ImageDigest = format!("sha256:{}", "a".repeat(64)).parse().unwrap();
        for (text, expected) in [
            (format!("localhost:5000/app:1@{digest}"), Some(digest.clone())),
            (format!("app@{digest}"), Some(digest)),
            ("localhost:5000/app:1".to_owned(), None),
            ("app@sha256:0123abcd".to_owned(), None),
        ] {
            assert_eq!(text.parse::<ImageReference>().unwrap().digest(), expected, "{text}");
        }
    }

    #[test]
    fn spellings_of_a_registry_are_one() {
        for (domain, expected) in [
            ("Registry.Example.com", "registry.example.com"),
            ("registry.example.com:443", "registry.example.com"),
            ("registry.example.com:80", "registry.example.com"),
            ("registry.example.com:1443", "registry.example.com:1443"),
            ("INDEX.docker.io:443", "docker.io"),
            ("registry-1.docker.io", "docker.io"),
        ] {
            assert_eq!(canonical_domain(domain), expected, "{domain}");
        }
    }

    #[test]
    fn registries_on_loopback_are_recognised() {
        for (domain, expected) in [
            ("localhost:5000", true),
            ("LOCALHOST", true),
            ("registry.localhost:5000", true),
            ("127.0.0.1:5000", true),
            ("127.9.9.9", true),
            ("0.0.0.0:5000", false),
            ("docker.io", false),
            ("localhost.example.com", false),
            ("128.0.0.1:5000", false),
            ("10.0.0.1", false),
        ] {
            assert_eq!(is_loopback_registry(domain), expected, "{domain}");
        }
    }

    #[test]
    fn malformed_references_are_refused_with_the_part() {
        let long_tag = format!("a:{}", "t".repeat(129));
        let long_name = format!("a.io/{}", "n".repeat(255));
        for (text, expected) in [
            ("UPPER/Bad:::tag", "path must be lower case"),
            ("Nginx", "path must be lower case"),
            ("nginx::1", "path is empty or has characters"),
            ("nginx:1:2", "path is empty or has characters"),
            ("nginx:.1", "tag is malformed"),
            (&long_tag, "tag is malformed"),
            ("nginx@sha256:0123abcd", "digest is malformed"),
            ("nginx@md5:0123", "digest is malformed"),
            ("a.io:99999/x", "port is malformed"),
            ("a.io:05000/x", "port is malformed"),
            ("a.io:+443/x", "port is malformed"),
            ("-a.io/x", "host is malformed"),
            ("a..b/c", "host is malformed"),
            ("a//b", "path is empty"),
            ("a/_b", "path is empty or has characters"),
            ("a___b", "path is empty or has characters"),
            (&long_name, "longer than 255"),
        ] {
            let found = split_reference(text).unwrap_err();
            assert!(found.contains(expected), "{text}: {found}");
        }
    }
}
