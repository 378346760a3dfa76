//! Locks per container, so that a sweep does not touch a container that a call works on.
//!
//! A call to containerd that continues after its caller was cancelled keeps its lock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use crate::container::ContainerId;

/// Locks by container. Locks that are not held take no memory.
#[derive(Default)]
pub(super) struct ContainerLocks {
    locks: Mutex<HashMap<ContainerId, Weak<RwLock<()>>>>,
}

/// Held while a container is created, changed or removed.
pub(super) type SharedLock = OwnedRwLockReadGuard<()>;
/// Held by a sweep, for one container at a time; calls on it wait.
pub(super) type ExclusiveLock = OwnedRwLockWriteGuard<()>;

impl ContainerLocks {
    /// Locks a container, together with other calls.
    pub async fn lock_shared(&self, id: &ContainerId) -> SharedLock {
        self.lock_for(id).read_owned().await
    }

    /// Locks a container exclusively. `None` if a call works on it.
    pub fn try_lock_exclusive(&self, id: &ContainerId) -> Option<ExclusiveLock> {
        self.lock_for(id).try_write_owned().ok()
    }

    fn lock_for(&self, id: &ContainerId) -> Arc<RwLock<()>> {
        let mut taken = self.locks.lock().expect("no holder panics");
        taken.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = taken.get(id).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::default();
        taken.insert(id.clone(), Arc::downgrade(&turn));
        turn
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn id(text: &str) -> ContainerId {
        ContainerId::parse(text).unwrap()
    }

    #[tokio::test]
    async fn sweep_never_waits_and_work_waits_for_sweep() {
        let turns = ContainerLocks::default();
        let (one, two) = (turns.lock_shared(&id("a")).await, turns.lock_shared(&id("a")).await);
        assert!(turns.try_lock_exclusive(&id("a")).is_none());
        drop(one);
        assert!(turns.try_lock_exclusive(&id("a")).is_none(), "another one is still at work");
        let other = turns.try_lock_exclusive(&id("b"));
        assert!(other.is_some(), "nobody works on this one");
        drop(two);
        let alone = turns.try_lock_exclusive(&id("a"));
        assert!(alone.is_some() && turns.try_lock_exclusive(&id("a")).is_none());
        assert!(turns.lock_shared(&id("a")).now_or_never().is_none());
        drop(alone);
        assert!(turns.lock_shared(&id("a")).now_or_never().is_some());
    }

    #[tokio::test]
    async fn unused_locks_are_freed() {
        let turns = ContainerLocks::default();
        for number in 0..100 {
            drop(turns.lock_shared(&id(&format!("a{number}"))).await);
        }
        assert_eq!(turns.locks.lock().unwrap().len(), 1, "until the next one comes");
    }
}
