//! Restores the stored data and starts the driver on it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rand::RngExt;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use warren_consensus::{RaftConfig, RaftMachine};
use warren_core::State;
use warren_log::{ConfState, DataDir, LogEngine, LogOwner, SnapshotDir, SnapshotMeta, WriteBatch};
use warren_security::seal::{KeyFiles, KeyId, Keyring, KeyringError, SealError, key_id_of};
use warren_types::MemberId;

use super::driver::log_writer::LogWriter;
use super::driver::{self, DriverError};
use super::sealed_log::{LogOpener, SealedLog};
use super::sealing::{self, OpenEntryError};
use super::snapshot::{
    SNAPSHOT_DIR, SnapshotExchange, SnapshotFiles, SnapshotThresholds, Snapshotter, snapshot_aad,
};
use super::transport::RaftTransport;
use crate::codec::{self, CodecError};
use crate::store::{HISTORY_CHANGES, LeaderClient, NoTransport, PublishedState, Store};

/// Maximum number of queued proposals.
const MAX_QUEUED_PROPOSALS: usize = 4096;
/// How to recover a manager that lost unique files.
pub const RECOVERY_HINT: &str = "restore it from a copy of this directory; if other managers are \
     running, remove this one there (`warren manager rm`), move the directory away and join again (`warren manager \
     join`); if it was the only one, move the directory away and restore a backup (`warren manager restore`)";

/// Limits of the log and the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaTuning {
    /// When a snapshot is due.
    pub snapshot_thresholds: SnapshotThresholds,
    /// Entries before a snapshot that stay in the log.
    pub kept_entries: u64,
    /// How many changes a watcher may lag before it must list again.
    pub history_changes: usize,
}

impl Default for ReplicaTuning {
    /// A thousand entries suffice for a member that was briefly down.
    fn default() -> Self {
        Self {
            snapshot_thresholds: SnapshotThresholds::default(),
            kept_entries: 1_000,
            history_changes: HISTORY_CHANGES,
        }
    }
}

/// Why the stored data is not usable.
#[derive(Debug, thiserror::Error)]
pub enum OpenStoreError {
    /// The log or a snapshot file is not usable.
    #[error(transparent)]
    Log(#[from] warren_log::Error),
    /// The log is missing, but files created after it exist.
    #[error(
        "{path} is missing, though {beside} exists, and without it the votes and acknowledgements of this \
         manager are unknown: restore it together with its .receipt file; {RECOVERY_HINT}"
    )]
    LogMissing {
        /// The expected path.
        path: PathBuf,
        /// The existing file.
        beside: PathBuf,
    },
    /// The keyring is invalid.
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    /// An entry of the log cannot be decrypted.
    #[error("{0}")]
    Entry(#[from] OpenEntryError),
    /// The snapshot cannot be decrypted.
    #[error("{path}: {source}; {RECOVERY_HINT}")]
    OpenSnapshot {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: SealError,
    },
    /// The snapshot cannot be decoded.
    #[error("{path}: {source}")]
    ReadSnapshot {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: CodecError,
    },
    /// The restored data is inconsistent.
    #[error(transparent)]
    Raft(#[from] warren_consensus::Error),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
}

/// Receives the result of the driver.
pub type DriverExit = oneshot::Receiver<Result<(), DriverError>>;

/// The raft configuration of this manager.
pub struct GroupConfig {
    /// Its own member id.
    pub own_id: MemberId,
    /// The voters of the initial configuration, with or without this member; only read without a log.
    pub founders: Vec<MemberId>,
    /// Sends messages of the driver.
    pub transport: Box<dyn RaftTransport>,
    /// Forwards writes of the store.
    pub leader_client: Arc<dyn LeaderClient>,
    /// Vote although the log lacks acknowledged entries.
    pub is_data_loss_accepted: bool,
}

impl GroupConfig {
    /// A single-member group without transport.
    pub fn single() -> Self {
        let (wire, leader) = (Box::new(NoTransport), Arc::new(NoTransport));
        Self {
            own_id: 1,
            founders: vec![1],
            transport: wire,
            leader_client: leader,
            is_data_loss_accepted: false,
        }
    }
}

/// A store with its driver.
pub struct OpenedStore {
    /// The store.
    pub store: Store,
    /// Resolves when the driver ended.
    pub driver_exit: DriverExit,
    /// Snapshots for and from other managers.
    pub snapshot_exchange: SnapshotExchange,
    /// What seals the log and the snapshots.
    pub keyring: Arc<Keyring>,
}

/// Rejects a directory whose log is missing: a member without its acknowledged entries could help to elect a
/// leader that lacks them.
///
/// # Errors
/// [`OpenStoreError::LogMissing`].
pub fn check_log_exists(dir: &Path, engine: LogEngine) -> Result<(), OpenStoreError> {
    let snapshots = Some(dir.join(SNAPSHOT_DIR)).filter(|path| path.exists());
    match (warren_log::find_log(dir), Keyring::file_in(dir).or(snapshots)) {
        (None, Some(beside)) => Err(OpenStoreError::LogMissing { path: engine.path_in(dir), beside }),
        _ => Ok(()),
    }
}

/// Restores the data in the directory of `key_files`, whose log belongs to `owner`, and starts the driver until `stop`.
/// A stopping leader transfers its leadership first, so its transport must work until the driver has ended.
///
/// # Errors
/// [`OpenStoreError`]; nothing runs then.
pub fn open_store(
    data_dir: DataDir,
    key_files: &Arc<KeyFiles>,
    (engine, owner): (LogEngine, LogOwner),
    tuning: ReplicaTuning,
    group: GroupConfig,
    stop: CancellationToken,
) -> Result<OpenedStore, OpenStoreError> {
    check_log_exists(key_files.dir(), engine)?;
    let place = key_files.dir().to_owned();
    open_with_log(
        Box::new(move || warren_log::open(&place, engine, owner)),
        data_dir,
        key_files,
        tuning,
        group,
        stop,
    )
}

/// As [`open_store`], with the log that `open` opens.
pub(crate) fn open_with_log(
    mut open: LogOpener,
    data_dir: DataDir,
    key_files: &Arc<KeyFiles>,
    tuning: ReplicaTuning,
    group: GroupConfig,
    stop: CancellationToken,
) -> Result<OpenedStore, OpenStoreError> {
    let GroupConfig {
        own_id: own,
        founders,
        transport: wire,
        leader_client: leader,
        is_data_loss_accepted: accept_data_loss,
    } = group;
    let dir = key_files.dir();
    let mut log = open()?;
    let mut loaded = log.load()?;
    if let Some(recovered) = &loaded.recovered {
        tracing::warn!("{recovered}");
    }
    // Nothing is written before all stored data was opened with this manager's keys.
    let files = SnapshotDir::at(dir.join(SNAPSHOT_DIR));
    let snapshot = loaded.snapshot.as_ref().map(|meta| SealedSnapshot::load(&files, meta)).transpose()?;
    let mut keys = sealing::required_keys(&loaded)?;
    keys.extend(snapshot.as_ref().map(SealedSnapshot::key_id));
    let keyring = Keyring::prepare(key_files, &keys)?;
    let (state, bytes) = match snapshot {
        None => (State::new(), 0),
        Some(snapshot) => snapshot.open(keyring.keyring())?,
    };
    let mut restored = sealing::open_loaded(loaded.clone(), keyring.keyring())?;
    if loaded.conf_state.voters.is_empty() {
        let conf_state = ConfState::of_voters(founders);
        log.append(&WriteBatch { conf_state: Some(conf_state.clone()), ..WriteBatch::default() })?;
        (loaded, restored.conf_state) = (log.load()?, conf_state);
    }
    let keep_entries = tuning.kept_entries;
    let config = RaftConfig { keep_entries, accept_data_loss, ..RaftConfig::new(own, rand::rng().random()) };
    let machine = RaftMachine::new(config, restored)?;
    let keyring = Arc::new(keyring.commit()?);
    let files = SnapshotDir::open(dir.join(SNAPSHOT_DIR), loaded.snapshot.as_ref())?;
    let open = SealedLog::opener(open, keyring.clone());
    let log = Box::new(SealedLog::new(log, keyring.clone()));
    let log = LogWriter::new(log, &loaded, dir.to_owned(), open);
    let first = PublishedState {
        members: Arc::new(machine.0.members().clone()),
        ..PublishedState::initial(state.clone())
    };
    let (store, publisher, inbox) =
        Store::of_group(first, own, leader, MAX_QUEUED_PROPOSALS, tuning.history_changes);
    let files = SnapshotFiles::new(files, keyring.clone());
    let snapshots = SnapshotExchange::new(files.clone(), store.clone());
    let snapshotter = Snapshotter::new(files, tuning.snapshot_thresholds, bytes);
    let parts = driver::DriverParts {
        own_id: own,
        machine,
        log_writer: log,
        keyring: keyring.clone(),
        snapshotter,
        state,
        publisher,
        inbox,
        transport: wire,
        data_dir,
    };
    let ended = driver::spawn(parts, stop).map_err(OpenStoreError::Thread)?;
    Ok(OpenedStore { store, driver_exit: ended, snapshot_exchange: snapshots, keyring })
}

/// A snapshot as stored: complete and still encrypted.
pub struct SealedSnapshot {
    path: PathBuf,
    aad: Vec<u8>,
    key: KeyId,
    bytes: Vec<u8>,
}

impl SealedSnapshot {
    /// Reads the snapshot `meta` from `files`.
    ///
    /// # Errors
    /// [`OpenStoreError`]: it is missing, damaged or not of this position.
    pub fn load(files: &SnapshotDir, meta: &SnapshotMeta) -> Result<Self, OpenStoreError> {
        // A snapshot received from the leader has this manager as a learner, so two snapshots at one index
        // can differ in their members, and the file may be newer than the log's record. The log decides the
        // membership.
        let (found, bytes) = files.load_at(meta.index, meta.term)?;
        let (path, place) = (files.path(meta), snapshot_aad(&found));
        match key_id_of(&bytes) {
            Ok(key) => Ok(Self { path, aad: place, key, bytes }),
            Err(source) => Err(OpenStoreError::OpenSnapshot { path, source }),
        }
    }

    /// The key that sealed it.
    pub fn key_id(&self) -> KeyId {
        self.key
    }

    /// The decrypted state, and its size in bytes.
    ///
    /// # Errors
    /// [`OpenStoreError`]: `keyring` does not open it, or it cannot be parsed.
    pub fn open(self, keyring: &Keyring) -> Result<(State, u64), OpenStoreError> {
        let Self { path, aad: place, bytes, .. } = self;
        let plain = match keyring.unseal_stream(&place, bytes) {
            Ok(plain) => plain,
            Err(source) => return Err(OpenStoreError::OpenSnapshot { path, source }),
        };
        let state =
            codec::read_snapshot(&plain).map_err(|source| OpenStoreError::ReadSnapshot { path, source })?;
        Ok((state, plain.len() as u64))
    }
}
