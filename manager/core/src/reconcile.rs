//! Which tasks should exist: plans that bring a service's tasks to its spec, and delete old records.
//!
//! A plan is made from a state alone and contains commands without choices. Applied to that state, planning
//! again gives an empty plan. Commands have the term of the state's newest entry: a leader plans only after
//! it applied an entry of its own term, so a plan of any other term is of an older leader and is rejected.

mod addresses;
pub(crate) mod backoff;
mod ca_rotation;
mod feature_level;
mod image;
pub(crate) mod lost;
mod misplaced;
mod reap;
mod room;
mod service;
mod slot;
mod tokens;
pub(crate) mod update;
mod verification;

use std::time::Duration;

use crate::state::Command;
pub use addresses::release_addresses;
pub use ca_rotation::reconcile_ca_rotation;
pub use feature_level::reconcile_feature_level;
pub use image::{
    ImageStep, earlier_pin, image_step, is_refresh, known_pins, pin_command, unresolved_command,
    usable_import,
};
pub use reap::reap;
pub use room::{SPARE_TASKS, uncreated_tasks, unplaced_tasks};
pub use service::reconcile_service;
pub use tokens::reap_tokens;
pub use verification::{
    UsedRegistry, VerificationPlan, reconcile_verification, used_registries, verification_peers,
};

/// The most tasks that one plan changes.
pub const MAX_ITEMS: usize = 1000;

/// The most tasks of a service that are asked to stop at once, so that removing many leaves the manager time for
/// requests: 2,000 per second with [`REMOVAL_PAUSE`].
pub const MAX_REMOVALS: usize = 200;
/// The time between two such plans of a service.
pub const REMOVAL_PAUSE: Duration = Duration::from_millis(100);

/// What must be done, and when to plan again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReconcilePlan {
    /// In this order. Each can be applied alone and is idempotent.
    pub commands: Vec<Command>,
    /// When to plan again if nothing changes; immediately if the limit cut the plan short.
    pub recheck_after: Option<Duration>,
    /// Plan again after this time and not earlier, whatever changes: [`MAX_REMOVALS`] cut the plan short.
    pub pause: Option<Duration>,
}

impl ReconcilePlan {
    /// Whether nothing is to be done now.
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }
}

/// Limits a plan to [`MAX_ITEMS`] changes.
struct Budget {
    left: usize,
    /// Something did not fit.
    is_exceeded: bool,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(MAX_ITEMS)
    }
}

impl Budget {
    fn new(left: usize) -> Self {
        Self { left, is_exceeded: false }
    }

    /// Reserves room for this many items that belong together; if there is none, the plan is full.
    fn take(&mut self, items: usize) -> bool {
        let fits = !self.is_exceeded && items <= self.left;
        self.is_exceeded |= !fits;
        self.left -= if fits { items } else { 0 };
        fits
    }

    /// As many of the items as there is room for.
    fn collect<T>(&mut self, items: impl Iterator<Item = T>) -> Vec<T> {
        let mut items = items;
        let taken: Vec<T> = items.by_ref().take(self.left).collect();
        self.left -= taken.len();
        self.is_exceeded |= self.left == 0 && items.next().is_some();
        taken
    }

    fn recheck_after(&self) -> Option<Duration> {
        self.is_exceeded.then_some(Duration::ZERO)
    }
}
