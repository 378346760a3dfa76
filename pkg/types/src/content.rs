//! What only those may read who need it: secrets, configs, and credentials of registries. Managers hold them sealed.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{ContentId, ContentName, ImageReference, Timestamp};

/// The most bytes that one version of a content may have.
pub const MAX_CONTENT: usize = 1 << 20;
/// How many versions of a content are kept, so that a rollback finds what it returns to.
pub const KEPT_CONTENT_VERSIONS: usize = 5;

/// What a content is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContentKind {
    /// Never shown again; in memory only on the nodes that need it.
    Secret,
    /// Shown to whoever may look.
    Config,
    /// What a registry wants to see before it gives an image; its name is the registry's host.
    Credential,
}

impl ContentKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Secret, Self::Config, Self::Credential];

    /// As people see it: `secret`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Secret => "secret",
            Self::Config => "config",
            Self::Credential => "registry credential",
        }
    }
}

impl fmt::Display for ContentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A name and bytes that a cluster keeps for its tasks. Names are unique per kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// Made by the client that created it.
    pub id: ContentId,
    /// What it is for.
    pub kind: ContentKind,
    /// For people and specs.
    pub name: ContentName,
    /// Raft index of the last change.
    pub version: u64,
    /// When it was created.
    pub created_at: Timestamp,
    /// When its bytes last changed.
    pub updated_at: Timestamp,
    /// Free key-value pairs.
    pub labels: BTreeMap<String, String>,
    /// Its bytes by version number, which counts up from 1. The last is the current one; at most
    /// [`KEPT_CONTENT_VERSIONS`] are kept. Never empty.
    pub versions: BTreeMap<u64, Arc<SealedContent>>,
}

impl Content {
    /// Number of the current version.
    pub fn number(&self) -> u64 {
        self.versions.last_key_value().map_or(0, |(number, _)| *number)
    }

    /// Bytes of the current version, before they were sealed.
    pub fn size(&self) -> u32 {
        self.versions.last_key_value().map_or(0, |(_, sealed)| sealed.size)
    }
}

/// The bytes of one version, sealed under the cluster's content key: only managers can open it.
#[derive(Clone, PartialEq, Eq)]
pub struct SealedContent {
    /// Bytes of what is sealed.
    pub size: u32,
    /// A keyed hash of what is sealed, by which a repeated request is recognised.
    pub fingerprint: [u8; 32],
    /// Nonce and ciphertext, as `warren-security` writes them.
    pub sealed: Vec<u8>,
}

impl fmt::Debug for SealedContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealedContent({} bytes)", self.size)
    }
}

/// One version of a content, as a revision of a service uses it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContentUse {
    /// What it is for: a secret or a config.
    pub kind: ContentKind,
    /// As the spec names it.
    pub name: ContentName,
    /// Which one had that name when the revision was made.
    pub id: ContentId,
    /// Which version of it.
    pub number: u64,
}

/// User and password for a registry, as the content of a [`ContentKind::Credential`]: `user`, a line feed, password.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// Without a line feed and `:`; not empty.
    pub user: String,
    /// Or a token.
    pub password: String,
}

/// What is no [`Login`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a login has a user without ':' and line breaks, and a password")]
pub struct ParseLoginError;

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({})", self.user)
    }
}

impl Login {
    /// As it is kept; [`FromStr`] reads it.
    pub fn to_text(&self) -> String {
        format!("{}\n{}", self.user, self.password)
    }
}

impl FromStr for Login {
    type Err = ParseLoginError;

    fn from_str(text: &str) -> Result<Self, ParseLoginError> {
        let (user, password) = text.split_once('\n').ok_or(ParseLoginError)?;
        if user.is_empty()
            || user.contains([':', '\r', '\0'])
            || password.is_empty()
            || password.contains('\0')
        {
            return Err(ParseLoginError);
        }
        Ok(Self { user: user.to_owned(), password: password.to_owned() })
    }
}

/// The registry of references that name none.
const DEFAULT_REGISTRY: &str = "docker.io";

/// The registry that an image comes from, as its credential is called: host and port in lower case, `docker.io` unless
/// the reference names one. A first part that looks like no host belongs to the repository.
pub fn registry_of(image: &ImageReference) -> String {
    let name = image.as_str().split_once('@').map_or(image.as_str(), |(name, _)| name);
    match name.split_once('/') {
        Some((host, _)) if looks_like_host(host) => match host.to_ascii_lowercase() {
            host if host == "index.docker.io" => DEFAULT_REGISTRY.to_owned(),
            host => host,
        },
        _ => DEFAULT_REGISTRY.to_owned(),
    }
}

fn looks_like_host(text: &str) -> bool {
    text.contains(['.', ':']) || text.eq_ignore_ascii_case("localhost")
}

/// Whether a credential of this name would ever be used.
///
/// # Errors
/// Why not, in words that go on after the name.
pub fn validate_registry(name: &ContentName) -> Result<(), &'static str> {
    let text = name.as_str();
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    let label = |label: &str| {
        let ends = |edge: Option<u8>| edge.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        ends(label.bytes().next())
            && ends(label.bytes().next_back())
            && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    if ["index.docker.io", "registry-1.docker.io", "hub.docker.com"].contains(&host) {
        return Err("is called docker.io in image references; give that");
    }
    if text.bytes().any(|b| b.is_ascii_uppercase()) {
        return Err("is to be in lower case");
    }
    if port.is_some_and(|port| port.parse::<u16>().is_err()) || !host.split('.').all(label) {
        return Err("is not the host of a registry as in image references: HOST[:PORT]");
    }
    if !looks_like_host(text) {
        return Err("would be read as a part of the repository in image references; give HOST:PORT");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_says_its_registry() {
        for (image, registry) in [
            ("nginx", "docker.io"),
            ("nginx:1.27", "docker.io"),
            ("team/app:1", "docker.io"),
            ("index.docker.io/nginx", "docker.io"),
            ("localhost/app", "localhost"),
            ("localhost:5000/a/b:1", "localhost:5000"),
            ("Registry.Lan/app", "registry.lan"),
            ("10.0.0.1:5000/app@sha256:00", "10.0.0.1:5000"),
            ("app@sha256:00", "docker.io"),
        ] {
            assert_eq!(registry_of(&image.parse().unwrap()), registry, "{image}");
        }
    }

    #[test]
    fn credentials_are_called_as_images_call_their_registry() {
        for good in ["docker.io", "localhost", "localhost:5000", "registry.lan", "10.0.0.1:5000", "a:1"] {
            let image: ImageReference = format!("{good}/app").parse().unwrap();
            assert_eq!(validate_registry(&good.parse().unwrap()), Ok(()), "{good}");
            assert_eq!(registry_of(&image), good);
        }
        for (wrong, why) in [
            ("index.docker.io", "docker.io"),
            ("Registry.lan", "lower case"),
            ("registry", "HOST:PORT"),
            ("registry.lan:x", "HOST[:PORT]"),
            ("registry.lan:70000", "HOST[:PORT]"),
            ("a..b", "HOST[:PORT]"),
            ("a_b.c", "HOST[:PORT]"),
        ] {
            let found = validate_registry(&wrong.parse().unwrap()).unwrap_err();
            assert!(found.contains(why), "{wrong}: {found}");
        }
    }

    #[test]
    fn a_login_is_read_as_it_was_written() {
        let login = Login { user: "ann".into(), password: "a\nb:c".into() };
        assert_eq!(login.to_text().parse(), Ok(login.clone()));
        assert_eq!(format!("{login:?}"), "Login(ann)");
        for wrong in ["", "ann", "\npw", "ann\n", "a:b\npw", "a\0\npw"] {
            assert_eq!(wrong.parse::<Login>(), Err(ParseLoginError), "{wrong:?}");
        }
    }
}
