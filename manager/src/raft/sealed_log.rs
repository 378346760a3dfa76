//! A log whose entries are sealed: the key that sealed them is durable before they are.

use std::sync::Arc;

use warren_log::{Batch, Error, Loaded, LogStore, SnapshotMeta, Stats};
use warren_security::FileError;
use warren_security::seal::Keyring;

use super::driver::keeper::Opener;

/// Makes the current key of `keyring` durable.
///
/// # Errors
/// [`Error::Full`] while there is no room for it.
pub fn save_key(keyring: &Keyring) -> Result<(), Error> {
    keyring.save().map_err(|error| match error {
        FileError::Write { path, source } => Error::io("write", path)(source),
        error => Error::io("write", "the keyring")(std::io::Error::other(error)),
    })
}

/// See the module's text.
pub struct SealedLog {
    inner: Box<dyn LogStore>,
    keyring: Arc<Keyring>,
}

impl SealedLog {
    /// What is appended to `inner` is sealed by `keyring`.
    pub fn new(inner: Box<dyn LogStore>, keyring: Arc<Keyring>) -> Self {
        Self { inner, keyring }
    }

    /// The same of whatever `open` opens.
    pub fn opener(mut open: Opener, keyring: Arc<Keyring>) -> Opener {
        Box::new(move || Ok(Box::new(Self::new(open()?, keyring.clone()))))
    }
}

impl LogStore for SealedLog {
    fn load(&self) -> Result<Loaded, Error> {
        self.inner.load()
    }

    fn append(&mut self, batch: &Batch) -> Result<(), Error> {
        save_key(&self.keyring)?;
        self.inner.append(batch)
    }

    fn set_snapshot(&mut self, snapshot: &SnapshotMeta) -> Result<(), Error> {
        self.inner.set_snapshot(snapshot)
    }

    fn compact(&mut self, up_to: u64) -> Result<(), Error> {
        self.inner.compact(up_to)
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }
}
