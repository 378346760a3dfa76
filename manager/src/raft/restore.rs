//! From what is on disk to a driver that runs on it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rand::RngExt;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use warren_consensus::{Config, Machine};
use warren_core::State;
use warren_log::{Batch, ConfState, DataDir, Engine, Owner, SnapshotMeta, Snapshots};
use warren_security::seal::{KeyId, Keyring, KeyringError, SealError, key_of};
use warren_types::MemberId;

use super::codec::{self, CodecError};
use super::disk::{self, SealedEntry};
use super::driver::keeper::{Keeper, Opener};
use super::driver::{self, DriverError};
use super::sealed_log::SealedLog;
use super::snapshot::{SnapshotDoor, SnapshotFiles, Snapshotter, place};
use super::wire::{Leader, Nowhere, Wire};
use crate::config::Tuning;
use crate::recovery::seat::{SNAPSHOTS, WAY_BACK};
use crate::store::{Published, Store};

/// Proposals that may wait for the driver.
const QUEUE: usize = 4096;

/// Why what is on disk cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The log or a snapshot's file cannot be used.
    #[error(transparent)]
    Log(#[from] warren_log::Error),
    /// The log is gone, and what is made after it is there.
    #[error(
        "{path} is missing, though {beside} is there, and without it this manager does not know what it voted for and \
         acknowledged: put it back with its receipt; {WAY_BACK}"
    )]
    LogMissing {
        /// Where it should be.
        path: PathBuf,
        /// What is there.
        beside: PathBuf,
    },
    /// The keys of what is stored cannot be used.
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    /// An entry of the log cannot be opened.
    #[error("{0}")]
    Entry(#[from] SealedEntry),
    /// The snapshot cannot be opened.
    #[error("{path}: {source}; {WAY_BACK}")]
    Sealed {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: SealError,
    },
    /// The snapshot cannot be read.
    #[error("{path}: {source}")]
    Snapshot {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: CodecError,
    },
    /// What was restored contradicts itself.
    #[error(transparent)]
    Raft(#[from] warren_consensus::Error),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
}

/// Says how the driver ended.
pub type Ended = oneshot::Receiver<Result<(), DriverError>>;

/// A manager's place among the others.
pub struct Group {
    /// Its own id.
    pub own: MemberId,
    /// With whom the group began, whether it is one of them or not; only read when there is no log yet.
    pub founders: Vec<MemberId>,
    /// The driver's way to the others.
    pub wire: Box<dyn Wire>,
    /// The store's way to the leader.
    pub leader: Arc<dyn Leader>,
    /// It votes even if its data is older than what it acknowledged.
    pub accept_data_loss: bool,
}

impl Group {
    /// The founder of a group, which knows no way to others.
    pub fn of_one() -> Self {
        let (wire, leader) = (Box::new(Nowhere), Arc::new(Nowhere));
        Self { own: 1, founders: vec![1], wire, leader, accept_data_loss: false }
    }
}

/// A store with its driver.
pub struct Opened {
    /// The store.
    pub store: Store,
    /// Resolves when the driver ended.
    pub ended: Ended,
    /// The snapshots, for and from other managers.
    pub snapshots: SnapshotDoor,
}

/// Refuses a directory that has lost its log: a member that forgot what it acknowledged could help to elect a leader
/// that lacks it.
///
/// # Errors
/// [`RestoreError::LogMissing`].
pub(crate) fn check_log_is_there(dir: &Path, engine: Engine) -> Result<(), RestoreError> {
    let snapshots = Some(dir.join(SNAPSHOTS)).filter(|path| path.exists());
    match (warren_log::log_in(dir), Keyring::file_in(dir).or(snapshots)) {
        (None, Some(beside)) => Err(RestoreError::LogMissing { path: engine.path_in(dir), beside }),
        _ => Ok(()),
    }
}

/// Restores what is in `dir`, whose log is of `owner`, and starts the driver on it, until `stop`. A leader hands over
/// first when it is told to stop, so whatever carries its messages must work until it ended.
///
/// # Errors
/// [`RestoreError`]; nothing runs then.
pub fn open_store(
    data_dir: DataDir,
    dir: &Path,
    (engine, owner): (Engine, Owner),
    tuning: Tuning,
    group: Group,
    stop: CancellationToken,
) -> Result<Opened, RestoreError> {
    check_log_is_there(dir, engine)?;
    let place = dir.to_owned();
    open_on(Box::new(move || warren_log::open(&place, engine, owner)), data_dir, dir, tuning, group, stop)
}

/// As [`open_store`], on the log that `open` opens.
pub(crate) fn open_on(
    mut open: Opener,
    data_dir: DataDir,
    dir: &Path,
    tuning: Tuning,
    group: Group,
    stop: CancellationToken,
) -> Result<Opened, RestoreError> {
    let Group { own, founders, wire, leader, accept_data_loss } = group;
    let mut log = open()?;
    let mut loaded = log.load()?;
    if let Some(recovered) = &loaded.recovered {
        tracing::warn!("{recovered}");
    }
    // Nothing is written before all that is there has been opened with this manager's keys.
    let files = Snapshots::at(dir.join(SNAPSHOTS));
    let snapshot = loaded.snapshot.as_ref().map(|meta| SealedSnapshot::load(&files, meta)).transpose()?;
    let mut keys = disk::keys(&loaded)?;
    keys.extend(snapshot.as_ref().map(SealedSnapshot::key));
    let keyring = Keyring::prepare(dir, &keys)?;
    let (state, bytes) = match snapshot {
        None => (State::new(), 0),
        Some(snapshot) => snapshot.open(keyring.opener())?,
    };
    let mut restored = disk::restored(loaded.clone(), keyring.opener())?;
    if loaded.conf_state.voters.is_empty() {
        let conf_state = ConfState::of_voters(founders);
        log.append(&Batch { conf_state: Some(conf_state.clone()), ..Batch::default() })?;
        (loaded, restored.conf_state) = (log.load()?, conf_state);
    }
    let keep_entries = tuning.keep_entries;
    let config = Config { keep_entries, accept_data_loss, ..Config::new(own, rand::rng().random()) };
    let machine = Machine::new(config, restored)?;
    let keyring = Arc::new(keyring.commit()?);
    let files = Snapshots::open(dir.join(SNAPSHOTS), loaded.snapshot.as_ref())?;
    let open = SealedLog::opener(open, keyring.clone());
    let log = Box::new(SealedLog::new(log, keyring.clone()));
    let log = Keeper::new(log, &loaded, dir.to_owned(), open);
    let first =
        Published { members: Arc::new(machine.0.members().clone()), ..Published::first(state.clone()) };
    let (store, publisher, inbox) = Store::of_group(first, own, leader, QUEUE, tuning.history);
    let files = SnapshotFiles::new(files, keyring.clone());
    let snapshots = SnapshotDoor::new(files.clone(), store.clone());
    let snapshotter = Snapshotter::new(files, tuning.snapshots, bytes);
    let parts =
        driver::Parts { own, machine, log, keyring, snapshotter, state, publisher, inbox, wire, data_dir };
    let ended = driver::spawn(parts, stop).map_err(RestoreError::Thread)?;
    Ok(Opened { store, ended, snapshots })
}

/// A snapshot as it is on the disk: whole, and not yet opened.
pub(crate) struct SealedSnapshot {
    path: PathBuf,
    place: Vec<u8>,
    key: KeyId,
    bytes: Vec<u8>,
}

impl SealedSnapshot {
    pub fn load(files: &Snapshots, meta: &SnapshotMeta) -> Result<Self, RestoreError> {
        // A manager that a snapshot was sent to is a learner in it, so two of one place can differ in their members,
        // and the file may be a later one than the log knows. Who the members are the log says.
        let (found, bytes) = files.load_at(meta.index, meta.term)?;
        let (path, place) = (files.path(meta), place(&found));
        match key_of(&bytes) {
            Ok(key) => Ok(Self { path, place, key, bytes }),
            Err(source) => Err(RestoreError::Sealed { path, source }),
        }
    }

    /// What sealed it.
    pub fn key(&self) -> KeyId {
        self.key
    }

    /// The state in it, and how many bytes that took.
    pub fn open(self, keyring: &Keyring) -> Result<(State, u64), RestoreError> {
        let Self { path, place, bytes, .. } = self;
        let plain = match keyring.unseal_stream(&place, bytes) {
            Ok(plain) => plain,
            Err(source) => return Err(RestoreError::Sealed { path, source }),
        };
        let state = codec::read_snapshot(&plain).map_err(|source| RestoreError::Snapshot { path, source })?;
        Ok((state, plain.len() as u64))
    }
}
