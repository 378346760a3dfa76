//! A manager that goes on as the cluster of a backup, alone, on a machine that has none.
//!
//! Everything is written into a directory of its own, which gets its name when all of it is there. So a machine has a
//! manager or it has none, whenever the process was killed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use warren_core::{Applied, Command, State};
use warren_log::{Batch, ConfState, DataDir, Engine, HardState, Loaded, LogStore, SnapshotMeta, Snapshots};
use warren_security::seal::{Keyring, KeyringError, SealingWriter};
use warren_security::{FileError, files};
use warren_types::{ManagerAddress, Member, MemberId, NodeName, Suffrage, Timestamp, TokenId};

use super::backup::Backup;
use super::seat::{self, AUTHORITY_FILE, CONTENT_FILE, SNAPSHOTS, Seat, SeatError};
use crate::ca::{CaError, Keys};
use crate::raft::codec;
use crate::raft::sealed_log::save_key;
use crate::raft::snapshot::place;

/// What the manager is called, and where it is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Whom {
    /// For people.
    pub name: NodeName,
    /// For the other managers, workers and people.
    pub address: ManagerAddress,
}

/// Why a manager was not restored. The data directory is as it was, or holds a part that the next try removes.
#[derive(Debug, thiserror::Error)]
pub enum RestoringError {
    /// There is a manager.
    #[error("{0} holds a manager already; restore into an empty data directory")]
    Taken(PathBuf),
    /// The ids of members are used up.
    #[error("the backup's cluster has given out every id that a manager can have")]
    NoId,
    /// A directory cannot be changed.
    #[error("cannot {operation} {path}: {source}")]
    Directory {
        /// What was to be done with it.
        operation: &'static str,
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The place in the group cannot be written.
    #[error(transparent)]
    Seat(#[from] SeatError),
    /// The log cannot be written.
    #[error(transparent)]
    Log(#[from] warren_log::Error),
    /// The keys of the log cannot be written.
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    /// The certificates cannot be issued.
    #[error(transparent)]
    Keys(#[from] CaError),
}

impl RestoringError {
    /// Somebody has the directory: a manager that is in it, or a process that uses it.
    pub fn is_taken(&self) -> bool {
        matches!(self, Self::Taken(_) | Self::Log(warren_log::Error::InUse { .. }))
    }
}

/// A machine that has no manager, held until it has one.
#[derive(Debug)]
pub struct Restoring {
    dir: PathBuf,
    data_dir: DataDir,
}

impl Restoring {
    /// Takes the data directory for this process, and checks that no manager is in it.
    ///
    /// # Errors
    /// [`RestoringError`].
    pub fn begin(data_dir: &Path) -> Result<Self, RestoringError> {
        let dir = data_dir.join("manager");
        if dir.exists() {
            return Err(RestoringError::Taken(dir));
        }
        Ok(Self { data_dir: DataDir::open(data_dir)?, dir })
    }

    /// Makes a manager of `backup`: the only one of its cluster, in the cluster's next life.
    ///
    /// # Errors
    /// [`RestoringError`].
    pub fn finish(
        self,
        backup: Backup,
        engine: Engine,
        whom: Whom,
        now: SystemTime,
    ) -> Result<Seat, RestoringError> {
        let dir = &self.dir;
        let half = dir.with_extension("restoring");
        let failed = |operation, path: &Path| {
            let path = path.to_owned();
            move |source| RestoringError::Directory { operation, path, source }
        };
        match fs::remove_dir_all(&half) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &half)(source));
            }
            _ => {}
        }
        files::ensure_private_dir(&half)?;
        let seat = fill(backup, &half, engine, whom, now)?;
        fs::rename(&half, dir).map_err(failed("rename", &half))?;
        let above = self.data_dir.path();
        File::open(above).and_then(|above| above.sync_all()).map_err(failed("sync", above))?;
        Ok(seat)
    }
}

fn fill(
    backup: Backup,
    dir: &Path,
    engine: Engine,
    Whom { name, address }: Whom,
    now: SystemTime,
) -> Result<Seat, RestoringError> {
    let Backup { authority, content_key, mut state, .. } = backup;
    authority.save(&dir.join(AUTHORITY_FILE))?;
    content_key.save(&dir.join(CONTENT_FILE))?;
    let keys = Keys::open(dir, false, now)?;
    drop_tokens(&mut state);
    let member = state.founder_at(timestamp(now));
    if member == MemberId::MAX {
        return Err(RestoringError::NoId);
    }
    let seat = Seat::alone(member, keys.identity());
    let record = Member {
        member,
        id: keys.id,
        name,
        address,
        wanted: Suffrage::Voter,
        replaces: None,
        removing: false,
        level: warren_core::LEVEL,
        version: state.applied().index,
        created_at: state.clock(),
    };
    let mut log = warren_log::open(dir, engine, seat.owner())?;
    let keyring = Keyring::open(dir, &Default::default())?;
    let files = Snapshots::open(dir.join(SNAPSHOTS), None)?;
    begin_new_life(&mut *log, &files, &keyring, &mut state, record, now)?;
    // Last, though the directory's name comes after it anyway.
    seat::take(dir, &seat)?;
    Ok(seat)
}

/// Takes away what lets machines in: a token that was revoked after the backup would let them in again.
fn drop_tokens(state: &mut State) {
    let tokens: Vec<TokenId> = state.tokens_after(None).map(|token| token.id).collect();
    for id in tokens {
        let Applied { term, index } = state.applied();
        state.apply(term, index + 1, &Command::RemoveToken { id, at: state.clock() });
    }
}

/// Begins the next life of the cluster in `state`, with `member` as the only manager, as all that the log holds.
///
/// It stands at a place that the log never had, in a term that it never had: the snapshot's file has a name of its own,
/// and is durable before the log points to it; the log changes in one write.
pub(super) fn begin_new_life(
    log: &mut dyn LogStore,
    files: &Snapshots,
    keyring: &Keyring,
    state: &mut State,
    member: Member,
    now: SystemTime,
) -> Result<(), warren_log::Error> {
    let Loaded { hard_state, entries, .. } = log.load()?;
    let Applied { term, index } = state.applied();
    let last = entries.last().map_or(index, |entry| entry.index.max(index));
    let applied = Applied { term: term.max(hard_state.term) + 1, index: last + 1 };
    let conf_state = ConfState::of_voters(vec![member.member]);
    state.advance(applied);
    state.begin_new_life(member, timestamp(now));
    let Applied { term, index } = applied;
    save_key(keyring)?;
    let meta = SnapshotMeta { index, term, conf_state };
    files.write(&meta, |out| {
        let mut out = SealingWriter::new(keyring, &place(&meta), out)?;
        codec::write_snapshot(state, &mut out)?;
        out.finish().map(drop)
    })?;
    let hard_state = Some(HardState { term, vote: 0, commit: index });
    // What the lost ones acknowledged is given up.
    let acknowledged = Some(Vec::new());
    log.append(&Batch { snapshot: Some(meta), hard_state, acknowledged, ..Batch::default() })
}

fn timestamp(now: SystemTime) -> Timestamp {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
