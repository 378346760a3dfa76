//! Creates a new cluster from one manager when the others are lost: `manager init --force-new-cluster`.
//!
//! All entries of its log become part of the state, including those not known to be committed: a lost
//! majority may have acknowledged them. The manager becomes the only member, in the next incarnation of the
//! cluster, so that workers accept its assignments instead of earlier ones.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use warren_core::{AppliedIndex, State};
use warren_log::{DataDir, EntryKind, LogEngine, SnapshotDir, StoredLog};
use warren_security::seal::{KeyFiles, Keyring, KeyringError, PreparedKeyring};
use warren_security::{CertificateAuthority, UnlockKey};
use warren_store::codec::{self, CodecError};
use warren_store::raft::open::{OpenStoreError, SealedSnapshot, check_log_exists};
use warren_store::raft::sealing::{self, OpenEntryError};
use warren_store::raft::snapshot::SNAPSHOT_DIR;
use warren_types::{Member, Suffrage};

use super::ca::{CaError, ManagerKeys};
use super::member_identity::{self, AUTHORITY_FILE, LocalMemberStatus, MemberFileError, MemberIdentity};
use super::restore::{ManagerContact, begin_incarnation};

/// Why the new cluster was not created. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ForceNewClusterError {
    /// There is no manager in the directory.
    #[error("{0} has no manager; create a cluster with `warren manager init`")]
    NoManager(PathBuf),
    /// It never received the cluster's state.
    #[error("no cluster state on this manager; use another manager or a backup")]
    NoCluster,
    /// Its state is from before its removal.
    #[error(
        "this manager was removed from its cluster and its state is outdated; use another manager or a backup"
    )]
    Removed,
    /// The data directory is not usable.
    #[error(transparent)]
    Log(#[from] warren_log::Error),
    /// The member file cannot be read.
    #[error(transparent)]
    MemberFile(#[from] MemberFileError),
    /// The keys are invalid.
    #[error(transparent)]
    Keys(#[from] CaError),
    /// The log's keyring is invalid.
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    /// An entry cannot be decrypted.
    #[error("{0}")]
    OpenEntry(#[from] OpenEntryError),
    /// The snapshot is not usable.
    #[error(transparent)]
    Snapshot(#[from] OpenStoreError),
    /// An entry cannot be decoded.
    #[error("entry {index} of the log: {source}")]
    UnreadableEntry {
        /// Index of the entry.
        index: u64,
        /// The cause.
        source: CodecError,
    },
}

/// The result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForceNewClusterOutcome {
    /// It was the only member before; nothing was changed.
    Unchanged,
    /// The new cluster was created.
    Created {
        /// Number of other managers the cluster had.
        others: usize,
        /// Number of entries that were not known to be committed, and are part of the state now.
        uncommitted: u64,
    },
}

/// Creates a new cluster from the stopped manager in `data_dir`, whose keys may be locked. `whom` has its name and
/// address if its log does not. Idempotent.
///
/// # Errors
/// [`ForceNewClusterError`].
pub fn force_new_cluster(
    data_dir: &Path,
    engine: LogEngine,
    unlock_key: Option<&UnlockKey>,
    whom: ManagerContact,
    now: SystemTime,
) -> Result<ForceNewClusterOutcome, ForceNewClusterError> {
    let lock = DataDir::open(data_dir)?;
    let dir = lock.path().join("manager");
    // For a superseded manager the new incarnation must be later than the superseding one.
    let (identity, later_than) = match member_identity::read_status(&dir)? {
        LocalMemberStatus::Member(identity) => (identity, None),
        LocalMemberStatus::Superseded(identity, incarnation) => (identity, Some(incarnation)),
        LocalMemberStatus::Removed(_) => return Err(ForceNewClusterError::Removed),
        LocalMemberStatus::Unused | LocalMemberStatus::InitPending | LocalMemberStatus::JoinPending(_) => {
            return Err(ForceNewClusterError::NoManager(data_dir.to_owned()));
        }
    };
    let key_files = KeyFiles::open(&dir, unlock_key).map_err(CaError::from)?;
    let (keys, issued) = ManagerKeys::prepare(key_files.clone(), false, now)?;
    check_log_exists(&dir, engine)?;
    let mut log = warren_log::open(&dir, engine, identity.log_owner())?;
    let loaded = log.load()?;
    if later_than.is_none() && is_sole_member(&loaded, &identity) {
        return Ok(ForceNewClusterOutcome::Unchanged);
    }
    let (commit, current) = (loaded.hard_state.commit, loaded.snapshot.clone());
    let (mut state, keyring) = replay(&key_files, loaded)?;
    if state.cluster().is_none() {
        return Err(ForceNewClusterError::NoCluster);
    }
    issued.save(&key_files)?;
    let keyring = keyring.commit()?;
    let files = SnapshotDir::open(dir.join(SNAPSHOT_DIR), current.as_ref())?;
    let known = state.member(identity.member_id).map(|known| Member::clone(known));
    let known = known.unwrap_or_else(|| new_member_record(&state, &identity, whom));
    let member = Member { manager_id: keys.id, ..known };
    let others = state.members().filter(|other| other.member_id != identity.member_id).count();
    let uncommitted = state.applied().index.saturating_sub(commit);
    let later = later_than.map_or(Some(now), |incarnation| {
        UNIX_EPOCH.checked_add(Duration::from_secs(incarnation.checked_add(1)?))
    });
    let now = later.map_or(now, |later| now.max(later));
    begin_incarnation(&mut *log, &files, &keyring, &mut state, member, now)?;
    let (founders, managers) = (vec![identity.member_id], Vec::new());
    member_identity::save_identity(
        &dir,
        &MemberIdentity { founders, bootstrap_peers: managers, ..identity },
    )?;
    Ok(ForceNewClusterOutcome::Created { others, uncommitted })
}

/// Whether the stopped manager with these keys is the only member of its cluster, and nothing that it still has to open
/// is sealed with the secret object key: neither secret objects nor a new certificate authority, nor the unlock key. It
/// was never replaced. Unreadable data counts as no.
pub fn needs_no_secret_object_key(
    files: &Arc<KeyFiles>,
    engine: LogEngine,
    identity: &MemberIdentity,
) -> bool {
    let dir = files.dir();
    // Its cluster is not created yet.
    if warren_log::find_log(dir).is_none() {
        return Keyring::file_in(dir).is_none() && member_identity::is_init_pending(dir);
    }
    let loaded = warren_log::open(dir, engine, identity.log_owner()).and_then(|log| log.load());
    loaded.is_ok_and(|loaded| {
        is_sole_member(&loaded, identity)
            && replay(files, loaded).is_ok_and(|(state, _)| {
                let has_secrets = state.secret_objects().next().is_some() || state.unlock_key().is_some();
                !has_secrets && state.key_rotation().is_none() && has_newest_authority(dir, &state)
            })
    })
}

/// Whether the file of the certificate authority in `dir` is the one that replaced the earlier ones.
fn has_newest_authority(dir: &Path, state: &State) -> bool {
    let own = || CertificateAuthority::load_roots(&dir.join(AUTHORITY_FILE));
    let is_own = |digest| own().is_ok_and(|own| own.digests().first() == Some(&digest));
    state.ca_rotation().is_none_or(|rotation| is_own(rotation.digest))
}

/// Whether no other member existed since the initial configuration or the latest snapshot.
fn is_sole_member(loaded: &StoredLog, identity: &MemberIdentity) -> bool {
    let members = loaded.snapshot.as_ref().map_or(&loaded.conf_state, |snapshot| &snapshot.conf_state);
    let changed = loaded.entries.iter().any(|entry| entry.kind == EntryKind::Membership);
    members.voters == [identity.member_id]
        && members.learners.is_empty()
        && members.voters_outgoing.is_empty()
        && !changed
}

/// The state after all entries of the log. Changes nothing.
fn replay(
    key_files: &Arc<KeyFiles>,
    loaded: StoredLog,
) -> Result<(State, PreparedKeyring), ForceNewClusterError> {
    let files = SnapshotDir::at(key_files.dir().join(SNAPSHOT_DIR));
    let snapshot = loaded.snapshot.as_ref().map(|meta| SealedSnapshot::load(&files, meta)).transpose()?;
    let mut in_use = sealing::required_keys(&loaded)?;
    in_use.extend(snapshot.as_ref().map(SealedSnapshot::key_id));
    let keyring = Keyring::prepare(key_files, &in_use)?;
    let mut state = match snapshot {
        None => State::new(),
        Some(snapshot) => snapshot.open(keyring.keyring())?.0,
    };
    let restored = sealing::open_loaded(loaded, keyring.keyring())?;
    for entry in restored.entries {
        let (term, index) = (entry.term, entry.index);
        if index <= state.applied().index {
            continue;
        }
        match entry.kind {
            EntryKind::Noop | EntryKind::Membership => state.advance_to(AppliedIndex { term, index }),
            EntryKind::Command => {
                let command = codec::decode(&entry.data)
                    .map_err(|source| ForceNewClusterError::UnreadableEntry { index, source })?;
                // A rejected command has no effect.
                let _ = state.apply(term, index, &command);
            }
        }
    }
    Ok((state, keyring))
}

/// The record of a manager that was never registered.
fn new_member_record(
    state: &State,
    identity: &MemberIdentity,
    ManagerContact { name, address }: ManagerContact,
) -> Member {
    Member {
        member_id: identity.member_id,
        manager_id: warren_types::ManagerId(warren_types::Id(0)),
        name,
        address,
        desired_suffrage: Suffrage::Voter,
        replaces: None,
        removing: false,
        level: warren_core::FEATURE_LEVEL,
        version: state.applied().index,
        created_at: state.clock(),
        administrator_key: None,
    }
}

#[cfg(test)]
mod tests;
