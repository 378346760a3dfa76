//! Who works on which volume: one at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as StdMutex, PoisonError, Weak};

use tokio::sync::{Mutex, OwnedMutexGuard};
use warren_types::VolumeName;

/// A volume that nobody works on takes no room.
#[derive(Default)]
pub(super) struct Turns(StdMutex<HashMap<VolumeName, Weak<Mutex<()>>>>);

/// Held by whoever works on a volume.
pub(super) type Turn = OwnedMutexGuard<()>;

impl Turns {
    /// Waits for the others.
    pub async fn take(&self, volume: &VolumeName) -> Turn {
        self.of(volume).lock_owned().await
    }

    /// `None` when somebody works on the volume.
    pub fn try_take(&self, volume: &VolumeName) -> Option<Turn> {
        self.of(volume).try_lock_owned().ok()
    }

    fn of(&self, volume: &VolumeName) -> Arc<Mutex<()>> {
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
