//! Received parts of a snapshot: kept for a while after a lost connection, so that the next attempt resumes
//! there, also from another leader with the same snapshot; and complete ones while they are made durable, so
//! that they are not sent again.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tonic::Status;
use warren_proto::Problem;
use xxhash_rust::xxh3::Xxh3Default;

/// How long a partial snapshot is kept without new data.
pub const RETENTION: Duration = Duration::from_secs(60);
/// Maximum snapshot size: far more than any state that fits into a manager's memory twice.
pub const MAX_SNAPSHOT_BYTES: u64 = 8 << 30;
/// Maximum number of snapshots that are made durable concurrently.
const MAX_COMPLETE: usize = 2;

/// Identifies a snapshot. Two managers of one version have the same bytes for the same entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotKey {
    /// The cluster's incarnation of the sender.
    pub incarnation: u64,
    /// Index of its last entry.
    pub index: u64,
    /// Term of its last entry.
    pub term: u64,
    /// Size in bytes.
    pub size: u64,
    /// XXH3 of the bytes.
    pub digest: u64,
}

/// Why data of a snapshot is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotReceiveError {
    /// The announced size is above the limit.
    #[error("snapshot of {0} bytes exceeds the maximum of {MAX_SNAPSHOT_BYTES} bytes")]
    TooLarge(u64),
    /// There is not enough memory.
    #[error("not enough memory for a snapshot of {0} bytes")]
    OutOfMemory(u64),
    /// Too many snapshots are being made durable.
    #[error("{MAX_COMPLETE} other snapshots are being made durable; retry later")]
    Busy,
    /// More data arrived than announced.
    #[error("snapshot exceeds its announced size: {found} of {size} bytes")]
    ExceedsAnnouncedSize {
        /// Received bytes.
        found: u64,
        /// Announced bytes.
        size: u64,
    },
    /// A frame without data.
    #[error("a frame of a snapshot has no bytes")]
    EmptyFrame,
    /// The digest of the data is not the announced one.
    #[error("snapshot digest: expected {desired:016x}, found {found:016x}")]
    DigestMismatch {
        /// The announced digest.
        desired: u64,
        /// The digest of the received data.
        found: u64,
    },
    /// Another attempt or another snapshot replaced this one.
    #[error("superseded: the snapshot is sent on another connection")]
    Superseded,
    /// A later leader sends a snapshot.
    #[error("superseded: the leader of {newer} sends a snapshot, this one is from {found}")]
    StaleTerm {
        /// The leader whose snapshot is accepted.
        newer: LeaderTerm,
        /// The rejected leader.
        found: LeaderTerm,
    },
}

/// The term of a leader. Terms restart in each incarnation of the cluster; the later incarnation is newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaderTerm {
    incarnation: u64,
    term: u64,
}

impl fmt::Display for LeaderTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { incarnation, term } = self;
        write!(f, "term {term} of incarnation {incarnation}")
    }
}

impl From<SnapshotReceiveError> for Status {
    fn from(error: SnapshotReceiveError) -> Self {
        let (code, reason) = match error {
            SnapshotReceiveError::TooLarge(_) | SnapshotReceiveError::OutOfMemory(_) => {
                (tonic::Code::ResourceExhausted, "SNAPSHOT_TOO_LARGE")
            }
            SnapshotReceiveError::Busy => (tonic::Code::ResourceExhausted, "SNAPSHOTS_BUSY"),
            SnapshotReceiveError::ExceedsAnnouncedSize { .. } | SnapshotReceiveError::EmptyFrame => {
                (tonic::Code::InvalidArgument, "SNAPSHOT_FRAME")
            }
            SnapshotReceiveError::DigestMismatch { .. } => (tonic::Code::DataLoss, "SNAPSHOT_DAMAGED"),
            SnapshotReceiveError::Superseded => (tonic::Code::Aborted, "SNAPSHOT_SUPERSEDED"),
            SnapshotReceiveError::StaleTerm { .. } => (tonic::Code::Aborted, "SNAPSHOT_OUTDATED"),
        };
        Problem::new(code, reason, error).into()
    }
}

/// Receives at most one snapshot at a time: that of the newest leader. Cheap to clone; all clones share one
/// slot.
#[derive(Clone, Default)]
pub struct PartialSnapshots(Arc<Mutex<PartialSlot>>);

#[derive(Default)]
struct PartialSlot {
    claims: u64,
    partial: Option<PartialSnapshot>,
    complete: Vec<CompletedSnapshot>,
}

struct PartialSnapshot {
    key: SnapshotKey,
    bytes: Vec<u8>,
    digest: Xxh3Default,
    /// The current claim, and the term of its leader.
    claim: u64,
    term: u64,
}

impl PartialSnapshot {
    fn leader_term(&self) -> LeaderTerm {
        LeaderTerm { incarnation: self.key.incarnation, term: self.term }
    }
}

/// A complete snapshot, while it is made durable.
struct CompletedSnapshot {
    key: SnapshotKey,
    bytes: Bytes,
    holders: usize,
}

/// How to proceed with an announced snapshot.
pub enum ClaimOutcome {
    /// Some of its bytes are present; the rest must be received.
    Partial(ReceiveClaim, u64),
    /// It is complete and being made durable.
    Complete(CompleteSnapshot),
}

/// The right to append to a snapshot, until another claim replaces it.
pub struct ReceiveClaim {
    partials: PartialSnapshots,
    number: u64,
}

/// A complete snapshot.
pub struct CompleteSnapshot {
    partials: PartialSnapshots,
    key: SnapshotKey,
    /// All its bytes.
    pub bytes: Bytes,
}

impl PartialSnapshots {
    fn lock(&self) -> MutexGuard<'_, PartialSlot> {
        // No update can panic halfway, so a poisoned value is still consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts or resumes receiving a snapshot from the leader of `term`. An earlier claim becomes invalid.
    ///
    /// # Errors
    /// [`SnapshotReceiveError::TooLarge`], [`SnapshotReceiveError::OutOfMemory`],
    /// [`SnapshotReceiveError::Busy`], [`SnapshotReceiveError::StaleTerm`].
    pub fn claim(&self, key: SnapshotKey, term: u64) -> Result<ClaimOutcome, SnapshotReceiveError> {
        let size = key.size;
        if size > MAX_SNAPSHOT_BYTES {
            return Err(SnapshotReceiveError::TooLarge(size));
        }
        let mut slot = self.lock();
        if let Some(completed) = slot.complete.iter_mut().find(|completed| completed.key == key) {
            completed.holders += 1;
            let (partials, bytes) = (self.clone(), completed.bytes.clone());
            return Ok(ClaimOutcome::Complete(CompleteSnapshot { partials, key, bytes }));
        }
        if slot.complete.len() >= MAX_COMPLETE {
            return Err(SnapshotReceiveError::Busy);
        }
        let found = LeaderTerm { incarnation: key.incarnation, term };
        if let Some(newer) =
            slot.partial.as_ref().map(PartialSnapshot::leader_term).filter(|newer| *newer > found)
        {
            return Err(SnapshotReceiveError::StaleTerm { newer, found });
        }
        slot.claims += 1;
        let number = slot.claims;
        let offset = match &mut slot.partial {
            Some(partial) if partial.key == key => {
                (partial.claim, partial.term) = (number, term);
                partial.bytes.len() as u64
            }
            _ => {
                // The partial data of another snapshot is dropped first.
                slot.partial = None;
                let (mut bytes, desired) = (Vec::new(), usize::try_from(size).unwrap_or(usize::MAX));
                // Memory pages are allocated only when they are written.
                bytes.try_reserve_exact(desired).map_err(|_| SnapshotReceiveError::OutOfMemory(size))?;
                let digest = Xxh3Default::new();
                slot.partial = Some(PartialSnapshot { key, bytes, digest, claim: number, term });
                0
            }
        };
        Ok(ClaimOutcome::Partial(ReceiveClaim { partials: self.clone(), number }, offset))
    }
}

impl ReceiveClaim {
    /// Appends data; returns whether the snapshot is complete.
    ///
    /// # Errors
    /// [`SnapshotReceiveError`].
    pub fn append(&self, chunk: &[u8]) -> Result<bool, SnapshotReceiveError> {
        let mut slot = self.partials.lock();
        let partial = slot.partial.as_mut().filter(|partial| partial.claim == self.number);
        let PartialSnapshot { key, bytes, digest, .. } = partial.ok_or(SnapshotReceiveError::Superseded)?;
        if chunk.is_empty() {
            return Err(SnapshotReceiveError::EmptyFrame);
        }
        let (found, size) = ((bytes.len() + chunk.len()) as u64, key.size);
        if found > size {
            return Err(SnapshotReceiveError::ExceedsAnnouncedSize { found, size });
        }
        bytes.extend_from_slice(chunk);
        digest.update(chunk);
        Ok(found == size)
    }

    /// Finishes a complete snapshot: it is kept until the result is dropped, and nothing can be appended.
    ///
    /// # Errors
    /// [`SnapshotReceiveError::Superseded`]; [`SnapshotReceiveError::DigestMismatch`], and then the data is
    /// dropped.
    pub fn complete(&self) -> Result<CompleteSnapshot, SnapshotReceiveError> {
        let mut slot = self.partials.lock();
        let own = slot.partial.take_if(|partial| partial.claim == self.number);
        let PartialSnapshot { key, bytes, digest, .. } = own.ok_or(SnapshotReceiveError::Superseded)?;
        let (expected, found) = (key.digest, digest.digest());
        if expected != found {
            return Err(SnapshotReceiveError::DigestMismatch { desired: expected, found });
        }
        let bytes = Bytes::from(bytes);
        slot.complete.push(CompletedSnapshot { key, bytes: bytes.clone(), holders: 1 });
        Ok(CompleteSnapshot { partials: self.partials.clone(), key, bytes })
    }

    /// Drops the data, unless another claim continues it.
    pub fn discard(&self) {
        self.partials.lock().partial.take_if(|partial| partial.claim == self.number);
    }
}

impl Drop for CompleteSnapshot {
    fn drop(&mut self) {
        let mut slot = self.partials.lock();
        slot.complete
            .iter_mut()
            .filter(|completed| completed.key == self.key)
            .for_each(|completed| completed.holders -= 1);
        slot.complete.retain(|completed| completed.holders > 0);
    }
}

#[cfg(test)]
mod tests;
