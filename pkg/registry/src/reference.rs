//! Image references, normalised like Docker: `nginx` means `docker.io/library/nginx:latest`.
//!
//! Pure. [`warren_types::image_reference`] has the grammar.

use std::fmt;

use warren_types::image_reference::{ReferenceParts, split_reference};

use crate::digest::Digest;

const DEFAULT_TAG: &str = "latest";

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
        let ReferenceParts { domain, path, tag, digest } = split_reference(text)?;
        let digest = digest.map(Digest::parse).transpose().map_err(|_| "its digest is malformed")?;
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
}
