//! Why tasks are not placed, as the scheduler last said. Not replicated: a new leader computes it again.

use std::sync::Arc;

use arc_swap::ArcSwap;

/// The newest words of the scheduler. Cheap to clone; all clones are the same.
#[derive(Clone, Default)]
pub struct Refusals {
    newest: Arc<ArcSwap<warren_core::Refusals>>,
}

impl Refusals {
    /// Replaces what was known by the newest plan's words.
    pub fn replace(&self, refusals: warren_core::Refusals) {
        self.newest.store(Arc::new(refusals));
    }

    /// What the scheduler last said.
    pub fn read(&self) -> Arc<warren_core::Refusals> {
        self.newest.load_full()
    }
}
