//! From what is on disk to a driver that runs on it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rand::RngExt;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use warren_consensus::{Config, Machine};
use warren_core::State;
use warren_log::{Batch, ConfState, DataDir, Engine, SnapshotMeta, Snapshots};
use warren_security::seal::{KeyId, Keyring, KeyringError, SealError, key_of};

use super::codec::{self, CodecError};
use super::disk::{self, SealedEntry};
use super::driver::keeper::Keeper;
use super::driver::{self, DriverError};
use super::snapshot::{Snapshotter, place};
use crate::config::Tuning;
use crate::store::{Published, Store};

/// Raft id of the first manager.
const FIRST: u64 = 1;
/// Proposals that may wait for the driver.
const QUEUE: usize = 4096;

/// Why what is on disk cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The log or a snapshot's file cannot be used.
    #[error(transparent)]
    Log(#[from] warren_log::Error),
    /// The keys of what is stored cannot be used.
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    /// An entry of the log cannot be opened.
    #[error("{0}")]
    Entry(#[from] SealedEntry),
    /// The snapshot cannot be opened.
    #[error("{path}: {source}")]
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

/// Restores what is in `dir` and starts the driver on it, until `stop`.
///
/// # Errors
/// [`RestoreError`]; nothing runs then.
pub fn open_store(
    data_dir: DataDir,
    dir: &Path,
    engine: Engine,
    tuning: Tuning,
    stop: CancellationToken,
) -> Result<(Store, Ended), RestoreError> {
    let mut log = warren_log::open(dir, engine)?;
    let mut loaded = log.load()?;
    if loaded.conf_state.voters.is_empty() {
        let conf_state = ConfState::of_voters(vec![FIRST]);
        log.append(&Batch { conf_state: Some(conf_state), ..Batch::default() })?;
        loaded = log.load()?;
    }
    let files = Snapshots::open(dir.join("snapshots"), loaded.snapshot.as_ref())?;
    if let Some(recovered) = &loaded.recovered {
        tracing::warn!("{recovered}");
    }
    let snapshot = loaded.snapshot.as_ref().map(|meta| SealedSnapshot::load(&files, meta)).transpose()?;
    let mut keys = disk::keys(&loaded)?;
    keys.extend(snapshot.as_ref().map(|snapshot| snapshot.key));
    let keyring = Arc::new(Keyring::open(dir, &keys)?);
    let (state, bytes) = match snapshot {
        None => (State::new(), 0),
        Some(snapshot) => snapshot.open(&keyring)?,
    };
    let config = Config { keep_entries: tuning.keep_entries, ..Config::new(FIRST, rand::rng().random()) };
    let place = dir.to_owned();
    let log = Keeper::new(log, &loaded, dir.to_owned(), Box::new(move || warren_log::open(&place, engine)));
    let machine = Machine::new(config, disk::restored(loaded, &keyring)?)?;
    let (store, publisher, proposals) = Store::new(Published::first(state.clone()), QUEUE, tuning.history);
    let snapshotter = Snapshotter::new(files, keyring.clone(), tuning.snapshots, bytes);
    let parts = driver::Parts { machine, log, keyring, snapshotter, state, publisher, proposals, data_dir };
    let ended = driver::spawn(parts, stop).map_err(RestoreError::Thread)?;
    Ok((store, ended))
}

/// A snapshot as it is on the disk: whole, and not yet opened.
struct SealedSnapshot {
    path: PathBuf,
    place: Vec<u8>,
    key: KeyId,
    bytes: Vec<u8>,
}

impl SealedSnapshot {
    fn load(files: &Snapshots, meta: &SnapshotMeta) -> Result<Self, RestoreError> {
        let (path, place, bytes) = (files.path(meta), place(meta), files.load(meta)?);
        match key_of(&bytes) {
            Ok(key) => Ok(Self { path, place, key, bytes }),
            Err(source) => Err(RestoreError::Sealed { path, source }),
        }
    }

    /// The state in it, and how many bytes that took.
    fn open(self, keyring: &Keyring) -> Result<(State, u64), RestoreError> {
        let Self { path, place, bytes, .. } = self;
        let plain = match keyring.unseal_stream(&place, bytes) {
            Ok(plain) => plain,
            Err(source) => return Err(RestoreError::Sealed { path, source }),
        };
        let state = codec::read_snapshot(&plain).map_err(|source| RestoreError::Snapshot { path, source })?;
        Ok((state, plain.len() as u64))
    }
}
