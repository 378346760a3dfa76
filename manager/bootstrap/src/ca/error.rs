//! Errors of a manager's keys.

use std::path::PathBuf;

use warren_security::{
    AuthorityError, FileError, IdentityError, KeyFileError, KeyFingerprint, SecretObjectKeyError,
};
use warren_store::raft::open::RECOVERY_HINT;
use warren_types::NodeName;

use super::super::member_identity::MemberFileError;

/// Why the keys are not usable.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// There is no cluster in the directory.
    #[error("{0} has no cluster; create one with `warren manager init`")]
    NoCluster(PathBuf),
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A certificate cannot be issued.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// A name is not valid in a certificate.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The member file cannot be read.
    #[error(transparent)]
    MemberFile(#[from] MemberFileError),
    /// The manager's certificate is missing.
    #[error(
        "{0} is missing, and the cluster would not recognize this manager with another one; {RECOVERY_HINT}"
    )]
    ManagerMissing(PathBuf),
    /// The CA is missing.
    #[error(
        "{0} is missing, and without it this manager can neither present nor verify certificates: copy it \
         from another manager of the cluster, where it is identical, or restore it from a backup of this \
         directory"
    )]
    AuthorityMissing(PathBuf),
    /// A file belongs to another manager than the directory.
    #[error("{path}: expected {wanted}, found {found}; {RECOVERY_HINT}")]
    ManagerMismatch {
        /// The file.
        path: PathBuf,
        /// The identity in the file.
        found: String,
        /// The expected identity.
        wanted: String,
    },
    /// A reissuable certificate is not usable.
    #[error("{path} is not usable: {why}; remove it, and the next start issues a new one")]
    Reissuable {
        /// The file.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// The member key or the secret object key cannot be read, or the keys are locked.
    #[error(transparent)]
    KeyFile(#[from] KeyFileError),
    /// The secret object key is missing, but sealed objects may exist.
    #[error(
        "{0} is missing, and without it none of the cluster's secrets, configs and credentials can be read: \
         copy it from another manager of the cluster, where it is identical, or restore it from a backup of \
         this manager"
    )]
    SecretObjectKeyMissing(PathBuf),
    /// The secret object key is not the one that this manager received.
    #[error(
        "{path} is not the key that the cluster's secrets, configs and credentials are sealed with: it is \
         the key {found}, expected {wanted}; copy it from another manager of the cluster, where it is \
         identical, or restore it from a backup of this manager"
    )]
    SecretObjectKeyReplaced {
        /// The file.
        path: PathBuf,
        /// The fingerprint of the key in the file.
        found: KeyFingerprint,
        /// The fingerprint of the cluster's key.
        wanted: KeyFingerprint,
    },
    /// The secret object key does not decrypt the existing objects.
    #[error(
        "{path} is not the key that the cluster's secrets, configs and credentials were sealed with: {source}"
    )]
    SecretObjectKeyMismatch {
        /// The file.
        path: PathBuf,
        /// The decryption error.
        source: SecretObjectKeyError,
    },
    /// The name belongs to the node of another machine's removed manager.
    #[error(
        "node {name} belongs to another machine at {address}, whose manager was removed: run `warren node \
         rm {name}` first"
    )]
    NodeMismatch {
        /// The common name.
        name: NodeName,
        /// The address of the other machine.
        address: String,
    },
    /// A certificate belongs to another cluster, or its id is invalid.
    #[error("{path} is not of this cluster: {why}; {RECOVERY_HINT}")]
    ClusterMismatch {
        /// The file.
        path: PathBuf,
        /// The cause.
        why: String,
    },
}
