//! What the leader's controllers report. It is not replicated: a new leader recomputes it.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use warren_consensus::WaitReason;
use warren_core::UnschedulableReasons;

/// What the next membership change waits for. Cheap to clone; all clones share one value.
#[derive(Debug, Clone, Default)]
pub struct MembershipWait(Arc<Mutex<Option<WaitReason>>>);

impl MembershipWait {
    /// The reason; `None` unless this manager leads and waits.
    pub fn read(&self) -> Option<WaitReason> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the reason.
    pub fn replace(&self, why: Option<WaitReason>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }
}

/// Why tasks have no node, as of the last scheduler run. Cheap to clone; all clones share one value.
#[derive(Clone, Default)]
pub struct PlacementRefusals {
    latest: Arc<ArcSwap<UnschedulableReasons>>,
}

impl PlacementRefusals {
    /// Replaces the reasons by those of the newest run.
    pub fn replace(&self, refusals: UnschedulableReasons) {
        self.latest.store(Arc::new(refusals));
    }

    /// The reasons of the last run.
    pub fn read(&self) -> Arc<UnschedulableReasons> {
        self.latest.load_full()
    }
}
