//! The keys of a manager: the cluster's authority and what it issued for this machine.
//!
//! Each is one file of mode 0600 in the manager's directory, made if it is missing, so that a start that was cut off
//! is completed by the next one. Ids are read from the certificates; there is no second place for them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rand::RngExt;
use warren_core::State;
use warren_security::{
    AuthorityError, CertificateAuthority, ContentKey, ContentKeyError, Credentials, FileError, Identity,
    IdentityError, KeyFileError, Role,
};
use warren_types::{ClusterId, Id, NodeId};

/// What contents are sealed with, in the manager's directory.
const CONTENT_FILE: &str = "content.key";
/// The administrator that `manager init` makes.
const ADMIN: &str = "admin";

/// Why the keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// There is no cluster here.
    #[error("{0} holds no cluster; create one with `warren manager init`")]
    NoCluster(PathBuf),
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A certificate cannot be issued.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// A name that no certificate can carry.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The content key cannot be read.
    #[error(transparent)]
    ContentKey(#[from] KeyFileError),
    /// The content key is gone, but what it sealed is there.
    #[error(
        "{0} is missing, and without it none of the cluster's secrets, configs and credentials can be read: restore \
         it from a backup of this manager"
    )]
    ContentKeyMissing(PathBuf),
    /// The content key is another than the one that sealed what is there.
    #[error(
        "{path} is not the key that the cluster's secrets, configs and credentials were sealed with: {source}"
    )]
    OtherContentKey {
        /// The file.
        path: PathBuf,
        /// What one of them said to it.
        source: ContentKeyError,
    },
    /// A certificate is of another cluster, or names no id of ours.
    #[error("{path} is not of this cluster: {why}")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// What this machine shows and trusts.
#[derive(Debug)]
pub struct Keys {
    /// The cluster's id, from the authority's certificate.
    pub cluster: ClusterId,
    /// Issues certificates.
    pub authority: Arc<CertificateAuthority>,
    /// What the manager shows.
    pub manager: Credentials,
    /// What this machine's administrator shows.
    pub admin: Credentials,
    /// What this machine's agent shows, with its id; `None` for a manager only.
    pub node: Option<(NodeId, Credentials)>,
}

impl Keys {
    /// Opens the keys in `dir`; makes those that are missing or half-way through their life. A new cluster is made
    /// only when `create` says so.
    ///
    /// # Errors
    /// [`CaError`].
    pub fn open(dir: &Path, create: bool, with_node: bool, now: SystemTime) -> Result<Self, CaError> {
        let path = dir.join("ca.pem");
        let authority = if path.exists() {
            CertificateAuthority::load(&path)?
        } else if create {
            let authority = CertificateAuthority::create(&new_id().to_string(), now)?;
            authority.save(&path)?;
            authority
        } else {
            return Err(CaError::NoCluster(dir.to_owned()));
        };
        let cluster = authority.cluster().to_owned();
        let foreign = |file: &str, why: &dyn std::fmt::Display| CaError::Foreign {
            path: dir.join(file),
            why: why.to_string(),
        };
        let issuer = Issuer { dir, authority: &authority, now };
        let manager = issuer.ensure("manager.pem", Role::Manager, || new_id().to_string())?;
        let admin = issuer.ensure("admin.pem", Role::Admin, || ADMIN.to_string())?;
        let node = if with_node {
            let node = issuer.ensure("node.pem", Role::Worker, || new_id().to_string())?;
            let id = node.identity().id().parse().map_err(|why| foreign("node.pem", &why))?;
            Some((id, node))
        } else {
            None
        };
        let cluster = cluster.parse().map_err(|why| foreign("ca.pem", &why))?;
        Ok(Self { cluster, authority: Arc::new(authority), manager, admin, node })
    }
}

/// The key in `dir` that contents are sealed with. It is made where there is none, unless something in `state` was
/// sealed with one.
///
/// # Errors
/// [`CaError`]; nothing was changed.
pub fn content_key(dir: &Path, state: &State) -> Result<ContentKey, CaError> {
    let path = dir.join(CONTENT_FILE);
    let sealed = state.contents().find_map(|content| {
        content.versions.last_key_value().map(|(_, newest)| (content.id, newest.clone()))
    });
    match (ContentKey::load(&path)?, sealed) {
        (None, None) => Ok(ContentKey::create(&path)?),
        (None, Some(_)) => Err(CaError::ContentKeyMissing(path)),
        (Some(key), None) => Ok(key),
        (Some(key), Some((id, newest))) => match key.open(id, &newest) {
            Ok(_) => Ok(key),
            Err(source) => Err(CaError::OtherContentKey { path, source }),
        },
    }
}

fn new_id() -> Id {
    Id(rand::rng().random())
}

struct Issuer<'a> {
    dir: &'a Path,
    authority: &'a CertificateAuthority,
    now: SystemTime,
}

impl Issuer<'_> {
    /// The credentials in the file; new ones for the same holder when they are half-way through.
    fn ensure(&self, file: &str, role: Role, id: impl FnOnce() -> String) -> Result<Credentials, CaError> {
        let path = self.dir.join(file);
        let cluster = self.authority.cluster();
        let identity = if path.exists() {
            let found = Credentials::load(&path)?;
            if found.identity().cluster() != cluster || found.identity().role() != role {
                let why = format!("it is of {}, wanted {role:?} of cluster {cluster}", found.identity());
                return Err(CaError::Foreign { path, why });
            }
            if self.now + role.validity() / 2 < found.expires_at() {
                return Ok(found);
            }
            found.identity().clone()
        } else {
            Identity::new(cluster, role, id())?
        };
        let issued = self.authority.issue(&identity, self.now)?;
        issued.save(&path)?;
        Ok(issued)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn open(dir: &Path, create: bool, now: SystemTime) -> Result<Keys, CaError> {
        Keys::open(dir, create, true, now)
    }

    #[test]
    fn a_cluster_is_made_once_and_only_when_asked() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        assert!(matches!(open(dir.path(), false, now), Err(CaError::NoCluster(_))));
        let first = open(dir.path(), true, now).unwrap();
        let again = open(dir.path(), true, now).unwrap();
        assert_eq!(first.cluster, again.cluster);
        assert_eq!(first.node.map(|(id, _)| id), again.node.map(|(id, _)| id));
        assert_eq!(first.manager.certificate_pem(), again.manager.certificate_pem());
    }

    #[test]
    fn a_missing_file_is_made_again_and_an_old_one_renewed() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let first = open(dir.path(), true, now).unwrap();
        std::fs::remove_file(dir.path().join("admin.pem")).unwrap();
        let later = open(dir.path(), false, now + Duration::from_secs(50 * 24 * 3600)).unwrap();
        assert_eq!(later.admin.identity(), first.admin.identity());
        assert_eq!(later.manager.identity(), first.manager.identity());
        assert!(later.manager.expires_at() > first.manager.expires_at());
    }

    #[test]
    fn the_content_key_is_made_once_and_never_replaced() {
        use warren_core::Command;
        use warren_types::{ContentId, ContentKind, Timestamp};

        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut state = State::new();
        let key = content_key(dir.path(), &state).unwrap();
        let id = ContentId(Id(1));
        let content = key.seal(id, b"hunter2");
        assert!(content_key(dir.path(), &state).unwrap().open(id, &content).is_ok(), "it is the same");
        let (kind, name, at) = (ContentKind::Secret, "db".parse().unwrap(), Timestamp(1));
        let cluster = warren_types::ClusterId(Id(1));
        let ranges = vec!["10.210.0.0/16".parse().unwrap()];
        state.apply(1, 1, &Command::CreateCluster { id: cluster, ranges, level: warren_core::LEVEL, at });
        let labels = Default::default();
        state.apply(1, 2, &Command::CreateContent { id, kind, name, labels, content, at });
        assert_eq!(state.contents().count(), 1);
        assert!(content_key(dir.path(), &state).is_ok());

        let missing = content_key(other.path(), &state).unwrap_err();
        assert!(matches!(&missing, CaError::ContentKeyMissing(path) if !path.exists()), "{missing}");
        content_key(other.path(), &State::new()).unwrap();
        let another = content_key(other.path(), &state).unwrap_err();
        assert!(matches!(another, CaError::OtherContentKey { .. }), "{another}");
    }

    #[test]
    fn keys_of_another_cluster_are_refused() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let now = SystemTime::now();
        open(one.path(), true, now).unwrap();
        open(two.path(), true, now).unwrap();
        std::fs::copy(one.path().join("node.pem"), two.path().join("node.pem")).unwrap();
        assert!(matches!(open(two.path(), false, now), Err(CaError::Foreign { .. })));
    }
}
