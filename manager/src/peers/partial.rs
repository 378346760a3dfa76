//! What has arrived of a snapshot: kept for a while after the connection broke, so that the next try goes on there.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tonic::Status;
use warren_consensus::SnapshotMeta;
use warren_proto::Problem;
use warren_types::MemberId;

/// How long part of a snapshot is kept without anything being added.
pub const KEPT: Duration = Duration::from_secs(60);
/// Largest snapshot that is taken: far more than any state that fits into a manager's memory twice.
pub const MOST: u64 = 8 << 30;

/// Whose snapshot of what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Who sends it.
    pub from: MemberId,
    /// What it covers.
    pub meta: SnapshotMeta,
    /// Bytes that it has.
    pub size: u64,
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
    /// Another try, or another snapshot, took its place.
    #[error("the snapshot is sent again on another connection")]
    Superseded,
}

impl From<PartialError> for Status {
    fn from(error: PartialError) -> Self {
        let (code, reason) = match error {
            PartialError::TooLarge(_) | PartialError::NoMemory(_) => {
                (tonic::Code::ResourceExhausted, "SNAPSHOT_TOO_LARGE")
            }
            PartialError::TooMuch { .. } | PartialError::Empty => {
                (tonic::Code::InvalidArgument, "SNAPSHOT_FRAME")
            }
            PartialError::Superseded => (tonic::Code::Aborted, "SNAPSHOT_SUPERSEDED"),
        };
        Problem::new(code, reason, error).into()
    }
}

/// At most one snapshot arrives at a time: that of the leader. Cheap to clone; all clones are the same.
#[derive(Clone, Default)]
pub struct Partials(Arc<Mutex<Slot>>);

#[derive(Default)]
struct Slot {
    claims: u64,
    partial: Option<Partial>,
}

struct Partial {
    key: Key,
    bytes: Vec<u8>,
    /// Who may add to it.
    claim: u64,
}

/// The right to add to a snapshot, until somebody else gets it.
pub struct Claim {
    partials: Partials,
    number: u64,
}

impl Partials {
    fn lock(&self) -> MutexGuard<'_, Slot> {
        // Nothing here panics between two changes, so a poisoned one is still whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins with a snapshot, or goes on with it: answers how many of its bytes are there. An earlier claim is void.
    ///
    /// # Errors
    /// [`PartialError::TooLarge`], [`PartialError::NoMemory`].
    pub fn claim(&self, key: Key) -> Result<(Claim, u64), PartialError> {
        let size = key.size;
        if size > MOST {
            return Err(PartialError::TooLarge(size));
        }
        let mut slot = self.lock();
        slot.claims += 1;
        let number = slot.claims;
        let there = match &mut slot.partial {
            Some(partial) if partial.key == key => {
                partial.claim = number;
                partial.bytes.len() as u64
            }
            _ => {
                // What is there of another snapshot goes first.
                slot.partial = None;
                let (mut bytes, wanted) = (Vec::new(), usize::try_from(size).unwrap_or(usize::MAX));
                // The system gives pages only when they are written.
                bytes.try_reserve_exact(wanted).map_err(|_| PartialError::NoMemory(size))?;
                slot.partial = Some(Partial { key, bytes, claim: number });
                0
            }
        };
        Ok((Claim { partials: self.clone(), number }, there))
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
        let Partial { key, bytes, .. } = partial.ok_or(PartialError::Superseded)?;
        if chunk.is_empty() {
            return Err(PartialError::Empty);
        }
        let (found, size) = ((bytes.len() + chunk.len()) as u64, key.size);
        if found > size {
            return Err(PartialError::TooMuch { found, size });
        }
        bytes.extend_from_slice(chunk);
        Ok(found == size)
    }

    /// Takes what is there, and leaves nothing.
    ///
    /// # Errors
    /// [`PartialError::Superseded`].
    pub fn take(&self) -> Result<Vec<u8>, PartialError> {
        let mut slot = self.partials.lock();
        let own = slot.partial.take_if(|partial| partial.claim == self.number);
        own.map(|partial| partial.bytes).ok_or(PartialError::Superseded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_consensus::ConfState;

    fn key(index: u64, size: u64) -> Key {
        Key { from: 1, meta: SnapshotMeta { index, term: 1, conf_state: ConfState::of_voters([1, 2]) }, size }
    }

    #[test]
    fn the_next_try_goes_on_where_the_last_one_broke() {
        let partials = Partials::default();
        let (first, there) = partials.claim(key(5, 6)).unwrap();
        assert_eq!((there, first.add(b"abc")), (0, Ok(false)));
        let (second, there) = partials.claim(key(5, 6)).unwrap();
        assert_eq!(there, 3);
        assert_eq!(first.add(b"d"), Err(PartialError::Superseded), "the first connection may still hang");
        assert_eq!(first.take(), Err(PartialError::Superseded));
        assert_eq!(second.add(b"def"), Ok(true));
        assert_eq!(second.take(), Ok(b"abcdef".to_vec()));
        assert_eq!(second.take(), Err(PartialError::Superseded), "it is gone");
        assert_eq!(partials.claim(key(5, 6)).unwrap().1, 0);
    }

    #[test]
    fn another_snapshot_begins_anew() {
        let partials = Partials::default();
        let (first, _) = partials.claim(key(5, 6)).unwrap();
        first.add(b"abc").unwrap();
        for other in [key(6, 6), key(5, 7), Key { from: 2, ..key(5, 7) }] {
            let (claim, there) = partials.claim(other).unwrap();
            assert_eq!((there, claim.add(b"a")), (0, Ok(false)));
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let partials = Partials::default();
        assert!(matches!(partials.claim(key(5, MOST + 1)), Err(PartialError::TooLarge(_))));
        let (claim, _) = partials.claim(key(5, 2)).unwrap();
        assert_eq!(claim.add(b""), Err(PartialError::Empty));
        assert_eq!(claim.add(b"abc"), Err(PartialError::TooMuch { found: 3, size: 2 }));
        assert_eq!(claim.add(b"ab"), Ok(true));
    }
}
