//! Image references, normalised like Docker: `nginx` means `docker.io/library/nginx:latest`.
//!
//! Pure. Source of the grammar: the distribution project's reference specification.

use std::fmt;

use crate::digest::Digest;

const DEFAULT_DOMAIN: &str = "docker.io";
const LEGACY_DOMAIN: &str = "index.docker.io";
const OFFICIAL_PREFIX: &str = "library/";
const DEFAULT_TAG: &str = "latest";
const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;

/// A normalised reference: domain, path, and a tag, a digest or both.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference {
    domain: String,
    path: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// A text that is not an image reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an image reference: {reason}; expected [HOST[:PORT]/]PATH[:TAG][@sha256:DIGEST]")]
pub struct InvalidReference {
    text: String,
    reason: &'static str,
}

impl Reference {
    /// Parses and normalises a reference as users write it.
    ///
    /// # Errors
    /// [`InvalidReference`] with the invalid part.
    pub fn parse(text: &str) -> Result<Self, InvalidReference> {
        Self::split(text)
            .map_err(|reason| InvalidReference { text: text.chars().take(300).collect(), reason })
    }

    fn split(text: &str) -> Result<Self, &'static str> {
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (text, None),
        };
        let digest = digest.map(Digest::parse).transpose().map_err(|_| "its digest is malformed")?;
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
        let tag = match (tag, &digest) {
            (Some(tag), _) => Some(tag.to_owned()),
            (None, Some(_)) => None,
            (None, None) => Some(DEFAULT_TAG.to_owned()),
        };
        Ok(Self { domain: domain.to_owned(), path, tag, digest })
    }

    /// Host and port of the registry, `docker.io` by default.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The repository within the registry.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The tag; `latest` when the text had neither tag nor digest.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest of the content.
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// The same reference without a tag that a digest makes redundant.
    #[must_use]
    pub fn canonical(&self) -> Self {
        let tag = if self.digest.is_some() { None } else { self.tag.clone() };
        Self { tag, ..self.clone() }
    }

    /// Name of containerd's record: that of the canonical reference.
    pub fn record_name(&self) -> String {
        self.canonical().to_string()
    }

    /// The same name with this digest, independent of its tag.
    #[must_use]
    pub fn with_digest(&self, digest: &Digest) -> Self {
        Self { digest: Some(digest.clone()), ..self.clone() }
    }

    /// Whether both are in the same repository of the same registry.
    pub fn shares_repository(&self, other: &Self) -> bool {
        (&self.domain, &self.path) == (&other.domain, &other.path)
    }

    /// The same repository with another tag.
    ///
    /// # Errors
    /// [`InvalidReference`] when `tag` is malformed.
    pub fn with_tag(&self, tag: &str) -> Result<Self, InvalidReference> {
        Self::parse(&format!("{}/{}:{tag}", self.domain, self.path))
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.domain, self.path)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Reference {
    type Err = InvalidReference;

    fn from_str(text: &str) -> Result<Self, InvalidReference> {
        Self::parse(text)
    }
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
pub(crate) fn normalize_domain(domain: &str) -> &str {
    if domain == LEGACY_DOMAIN { DEFAULT_DOMAIN } else { domain }
}

pub(crate) fn check_domain(domain: &str) -> Result<(), &'static str> {
    let (host, port) = match domain.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (domain, None),
    };
    if port.is_some_and(|port| port.parse::<u16>().is_err()) {
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

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn short_names_are_normalized() {
        let pinned = format!("nginx@{DIGEST}");
        let tagged = format!("r.io/a/b:1@{DIGEST}");
        for (text, want) in [
            ("nginx", "docker.io/library/nginx:latest"),
            ("nginx:1.27", "docker.io/library/nginx:1.27"),
            ("team/app", "docker.io/team/app:latest"),
            ("docker.io/nginx", "docker.io/library/nginx:latest"),
            ("index.docker.io/nginx:1", "docker.io/library/nginx:1"),
            ("localhost/app:dev", "localhost/app:dev"),
            ("app:1._-", "docker.io/library/app:1._-"),
            ("localhost:5000/app", "localhost:5000/app:latest"),
            ("10.0.0.1:5000/a/b_c/d--e:V1.0_x", "10.0.0.1:5000/a/b_c/d--e:V1.0_x"),
            ("registry.example.com/a.b/c__d", "registry.example.com/a.b/c__d:latest"),
            (&pinned, &format!("docker.io/library/nginx@{DIGEST}")),
            (&tagged, &tagged),
        ] {
            let parsed = Reference::parse(text).unwrap();
            assert_eq!(parsed.to_string(), want);
            assert_eq!(Reference::parse(want).unwrap(), parsed, "normalising twice changes nothing");
            for written in [text, want] {
                let spec = written.parse::<warren_types::ImageReference>();
                assert!(spec.is_ok(), "{written}: what can be pulled can be asked for");
            }
        }
    }

    #[test]
    fn malformed_reference_reports_reason() {
        let long = "a".repeat(300);
        for (text, reason) in [
            ("", "path is empty"),
            ("Nginx", "lower case"),
            ("nginx:", "tag"),
            ("nginx:-x", "tag"),
            ("nginx:a b", "tag"),
            ("../etc", "host"),
            ("a//b", "path"),
            ("/a", "path"),
            ("a/../b", "path"),
            ("a..b", "path"),
            ("a___b", "path"),
            ("nginx@sha256:12", "digest"),
            ("host.io:99999/a", "port"),
            ("-x.io/a", "host"),
            ("http://x.io/a", "port"),
            (&long, "255"),
        ] {
            let error = Reference::parse(text).unwrap_err();
            assert!(error.to_string().contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn digest_takes_precedence_over_tag() {
        let digest = Digest::parse(DIGEST).unwrap();
        let tagged = Reference::parse("nginx:1.27").unwrap();
        let pinned = tagged.with_digest(&digest);
        assert_eq!(pinned.to_string(), format!("docker.io/library/nginx:1.27@{DIGEST}"));
        assert_eq!(pinned.record_name(), format!("docker.io/library/nginx@{DIGEST}"));
        assert_eq!(pinned.canonical().canonical(), pinned.canonical());
        assert_eq!(tagged.record_name(), "docker.io/library/nginx:1.27");
        assert!(pinned.shares_repository(&tagged));
        assert!(!tagged.shares_repository(&Reference::parse("r.io/library/nginx:1.27").unwrap()));
    }

    #[test]
    fn with_tag_keeps_the_repository() {
        let reference = Reference::parse("r.io:5000/a/b:1").unwrap().with_tag("2").unwrap();
        assert_eq!(reference.to_string(), "r.io:5000/a/b:2");
        assert!(reference.with_tag("a/b").is_err());
        assert_eq!((reference.domain(), reference.path(), reference.tag()), ("r.io:5000", "a/b", Some("2")));
        assert!(reference.digest().is_none());
    }
}
