//! Creates a single-member cluster from a backup, on a machine without a manager.
//!
//! Everything is written into a temporary directory, which is renamed when it is complete. So a machine has a
//! complete manager or none, whenever the process was killed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use warren_core::{AppliedIndex, Command, KeyCommand, State};
use warren_log::{
    ConfState, DataDir, HardState, LogEngine, LogStore, SnapshotDir, SnapshotMeta, StoredLog, WriteBatch,
};
use warren_security::seal::{Keyring, KeyringError, SealingWriter};
use warren_security::{FileError, files};
use warren_store::codec;
use warren_store::raft::sealed_log::save_key;
use warren_store::raft::snapshot::{SNAPSHOT_DIR, snapshot_aad};
use warren_types::{ManagerAddress, Member, MemberId, NodeName, Suffrage, Timestamp, TokenId};

use super::backup::Backup;
use super::ca::{CaError, ManagerKeys};
use super::member_identity::{self, AUTHORITY_FILE, MemberFileError, MemberIdentity, SECRET_OBJECT_KEY_FILE};

/// Name and address of the manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagerContact {
    /// Name, unique among managers.
    pub name: NodeName,
    /// Address for other managers, workers and users.
    pub address: ManagerAddress,
}

/// Why a manager was not restored. The data directory is unchanged, or has a part that the next attempt
/// removes.
#[derive(Debug, thiserror::Error)]
pub enum BackupRestoreError {
    /// There is a manager already.
    #[error("{0} has a manager already; restore into an empty data directory")]
    DirectoryInUse(PathBuf),
    /// All member ids are used.
    #[error("member ids are exhausted")]
    MemberIdsExhausted,
    /// A directory cannot be changed.
    #[error("cannot {operation} {path}: {source}")]
    Directory {
        /// The failed operation.
        operation: &'static str,
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The member file cannot be written.
    #[error(transparent)]
    MemberFile(#[from] MemberFileError),
    /// The log cannot be written.
    #[error(transparent)]
    Log(#[from] warren_log::Error),
    /// The log's keyring cannot be written.
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    /// The certificates cannot be issued.
    #[error(transparent)]
    Keys(#[from] CaError),
}

impl BackupRestoreError {
    /// Whether the directory is in use: by a manager in it, or by a process.
    pub fn is_directory_in_use(&self) -> bool {
        matches!(self, Self::DirectoryInUse(_) | Self::Log(warren_log::Error::InUse { .. }))
    }
}

/// A machine without a manager, locked until it has one.
#[derive(Debug)]
pub struct BackupRestore {
    dir: PathBuf,
    data_dir: DataDir,
}

impl BackupRestore {
    /// Locks the data directory for this process, and checks that it has no manager.
    ///
    /// # Errors
    /// [`BackupRestoreError`].
    pub fn begin(data_dir: &Path) -> Result<Self, BackupRestoreError> {
        let dir = data_dir.join("manager");
        if dir.exists() {
            return Err(BackupRestoreError::DirectoryInUse(dir));
        }
        Ok(Self { data_dir: DataDir::open(data_dir)?, dir })
    }

    /// Creates a manager from `backup`: the only member of its cluster, in the next incarnation.
    ///
    /// # Errors
    /// [`BackupRestoreError`].
    pub fn finish(
        self,
        backup: Backup,
        engine: LogEngine,
        whom: ManagerContact,
        now: SystemTime,
    ) -> Result<MemberIdentity, BackupRestoreError> {
        let dir = &self.dir;
        let half = dir.with_extension("restoring");
        let failed = |operation, path: &Path| {
            let path = path.to_owned();
            move |source| BackupRestoreError::Directory { operation, path, source }
        };
        match fs::remove_dir_all(&half) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &half)(source));
            }
            _ => {}
        }
        files::ensure_private_dir(&half)?;
        let identity = write_manager(backup, &half, engine, whom, now)?;
        fs::rename(&half, dir).map_err(failed("rename", &half))?;
        let above = self.data_dir.path();
        File::open(above).and_then(|above| above.sync_all()).map_err(failed("sync", above))?;
        Ok(identity)
    }
}

fn write_manager(
    backup: Backup,
    dir: &Path,
    engine: LogEngine,
    ManagerContact { name, address }: ManagerContact,
    now: SystemTime,
) -> Result<MemberIdentity, BackupRestoreError> {
    let Backup { authority, secret_object_key: content_key, mut state, .. } = backup;
    authority.save(&dir.join(AUTHORITY_FILE))?;
    content_key.save(&dir.join(SECRET_OBJECT_KEY_FILE))?;
    let keys = ManagerKeys::open(dir, false, now)?;
    remove_tokens(&mut state);
    turn_autolock_off(&mut state);
    let member = state.first_member_id_at(timestamp(now));
    if member == MemberId::MAX {
        return Err(BackupRestoreError::MemberIdsExhausted);
    }
    let identity = MemberIdentity::sole_voter(member, keys.identity());
    let record = Member {
        member_id: member,
        manager_id: keys.id,
        name,
        address,
        desired_suffrage: Suffrage::Voter,
        replaces: None,
        removing: false,
        level: warren_core::FEATURE_LEVEL,
        version: state.applied().index,
        created_at: state.clock(),
        administrator_key: None,
    };
    let mut log = warren_log::open(dir, engine, identity.log_owner())?;
    let keyring = Keyring::open(dir, &Default::default())?;
    let files = SnapshotDir::open(dir.join(SNAPSHOT_DIR), None)?;
    begin_incarnation(&mut *log, &files, &keyring, &mut state, record, now)?;
    // Last, although the directory is renamed only after it.
    member_identity::save_identity(dir, &identity)?;
    Ok(identity)
}

/// Removes all join tokens: one revoked after the backup would be valid again.
fn remove_tokens(state: &mut State) {
    let tokens: Vec<TokenId> = state.tokens_after(None).map(|token| token.id).collect();
    for id in tokens {
        let AppliedIndex { term, index } = state.applied();
        state.apply(term, index + 1, &Command::RemoveToken { id, at: state.clock() });
    }
}

/// Forgets the unlock key: after the backup it may have been replaced, because others know it.
fn turn_autolock_off(state: &mut State) {
    let AppliedIndex { term, index } = state.applied();
    let at = state.clock();
    state.apply(term, index + 1, &Command::Key(KeyCommand::SetUnlockKey { key: None, replaces: None, at }));
}

/// Starts the next incarnation of the cluster in `state`, with `member` as the only manager and a snapshot as
/// the only content of the log.
///
/// The snapshot has an index and a term that the log never had: its file has a unique name and is durable
/// before the log points to it; the log changes in one write.
pub(super) fn begin_incarnation(
    log: &mut dyn LogStore,
    files: &SnapshotDir,
    keyring: &Keyring,
    state: &mut State,
    member: Member,
    now: SystemTime,
) -> Result<(), warren_log::Error> {
    let StoredLog { hard_state, entries, .. } = log.load()?;
    let AppliedIndex { term, index } = state.applied();
    let last = entries.last().map_or(index, |entry| entry.index.max(index));
    let applied = AppliedIndex { term: term.max(hard_state.term) + 1, index: last + 1 };
    let conf_state = ConfState::of_voters(vec![member.member_id]);
    state.advance_to(applied);
    state.begin_incarnation(member, timestamp(now));
    let AppliedIndex { term, index } = applied;
    save_key(keyring)?;
    let meta = SnapshotMeta { index, term, conf_state };
    files.write(&meta, |out| {
        let mut out = SealingWriter::new(keyring, &snapshot_aad(&meta), out)?;
        codec::write_snapshot(state, &mut out)?;
        out.finish().map(drop)
    })?;
    let hard_state = Some(HardState { term, vote: 0, commit: index });
    // Entries acknowledged by lost members are given up.
    let acknowledged = Some(Vec::new());
    log.append(&WriteBatch { snapshot: Some(meta), hard_state, acknowledged, ..WriteBatch::default() })
}

fn timestamp(now: SystemTime) -> Timestamp {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
