//! Who works on which container, so that a sweep takes nothing out of anybody's hands.
//!
//! A call of containerd's that goes on after its caller was dropped keeps its part: it is still at work.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use crate::container::ContainerId;

/// The containers that somebody works on. One that nobody works on takes no room.
#[derive(Default)]
pub(super) struct Turns {
    taken: Mutex<HashMap<ContainerId, Weak<RwLock<()>>>>,
}

/// Held by whoever makes, changes or removes a container.
pub(super) type Work = OwnedRwLockReadGuard<()>;
/// Held by a sweep, for one container at a time; work on it waits meanwhile.
pub(super) type Alone = OwnedRwLockWriteGuard<()>;

impl Turns {
    /// Begins to work on a container, beside others who do.
    pub async fn work(&self, id: &ContainerId) -> Work {
        self.of(id).read_owned().await
    }

    /// Keeps work on a container from beginning. `None` when some is under way.
    pub fn alone(&self, id: &ContainerId) -> Option<Alone> {
        self.of(id).try_write_owned().ok()
    }

    fn of(&self, id: &ContainerId) -> Arc<RwLock<()>> {
        let mut taken = self.taken.lock().expect("no holder panics");
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
    async fn a_sweep_waits_for_nobody_and_work_waits_for_a_sweep() {
        let turns = Turns::default();
        let (one, two) = (turns.work(&id("a")).await, turns.work(&id("a")).await);
        assert!(turns.alone(&id("a")).is_none());
        drop(one);
        assert!(turns.alone(&id("a")).is_none(), "another one is still at work");
        let other = turns.alone(&id("b"));
        assert!(other.is_some(), "nobody works on this one");
        drop(two);
        let alone = turns.alone(&id("a"));
        assert!(alone.is_some() && turns.alone(&id("a")).is_none());
        assert!(turns.work(&id("a")).now_or_never().is_none());
        drop(alone);
        assert!(turns.work(&id("a")).now_or_never().is_some());
    }

    #[tokio::test]
    async fn what_nobody_works_on_takes_no_room() {
        let turns = Turns::default();
        for number in 0..100 {
            drop(turns.work(&id(&format!("a{number}"))).await);
        }
        assert_eq!(turns.taken.lock().unwrap().len(), 1, "until the next one comes");
    }
}
