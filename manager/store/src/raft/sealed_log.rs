//! A log with sealed entries: the key is durable before the entries.

use std::sync::Arc;

use warren_log::{Error, LogStore, SnapshotMeta, StoredLog, WriteBatch, WriteStats};
use warren_security::FileError;
use warren_security::seal::Keyring;

/// Opens the log again.
pub type LogOpener = Box<dyn FnMut() -> Result<Box<dyn LogStore>, Error> + Send>;

/// Makes the current key of `keyring` durable.
///
/// # Errors
/// [`Error::Full`] if there is no space for it.
pub fn save_key(keyring: &Keyring) -> Result<(), Error> {
    keyring.save().map_err(|error| match error {
        FileError::Write { path, source } => Error::io("write", path)(source),
        error => Error::io("write", "the keyring")(std::io::Error::other(error)),
    })
}

/// See the module documentation.
pub struct SealedLog {
    inner: Box<dyn LogStore>,
    keyring: Arc<Keyring>,
}

impl SealedLog {
    /// Seals appended entries with `keyring`.
    pub fn new(inner: Box<dyn LogStore>, keyring: Arc<Keyring>) -> Self {
        Self { inner, keyring }
    }

    /// The same for the stores that `open` returns.
    pub fn opener(mut open: LogOpener, keyring: Arc<Keyring>) -> LogOpener {
        Box::new(move || Ok(Box::new(Self::new(open()?, keyring.clone()))))
    }
}

impl LogStore for SealedLog {
    fn load(&self) -> Result<StoredLog, Error> {
        self.inner.load()
    }

    fn append(&mut self, batch: &WriteBatch) -> Result<(), Error> {
        save_key(&self.keyring)?;
        self.inner.append(batch)
    }

    fn set_snapshot(&mut self, snapshot: &SnapshotMeta) -> Result<(), Error> {
        self.inner.set_snapshot(snapshot)
    }

    fn compact(&mut self, up_to: u64) -> Result<(), Error> {
        self.inner.compact(up_to)
    }

    fn stats(&self) -> WriteStats {
        self.inner.stats()
    }
}
