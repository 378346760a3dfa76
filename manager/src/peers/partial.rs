//! What has arrived of a snapshot: kept for a while after the connection broke, so that the next try goes on there,
//! also that of another leader which has the same snapshot; and while it is made durable, so that it need not be sent
//! again.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tonic::Status;
use warren_proto::Problem;
use xxhash_rust::xxh3::Xxh3Default;

/// How long part of a snapshot is kept without anything being added.
pub const KEPT: Duration = Duration::from_secs(60);
/// Largest snapshot that is taken: far more than any state that fits into a manager's memory twice.
pub const MOST: u64 = 8 << 30;
/// Snapshots that are made durable at once.
const MOST_WHOLE: usize = 2;

/// Which snapshot. Two managers of one version have the same bytes for the same entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The cluster's incarnation in which it is sent.
    pub life: u64,
    /// Its last entry.
    pub index: u64,
    /// Term of that.
    pub term: u64,
    /// Bytes that it has.
    pub size: u64,
    /// XXH3 of them.
    pub digest: u64,
}

/// Why bytes are not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PartialError {
    /// No state is that large.
    #[error("a snapshot of {0} bytes is more than the {MOST} that a manager takes")]
    TooLarge(u64),
    /// There is no memory for it.
    #[error("there is no memory for a snapshot of {0} bytes")]
    NoMemory(u64),
    /// The disk is too slow for how often they come.
    #[error("{MOST_WHOLE} other snapshots are being made durable here; send it later")]
    Busy,
    /// More came than was announced.
    #[error("{found} bytes of a snapshot arrived that has {size}")]
    TooMuch {
        /// So many arrived.
        found: u64,
        /// So many were announced.
        size: u64,
    },
    /// A frame without bytes.
    #[error("a frame of a snapshot has no bytes")]
    Empty,
    /// What came is not what was announced.
    #[error("the bytes of a snapshot have digest {found:016x}, and {wanted:016x} was announced")]
    Damaged {
        /// Announced.
        wanted: u64,
        /// Of what came.
        found: u64,
    },
    /// Another try, or another snapshot, took its place.
    #[error("the snapshot is sent again on another connection")]
    Superseded,
    /// A later leader sends one.
    #[error("the leader of {newer} sends a snapshot, and this is from that of {found}")]
    Outdated {
        /// Whose is taken.
        newer: Reign,
        /// Whose is not.
        found: Reign,
    },
}

/// When a leader leads. Terms are counted anew in each life of the cluster, and the latest life counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reign {
    life: u64,
    term: u64,
}

impl fmt::Display for Reign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { life, term } = self;
        write!(f, "term {term} in life {life}")
    }
}

impl From<PartialError> for Status {
    fn from(error: PartialError) -> Self {
        let (code, reason) = match error {
            PartialError::TooLarge(_) | PartialError::NoMemory(_) => {
                (tonic::Code::ResourceExhausted, "SNAPSHOT_TOO_LARGE")
            }
            PartialError::Busy => (tonic::Code::ResourceExhausted, "SNAPSHOTS_BUSY"),
            PartialError::TooMuch { .. } | PartialError::Empty => {
                (tonic::Code::InvalidArgument, "SNAPSHOT_FRAME")
            }
            PartialError::Damaged { .. } => (tonic::Code::DataLoss, "SNAPSHOT_DAMAGED"),
            PartialError::Superseded => (tonic::Code::Aborted, "SNAPSHOT_SUPERSEDED"),
            PartialError::Outdated { .. } => (tonic::Code::Aborted, "SNAPSHOT_OUTDATED"),
        };
        Problem::new(code, reason, error).into()
    }
}

/// At most one snapshot arrives at a time: that of the newest leader. Cheap to clone; all clones are the same.
#[derive(Clone, Default)]
pub struct Partials(Arc<Mutex<Slot>>);

#[derive(Default)]
struct Slot {
    claims: u64,
    partial: Option<Partial>,
    whole: Vec<Held>,
}

struct Partial {
    key: Key,
    bytes: Vec<u8>,
    digest: Xxh3Default,
    /// Who may add to it, and in which term its leader leads.
    claim: u64,
    term: u64,
}

impl Partial {
    fn reign(&self) -> Reign {
        Reign { life: self.key.life, term: self.term }
    }
}

/// All of a snapshot, as long as somebody makes it durable.
struct Held {
    key: Key,
    bytes: Bytes,
    holders: usize,
}

/// What is to be done with a snapshot that somebody sends.
pub enum Claimed {
    /// So many of its bytes are there; the others are to be added.
    Part(Claim, u64),
    /// All of it is there, and is being made durable.
    Whole(Whole),
}

/// The right to add to a snapshot, until somebody else gets it.
pub struct Claim {
    partials: Partials,
    number: u64,
}

/// A snapshot that is there as a whole.
pub struct Whole {
    partials: Partials,
    key: Key,
    /// All of it.
    pub bytes: Bytes,
}

impl Partials {
    fn lock(&self) -> MutexGuard<'_, Slot> {
        // Nothing here panics between two changes, so a poisoned one is still whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins with a snapshot that the leader of `term` sends, or goes on with it. An earlier claim is void.
    ///
    /// # Errors
    /// [`PartialError::TooLarge`], [`PartialError::NoMemory`], [`PartialError::Busy`], [`PartialError::Outdated`].
    pub fn claim(&self, key: Key, term: u64) -> Result<Claimed, PartialError> {
        let size = key.size;
        if size > MOST {
            return Err(PartialError::TooLarge(size));
        }
        let mut slot = self.lock();
        if let Some(held) = slot.whole.iter_mut().find(|held| held.key == key) {
            held.holders += 1;
            let (partials, bytes) = (self.clone(), held.bytes.clone());
            return Ok(Claimed::Whole(Whole { partials, key, bytes }));
        }
        if slot.whole.len() >= MOST_WHOLE {
            return Err(PartialError::Busy);
        }
        let found = Reign { life: key.life, term };
        if let Some(newer) = slot.partial.as_ref().map(Partial::reign).filter(|newer| *newer > found) {
            return Err(PartialError::Outdated { newer, found });
        }
        slot.claims += 1;
        let number = slot.claims;
        let there = match &mut slot.partial {
            Some(partial) if partial.key == key => {
                (partial.claim, partial.term) = (number, term);
                partial.bytes.len() as u64
            }
            _ => {
                // What is there of another snapshot goes first.
                slot.partial = None;
                let (mut bytes, wanted) = (Vec::new(), usize::try_from(size).unwrap_or(usize::MAX));
                // The system gives pages only when they are written.
                bytes.try_reserve_exact(wanted).map_err(|_| PartialError::NoMemory(size))?;
                let digest = Xxh3Default::new();
                slot.partial = Some(Partial { key, bytes, digest, claim: number, term });
                0
            }
        };
        Ok(Claimed::Part(Claim { partials: self.clone(), number }, there))
    }
}

impl Claim {
    /// Adds bytes; answers whether all are there.
    ///
    /// # Errors
    /// [`PartialError`].
    pub fn add(&self, chunk: &[u8]) -> Result<bool, PartialError> {
        let mut slot = self.partials.lock();
        let partial = slot.partial.as_mut().filter(|partial| partial.claim == self.number);
        let Partial { key, bytes, digest, .. } = partial.ok_or(PartialError::Superseded)?;
        if chunk.is_empty() {
            return Err(PartialError::Empty);
        }
        let (found, size) = ((bytes.len() + chunk.len()) as u64, key.size);
        if found > size {
            return Err(PartialError::TooMuch { found, size });
        }
        bytes.extend_from_slice(chunk);
        digest.update(chunk);
        Ok(found == size)
    }

    /// All of it is there: it is kept until the answer is dropped, and nothing can be added any more.
    ///
    /// # Errors
    /// [`PartialError::Superseded`]; [`PartialError::Damaged`], and then nothing of it is kept.
    pub fn whole(&self) -> Result<Whole, PartialError> {
        let mut slot = self.partials.lock();
        let own = slot.partial.take_if(|partial| partial.claim == self.number);
        let Partial { key, bytes, digest, .. } = own.ok_or(PartialError::Superseded)?;
        let (wanted, found) = (key.digest, digest.digest());
        if wanted != found {
            return Err(PartialError::Damaged { wanted, found });
        }
        let bytes = Bytes::from(bytes);
        slot.whole.push(Held { key, bytes: bytes.clone(), holders: 1 });
        Ok(Whole { partials: self.partials.clone(), key, bytes })
    }

    /// Drops what is there, unless somebody else went on with it.
    pub fn forget(&self) {
        self.partials.lock().partial.take_if(|partial| partial.claim == self.number);
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        let mut slot = self.partials.lock();
        slot.whole.iter_mut().filter(|held| held.key == self.key).for_each(|held| held.holders -= 1);
        slot.whole.retain(|held| held.holders > 0);
    }
}

#[cfg(test)]
mod tests;
