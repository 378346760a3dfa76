//! What an engine has to do: keep values under indexes and under names, and change several at once,
//! durably. Everything that makes a raft log of it is in `disk_log.rs`, once.

use std::{ops::RangeInclusive, path::Path};

use crate::{Recovered, Result};

/// What one durable write changes: first it removes, then it puts.
#[derive(Debug, Default)]
pub struct Change {
    /// The indexes whose values go.
    pub remove: Option<RangeInclusive<u64>>,
    /// Values under indexes.
    pub entries: Vec<(u64, Vec<u8>)>,
    /// Values under names.
    pub records: Vec<(&'static str, Vec<u8>)>,
}

/// Values on a disk. One value of this type is the only writer of its file.
///
/// A panic of any method is caught by the caller and taken for damage.
pub trait Table: Sized + Send {
    /// Whether the engine can lose finished writes without telling, so that the receipt has to be
    /// durable before a write is acknowledged.
    const RECEIPT_IS_DURABLE: bool;

    /// Opens the file or directory at `path`; creates it, if it is not there, in a way that a crash
    /// leaves either nothing or all of it. The second value says whether something had to be
    /// repaired.
    fn open(path: &Path) -> Result<(Self, Option<Recovered>)>;

    /// The value under a name.
    fn get(&self, name: &'static str) -> Result<Option<Vec<u8>>>;

    /// Shows the values of a range in rising order; the first error ends it.
    fn scan(
        &self,
        indexes: RangeInclusive<u64>,
        visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()>;

    /// Does all of `change`, or nothing. When this returns `Ok`, it is on stable storage.
    /// `operation` is for errors.
    fn commit(&mut self, operation: &'static str, change: &Change) -> Result<()>;
}
