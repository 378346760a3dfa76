//! Why the keys of a manager cannot be used.

use std::path::PathBuf;

use warren_security::{AuthorityError, ContentKeyError, FileError, Fingerprint, IdentityError, KeyFileError};
use warren_types::NodeName;

use crate::recovery::seat::{SeatError, WAY_BACK};

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
    /// Which manager this is cannot be read.
    #[error(transparent)]
    Seat(#[from] SeatError),
    /// It has a place in the group, and nothing that says whose.
    #[error(
        "{0} is missing, and with another one this manager would be a stranger to its cluster; {WAY_BACK}"
    )]
    ManagerMissing(PathBuf),
    /// It has a place in the group, and not its cluster's authority.
    #[error(
        "{0} is missing, and without it this manager can show and check no certificate: copy it from another manager \
         of the cluster, which has the same, or restore it from a backup of this directory"
    )]
    AuthorityMissing(PathBuf),
    /// A file is of another manager than the one that the directory is of.
    #[error("{path} is of {found}, and this is {wanted}; {WAY_BACK}")]
    OtherManager {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        found: String,
        /// Whose it should be.
        wanted: String,
    },
    /// A certificate that can be issued again cannot be used.
    #[error("{path} cannot be used: {why}; remove it, and the next start issues another")]
    Reissuable {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// The content key cannot be read.
    #[error(transparent)]
    ContentKey(#[from] KeyFileError),
    /// The content key is gone, but what it sealed may be there.
    #[error(
        "{0} is missing, and without it none of the cluster's secrets, configs and credentials can be read: copy it \
         from another manager of the cluster, which has the same, or restore it from a backup of this manager"
    )]
    ContentKeyMissing(PathBuf),
    /// The content key is another than the one that this manager was given.
    #[error(
        "{path} is not the key that the cluster's secrets, configs and credentials are sealed with: it is the key \
         {found}, and the cluster has {wanted}; copy it from another manager of the cluster, which has the same, or \
         restore it from a backup of this manager"
    )]
    ContentKeyReplaced {
        /// The file.
        path: PathBuf,
        /// The fingerprint of the key in it.
        found: Fingerprint,
        /// That of the cluster's key.
        wanted: Fingerprint,
    },
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
    /// Another machine's manager had the name, and its node still has it.
    #[error(
        "node {name} is the machine at {address}, whose manager is gone, and not this one: `warren node rm {name}` \
         first"
    )]
    NodeOfAnother {
        /// What both are called.
        name: NodeName,
        /// Where the other one was reached.
        address: String,
    },
    /// A certificate is of another cluster, or names no id of ours.
    #[error("{path} is not of this cluster: {why}; {WAY_BACK}")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}
