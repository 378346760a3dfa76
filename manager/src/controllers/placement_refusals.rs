//! Why tasks have no node, as of the last scheduler run. Not replicated: a new leader recomputes it.

use std::sync::Arc;

use arc_swap::ArcSwap;

/// The newest reasons. Cheap to clone; all clones share one value.
#[derive(Clone, Default)]
pub struct PlacementRefusals {
    latest: Arc<ArcSwap<warren_core::UnschedulableReasons>>,
}

impl PlacementRefusals {
    /// Replaces the reasons by those of the newest run.
    pub fn replace(&self, refusals: warren_core::UnschedulableReasons) {
        self.latest.store(Arc::new(refusals));
    }

    /// The reasons of the last run.
    pub fn read(&self) -> Arc<warren_core::UnschedulableReasons> {
        self.latest.load_full()
    }
}
