//! One lock per volume.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as StdMutex, PoisonError, Weak};

use tokio::sync::{Mutex, OwnedMutexGuard};
use warren_types::VolumeName;

/// Locks that are not held take no memory.
#[derive(Default)]
pub(super) struct VolumeLocks(StdMutex<HashMap<VolumeName, Weak<Mutex<()>>>>);

pub(super) type VolumeLockGuard = OwnedMutexGuard<()>;

impl VolumeLocks {
    pub async fn lock(&self, volume: &VolumeName) -> VolumeLockGuard {
        self.lock_for(volume).lock_owned().await
    }

    /// `None` if the lock is held.
    pub fn try_lock(&self, volume: &VolumeName) -> Option<VolumeLockGuard> {
        self.lock_for(volume).try_lock_owned().ok()
    }

    fn lock_for(&self, volume: &VolumeName) -> Arc<Mutex<()>> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = taken.get(volume).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::default();
        taken.insert(volume.clone(), Arc::downgrade(&turn));
        turn
    }
}
