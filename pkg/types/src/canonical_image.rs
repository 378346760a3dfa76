//! Image references in the form in which nodes name their images.

use std::fmt;

use crate::secret_object::{names_registry, registry_host};
use crate::{ImageDigest, ImageReference};

/// A reference with its registry and tag: `nginx` is `docker.io/library/nginx:latest`. With a digest the tag is
/// redundant and left out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CanonicalImage {
    /// Registry and path.
    pub repository: String,
    version: Version,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Version {
    Tag(String),
    Digest(String),
}

impl CanonicalImage {
    /// The canonical form of a reference.
    pub fn of(image: &ImageReference) -> Self {
        let (rest, digest) = match image.as_str().split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (image.as_str(), None),
        };
        // A colon after the last slash starts the tag; one before it belongs to a port.
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, tag),
            _ => (rest, "latest"),
        };
        let host = registry_host(image);
        let path = match name.split_once('/') {
            Some((_, path)) if names_registry(image) => path,
            _ => name,
        };
        let library = if host == "docker.io" && !path.contains('/') { "library/" } else { "" };
        let version =
            digest.map_or_else(|| Version::Tag(tag.into()), |digest| Version::Digest(digest.into()));
        Self { repository: format!("{host}/{library}{path}"), version }
    }

    /// Whether a node's image of that canonical name and digest is this one: the same name, or the repository
    /// with this digest.
    pub fn matches(&self, name: &str, digest: &str) -> bool {
        match &self.version {
            Version::Tag(tag) => {
                let rest = name.strip_prefix(self.repository.as_str());
                rest.and_then(|rest| rest.strip_prefix(':')) == Some(tag)
            }
            Version::Digest(expected) => {
                let rest = name.strip_prefix(self.repository.as_str());
                expected == digest && rest.is_some_and(|rest| rest.starts_with([':', '@']))
            }
        }
    }

    /// The same repository with this digest.
    #[must_use]
    pub fn with_digest(&self, digest: &ImageDigest) -> Self {
        Self { repository: self.repository.clone(), version: Version::Digest(digest.to_string()) }
    }
}

impl fmt::Display for CanonicalImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.version {
            Version::Tag(tag) => write!(f, "{}:{tag}", self.repository),
            Version::Digest(digest) => write!(f, "{}@{digest}", self.repository),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_normalised_as_nodes_do() {
        let check = |given: &str, expected: &str| {
            assert_eq!(CanonicalImage::of(&given.parse().unwrap()).to_string(), expected, "{given}");
        };
        let digest = format!("sha256:{}", "a".repeat(64));
        check("nginx", "docker.io/library/nginx:latest");
        check("org/app:2", "docker.io/org/app:2");
        check("index.docker.io/org/app:2", "docker.io/org/app:2");
        check("registry.lan:5000/app", "registry.lan:5000/app:latest");
        check("localhost/a/b:1", "localhost/a/b:1");
        check(&format!("nginx:1@{digest}"), &format!("docker.io/library/nginx@{digest}"));
    }

    #[test]
    fn image_is_recognised_by_name_or_digest() {
        let (digest, other) = (format!("sha256:{}", "a".repeat(64)), format!("sha256:{}", "b".repeat(64)));
        let web = CanonicalImage::of(&"web:1".parse().unwrap());
        assert!(web.matches("docker.io/library/web:1", &digest));
        assert!(!web.matches("docker.io/library/web:11", &digest));
        assert!(!web.matches("docker.io/library/web2:1", &digest));
        let pinned = web.with_digest(&digest.parse().unwrap());
        assert!(pinned.matches("docker.io/library/web:2", &digest));
        assert!(pinned.matches(&format!("docker.io/library/web@{digest}"), &digest));
        assert!(!pinned.matches("docker.io/library/web:1", &other));
        assert!(!pinned.matches("docker.io/library/web2:1", &digest));
    }
}
