//! Which tasks should exist: plans that bring a service's tasks to what its spec says, and forget what is
//! over.
//!
//! A plan is made from a state alone and carries commands that leave no choices. Applied to that state,
//! planning again gives an empty plan. Commands carry the term of the state's newest entry: a leader plans
//! only after it applied an entry of its own term, so a plan of any other term is of an older leader and is
//! refused.

pub(crate) mod backoff;
mod level;
pub(crate) mod lost;
mod misplaced;
mod reap;
mod rollout;
mod service;
mod slot;
mod tokens;

use std::time::Duration;

use crate::state::Command;
pub use level::reconcile_level;
pub use reap::reap;
pub use rollout::{Rollout, rollout};
pub use service::reconcile_service;
pub use tokens::reap_tokens;

/// How many tasks one plan touches.
pub const MAX_ITEMS: usize = 1000;

/// What must be done, and when to look again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// In this order. Each is harmless alone and the second time.
    pub commands: Vec<Command>,
    /// When to look again if nothing changes; at once when the bound cut the plan short.
    pub recheck_after: Option<Duration>,
}

impl Plan {
    /// Nothing is to be done now.
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }
}

/// Collects at most [`MAX_ITEMS`] of what a plan touches.
struct Budget {
    left: usize,
    /// Something did not fit.
    exceeded: bool,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: MAX_ITEMS, exceeded: false }
    }
}

impl Budget {
    /// Room for this many items that belong together; if there is none, the plan is full.
    fn take(&mut self, items: usize) -> bool {
        let fits = !self.exceeded && items <= self.left;
        self.exceeded |= !fits;
        self.left -= if fits { items } else { 0 };
        fits
    }

    /// As many of the items as there is room for.
    fn collect<T>(&mut self, items: impl Iterator<Item = T>) -> Vec<T> {
        let mut items = items;
        let taken: Vec<T> = items.by_ref().take(self.left).collect();
        self.left -= taken.len();
        self.exceeded |= self.left == 0 && items.next().is_some();
        taken
    }

    fn recheck_after(&self) -> Option<Duration> {
        self.exceeded.then_some(Duration::ZERO)
    }
}
