//! The engine interface: values by index and by name, changed several at once, durably. The raft log on top
//! of it is in `disk_log.rs`.

use std::{ops::RangeInclusive, path::Path};

use crate::{Recovery, Result};

/// The change of one durable write: removals first, then insertions.
#[derive(Debug, Default)]
pub struct TableChange {
    /// Indexes to remove.
    pub remove: Option<RangeInclusive<u64>>,
    /// Values by index.
    pub entries: Vec<(u64, Vec<u8>)>,
    /// Values by name.
    pub records: Vec<(&'static str, Vec<u8>)>,
}

/// Values on disk. One value of this type is the only writer of its file.
///
/// The caller catches a panic of any method and treats it as damage.
pub trait RecordTable: Sized + Send {
    /// Whether the engine can silently lose finished writes, so that the watermark must be durable before a
    /// write is acknowledged.
    const ACK_WATERMARK_IS_DURABLE: bool;

    /// Opens the file or directory at `path`; creates it if it does not exist, atomically even in a crash.
    /// The second value reports a repair.
    fn open(path: &Path) -> Result<(Self, Option<Recovery>)>;

    /// The value under a name.
    fn get(&self, name: &'static str) -> Result<Option<Vec<u8>>>;

    /// Passes the values of a range to the callback in ascending order; stops at the first error.
    fn scan(
        &self,
        indexes: RangeInclusive<u64>,
        visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()>;

    /// Applies all of `change`, or nothing. When this returns `Ok`, it is on stable storage. `operation` is
    /// for errors.
    fn commit(&mut self, operation: &'static str, change: &TableChange) -> Result<()>;
}
