//! Secrets, configs, and registry credentials. Managers store them sealed.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{ImageReference, SecretObjectId, SecretObjectName, Timestamp};

/// The largest size in bytes of one version of a secret object.
pub const MAX_SECRET_OBJECT_SIZE: usize = 1 << 20;
/// How many versions of a secret object are kept for rollbacks.
pub const KEPT_SECRET_OBJECT_VERSIONS: usize = 5;

/// The kind of a secret object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SecretObjectKind {
    /// Never shown again; only in memory, and only on the nodes that need it.
    Secret,
    /// Shown to every client that may read it.
    Config,
    /// Login for a registry; its name is the registry's host.
    Credential,
}

impl SecretObjectKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Secret, Self::Config, Self::Credential];

    /// Human-readable: `secret`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Secret => "secret",
            Self::Config => "config",
            Self::Credential => "registry credential",
        }
    }
}

impl fmt::Display for SecretObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A name and data that a cluster stores for its tasks. Names are unique per kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretObject {
    /// Chosen by the client that created it.
    pub id: SecretObjectId,
    /// Secret, config or credential.
    pub kind: SecretObjectKind,
    /// The name that users and specs refer to.
    pub name: SecretObjectName,
    /// Raft index of the last change.
    pub version: u64,
    /// When it was created.
    pub created_at: Timestamp,
    /// When its data last changed.
    pub updated_at: Timestamp,
    /// Labels set by the user.
    pub labels: BTreeMap<String, String>,
    /// Its data by version number, which counts up from 1. The last is the current one; at most
    /// [`KEPT_SECRET_OBJECT_VERSIONS`] are kept. Never empty.
    pub versions: BTreeMap<u64, Arc<SealedData>>,
}

impl SecretObject {
    /// Number of the current version.
    pub fn current_version(&self) -> u64 {
        self.versions.last_key_value().map_or(0, |(number, _)| *number)
    }

    /// Bytes of the current version before sealing.
    pub fn size(&self) -> u32 {
        self.versions.last_key_value().map_or(0, |(_, sealed)| sealed.size)
    }
}

/// Names a secret object key where it must not be shown: the first 8 bytes of a hash of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretObjectKeyId(pub u64);

/// 16 lower-case hexadecimal digits.
impl fmt::Display for SecretObjectKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The first byte of sealed data that names the key that sealed it: the id follows, big-endian.
pub const NAMED_KEY_FORMAT: u8 = 2;

/// The data of one version, sealed under the cluster's secret object key: only managers can open it.
#[derive(Clone, PartialEq, Eq)]
pub struct SealedData {
    /// Size in bytes before sealing.
    pub size: u32,
    /// A keyed hash of the data, which identifies a repeated request.
    pub fingerprint: [u8; 32],
    /// Format, key, nonce and ciphertext, as `warren-security` writes them.
    pub sealed: Vec<u8>,
}

impl SealedData {
    /// The key that sealed it; `None` if its format does not say so.
    pub fn key(&self) -> Option<SecretObjectKeyId> {
        let (format, rest) = self.sealed.split_first()?;
        let id = rest.first_chunk::<8>().filter(|_| *format == NAMED_KEY_FORMAT)?;
        Some(SecretObjectKeyId(u64::from_be_bytes(*id)))
    }
}

impl fmt::Debug for SealedData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealedData({} bytes)", self.size)
    }
}

/// One version of a secret object, as a revision of a service uses it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretObjectVersion {
    /// Secret or config.
    pub kind: SecretObjectKind,
    /// The name in the spec.
    pub name: SecretObjectName,
    /// The secret object with that name when the revision was created.
    pub id: SecretObjectId,
    /// The version number.
    pub number: u64,
}

/// The line before the user of a login whose password nodes never get. No user has a `:`.
const TOKEN_ONLY: &str = ":token-only\n";

/// User and password for a registry, as the data of a [`SecretObjectKind::Credential`]: `user`, a line feed,
/// password; before that the line `:token-only` if nodes never get the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// Without a line feed and `:`; not empty.
    pub user: String,
    /// Password or token.
    pub password: String,
    /// Whether nodes get tokens for single repositories and never the password.
    pub is_token_only: bool,
}

/// The text is not a [`Login`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a credential has a user name without ':' and line breaks, and a password")]
pub struct ParseLoginError;

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({})", self.user)
    }
}

impl Login {
    /// The stored form; [`FromStr`] parses it.
    pub fn to_text(&self) -> String {
        let Self { user, password, is_token_only } = self;
        let mode = if *is_token_only { TOKEN_ONLY } else { "" };
        format!("{mode}{user}\n{password}")
    }

    /// The login in the data of a credential.
    ///
    /// # Errors
    /// [`ParseLoginError`].
    pub fn from_data(data: &[u8]) -> Result<Self, ParseLoginError> {
        std::str::from_utf8(data).map_err(|_| ParseLoginError)?.parse()
    }
}

impl FromStr for Login {
    type Err = ParseLoginError;

    fn from_str(text: &str) -> Result<Self, ParseLoginError> {
        let stripped = text.strip_prefix(TOKEN_ONLY);
        let (user, password) = stripped.unwrap_or(text).split_once('\n').ok_or(ParseLoginError)?;
        if user.is_empty()
            || user.contains([':', '\r', '\0'])
            || password.is_empty()
            || password.contains('\0')
        {
            return Err(ParseLoginError);
        }
        let is_token_only = stripped.is_some();
        Ok(Self { user: user.to_owned(), password: password.to_owned(), is_token_only })
    }
}

/// The registry of references that name none.
pub const DEFAULT_REGISTRY: &str = "docker.io";

/// The registry of an image, which is the name of its credential: host and port in lower case, `docker.io`
/// unless the reference names one. A first part that does not look like a host belongs to the repository.
pub fn registry_host(image: &ImageReference) -> String {
    let name = image.as_str().split_once('@').map_or(image.as_str(), |(name, _)| name);
    match name.split_once('/') {
        Some((host, _)) if looks_like_host(host) => match host.to_ascii_lowercase() {
            host if host == "index.docker.io" => DEFAULT_REGISTRY.to_owned(),
            host => host,
        },
        _ => DEFAULT_REGISTRY.to_owned(),
    }
}

/// Whether the reference names its registry.
pub(crate) fn names_registry(image: &ImageReference) -> bool {
    image.as_str().split_once('/').is_some_and(|(host, _)| looks_like_host(host))
}

fn looks_like_host(text: &str) -> bool {
    text.contains(['.', ':']) || text.eq_ignore_ascii_case("localhost")
}

/// Whether a credential with this name can match a registry.
///
/// # Errors
/// Why it cannot, as a text that continues after the name.
pub fn validate_registry_name(name: &SecretObjectName) -> Result<(), &'static str> {
    let text = name.as_str();
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    let label = |label: &str| {
        let ends = |edge: Option<u8>| edge.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        ends(label.bytes().next())
            && ends(label.bytes().next_back())
            && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    if ["index.docker.io", "registry-1.docker.io", "hub.docker.com"].contains(&host) {
        return Err("is named docker.io in image references; use that name");
    }
    if text.bytes().any(|b| b.is_ascii_uppercase()) {
        return Err("must be in lower case");
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
    fn registry_host_is_read_from_reference() {
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
            assert_eq!(registry_host(&image.parse().unwrap()), registry, "{image}");
        }
    }

    #[test]
    fn credential_name_matches_registry_host() {
        for good in ["docker.io", "localhost", "localhost:5000", "registry.lan", "10.0.0.1:5000", "a:1"] {
            let image: ImageReference = format!("{good}/app").parse().unwrap();
            assert_eq!(validate_registry_name(&good.parse().unwrap()), Ok(()), "{good}");
            assert_eq!(registry_host(&image), good);
        }
        for (violations, why) in [
            ("index.docker.io", "docker.io"),
            ("Registry.lan", "lower case"),
            ("registry", "HOST:PORT"),
            ("registry.lan:x", "HOST[:PORT]"),
            ("registry.lan:70000", "HOST[:PORT]"),
            ("a..b", "HOST[:PORT]"),
            ("a_b.c", "HOST[:PORT]"),
        ] {
            let found = validate_registry_name(&violations.parse().unwrap()).unwrap_err();
            assert!(found.contains(why), "{violations}: {found}");
        }
    }

    #[test]
    fn login_round_trip() {
        for is_token_only in [false, true] {
            let login = Login { user: "ann".into(), password: "a\nb:c".into(), is_token_only };
            assert_eq!(login.to_text().parse(), Ok(login.clone()));
            assert_eq!(Login::from_data(login.to_text().as_bytes()), Ok(login.clone()));
            assert_eq!(format!("{login:?}"), "Login(ann)");
        }
        for violations in
            ["", "ann", "\npw", "ann\n", "a:b\npw", "a\0\npw", ":token-only\nann", ":token-only"]
        {
            assert_eq!(violations.parse::<Login>(), Err(ParseLoginError), "{violations:?}");
        }
        assert_eq!(Login::from_data(b"ann\n\xff"), Err(ParseLoginError));
    }
}
