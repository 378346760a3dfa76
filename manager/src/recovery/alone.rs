//! A manager that goes on without the others, which are lost for good: `manager init --force-new-cluster`.
//!
//! All that its log holds becomes the state, also what was never known to be committed: it may have been acknowledged
//! by a majority that is gone. From then on it is the only manager, in the cluster's next life, so that workers heed
//! it and not what they were told before.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use warren_core::{Applied, State};
use warren_log::{DataDir, Engine, EntryKind, Loaded, Snapshots};
use warren_security::seal::{Keyring, KeyringError, PreparedKeyring};
use warren_types::{Member, Suffrage};

use super::restore::{Whom, begin_new_life};
use super::seat::{self, SNAPSHOTS, Seat, SeatError, Standing};
use crate::ca::{CaError, Keys};
use crate::raft::codec::{self, CodecError};
use crate::raft::disk::{self, SealedEntry};
use crate::raft::restore::{RestoreError, SealedSnapshot, check_log_is_there};

/// Why a manager cannot go on alone. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum AloneError {
    /// There is nothing to go on with.
    #[error("{0} holds no manager; make a cluster with `warren manager init`")]
    NoManager(PathBuf),
    /// It never had the cluster's state.
    #[error("this manager never received the cluster's state; use another manager, or a backup")]
    NoCluster,
    /// What it knows is from before it was removed.
    #[error(
        "this manager was removed from its cluster, so what it knows is old; use another manager, or a backup"
    )]
    Removed,
    /// The data directory cannot be used.
    #[error(transparent)]
    Log(#[from] warren_log::Error),
    /// The place in the group cannot be read.
    #[error(transparent)]
    Seat(#[from] SeatError),
    /// The keys cannot be used.
    #[error(transparent)]
    Keys(#[from] CaError),
    /// The keys of the log cannot be used.
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    /// An entry cannot be opened.
    #[error("{0}")]
    Sealed(#[from] SealedEntry),
    /// The snapshot cannot be used.
    #[error(transparent)]
    Snapshot(#[from] RestoreError),
    /// An entry cannot be read.
    #[error("entry {index} of the log: {source}")]
    Entry {
        /// Which.
        index: u64,
        /// Why not.
        source: CodecError,
    },
}

/// What became of a manager that shall go on alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alone {
    /// It was alone before, and nothing was changed.
    Already,
    /// It is now.
    Now {
        /// How many managers the cluster had besides.
        others: usize,
        /// Entries that were not known to be committed, and count from now on.
        uncommitted: u64,
    },
}

/// Lets the manager in `data_dir`, which must not run, go on alone. `whom` is what it is called where its log does not
/// say it. Harmless to repeat.
///
/// # Errors
/// [`AloneError`].
pub fn go_on(data_dir: &Path, engine: Engine, whom: Whom, now: SystemTime) -> Result<Alone, AloneError> {
    let lock = DataDir::open(data_dir)?;
    let dir = lock.path().join("manager");
    // Of one that was overtaken, the life that begins must be later than that which people give up.
    let (seat, later_than) = match seat::look(&dir)? {
        Standing::Seated(seat) => (seat, None),
        Standing::Overtaken(seat, life) => (seat, Some(life)),
        Standing::Removed(_) => return Err(AloneError::Removed),
        Standing::Nothing | Standing::InitPending | Standing::Begun(_) => {
            return Err(AloneError::NoManager(data_dir.to_owned()));
        }
    };
    let (keys, issued) = Keys::prepare(&dir, false, now)?;
    check_log_is_there(&dir, engine)?;
    let mut log = warren_log::open(&dir, engine, seat.owner())?;
    let loaded = log.load()?;
    if later_than.is_none() && is_alone(&loaded, &seat) {
        return Ok(Alone::Already);
    }
    let (commit, current) = (loaded.hard_state.commit, loaded.snapshot.clone());
    let (mut state, keyring) = replay(&dir, loaded)?;
    if state.cluster().is_none() {
        return Err(AloneError::NoCluster);
    }
    issued.save(&dir, now)?;
    let keyring = keyring.commit()?;
    let files = Snapshots::open(dir.join(SNAPSHOTS), current.as_ref())?;
    let known = state.member(seat.member).map(|known| Member::clone(known));
    let known = known.unwrap_or_else(|| new_record(&state, &seat, whom));
    let member = Member { id: keys.id, ..known };
    let others = state.members().filter(|other| other.member != seat.member).count();
    let uncommitted = state.applied().index.saturating_sub(commit);
    let later = later_than
        .map_or(Some(now), |life| UNIX_EPOCH.checked_add(Duration::from_secs(life.checked_add(1)?)));
    let now = later.map_or(now, |later| now.max(later));
    begin_new_life(&mut *log, &files, &keyring, &mut state, member, now)?;
    let (founders, managers) = (vec![seat.member], Vec::new());
    seat::take(&dir, &Seat { founders, managers, ..seat })?;
    Ok(Alone::Now { others, uncommitted })
}

/// The manager in `dir`, which does not run, is the only one of its cluster, and nothing is sealed with the content
/// key. What cannot be read may be.
pub(crate) fn has_no_sealed_content(dir: &Path, engine: Engine, seat: &Seat) -> bool {
    // Its cluster is still being made.
    if warren_log::log_in(dir).is_none() {
        return Keyring::file_in(dir).is_none() && seat::is_init_pending(dir);
    }
    let loaded = warren_log::open(dir, engine, seat.owner()).and_then(|log| log.load());
    loaded.is_ok_and(|loaded| {
        is_alone(&loaded, seat)
            && replay(dir, loaded).is_ok_and(|(state, _)| state.contents().next().is_none())
    })
}

/// Nobody else was ever in the group, since its founding or its latest snapshot.
fn is_alone(loaded: &Loaded, seat: &Seat) -> bool {
    let members = loaded.snapshot.as_ref().map_or(&loaded.conf_state, |snapshot| &snapshot.conf_state);
    let changed = loaded.entries.iter().any(|entry| entry.kind == EntryKind::Membership);
    members.voters == [seat.member]
        && members.learners.is_empty()
        && members.voters_outgoing.is_empty()
        && !changed
}

/// The state after everything that the log holds. Changes nothing.
fn replay(dir: &Path, loaded: Loaded) -> Result<(State, PreparedKeyring), AloneError> {
    let files = Snapshots::at(dir.join(SNAPSHOTS));
    let snapshot = loaded.snapshot.as_ref().map(|meta| SealedSnapshot::load(&files, meta)).transpose()?;
    let mut in_use = disk::keys(&loaded)?;
    in_use.extend(snapshot.as_ref().map(SealedSnapshot::key));
    let keyring = Keyring::prepare(dir, &in_use)?;
    let mut state = match snapshot {
        None => State::new(),
        Some(snapshot) => snapshot.open(keyring.opener())?.0,
    };
    let restored = disk::restored(loaded, keyring.opener())?;
    for entry in restored.entries {
        let (term, index) = (entry.term, entry.index);
        if index <= state.applied().index {
            continue;
        }
        match entry.kind {
            EntryKind::Noop | EntryKind::Membership => state.advance(Applied { term, index }),
            EntryKind::Command => {
                let command =
                    codec::decode(&entry.data).map_err(|source| AloneError::Entry { index, source })?;
                // What it is refused for, it would have been refused for anyway.
                let _ = state.apply(term, index, &command);
            }
        }
    }
    Ok((state, keyring))
}

/// Of a manager that never said who it is.
fn new_record(state: &State, seat: &Seat, Whom { name, address }: Whom) -> Member {
    Member {
        member: seat.member,
        id: warren_types::ManagerId(warren_types::Id(0)),
        name,
        address,
        wanted: Suffrage::Voter,
        replaces: None,
        removing: false,
        level: warren_core::LEVEL,
        version: state.applied().index,
        created_at: state.clock(),
    }
}

#[cfg(test)]
mod tests;
