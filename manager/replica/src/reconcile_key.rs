//! Keys of the work queue, and their plans. A wake-up has a key, never data.

use std::collections::BTreeSet;
use std::time::Duration;

use warren_core::scheduler::SchedulePlan;
use warren_core::{
    ReconcilePlan, State, reap, reap_tokens, reconcile_ca_rotation, reconcile_feature_level,
    reconcile_service, schedule,
};
use warren_types::{ServiceId, Timestamp};

use crate::ProposeError;

/// Delay of the scheduler, so that one run assigns all tasks created together.
const DEBOUNCE: Duration = Duration::from_millis(2);
/// Retry interval while the log cannot be written.
const STALLED_RETRY_DELAY: Duration = Duration::from_secs(1);

/// One object to reconcile. Ordered as a resync enqueues them: cluster-wide ones first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReconcileKey {
    /// The feature level of the cluster.
    Level,
    /// The raft membership.
    Members,
    /// Nodes without contact.
    Liveness,
    /// Tasks without a node.
    Schedule,
    /// Expired tokens.
    Tokens,
    /// The replacement of the certificate authority.
    Ca,
    /// Nodes whose checks are due.
    Verification,
    /// The image of a service.
    Image(ServiceId),
    /// The tasks of a service.
    Service(ServiceId),
    /// Records of a service that are not needed any more.
    Reap(ServiceId),
}

impl ReconcileKey {
    /// Every key of the state.
    pub fn all(state: &State) -> BTreeSet<Self> {
        let services = state.services_after(None).map(|service| service.id);
        let keys = services.flat_map(|id| [Self::Image(id), Self::Service(id), Self::Reap(id)]);
        let of_cluster = [
            Self::Level,
            Self::Members,
            Self::Liveness,
            Self::Schedule,
            Self::Tokens,
            Self::Ca,
            Self::Verification,
        ];
        keys.chain(of_cluster).collect()
    }

    /// How long its run waits after a wake-up.
    pub fn debounce(self) -> Duration {
        if self == Self::Schedule { DEBOUNCE } else { Duration::ZERO }
    }

    /// Its plan. `None` if that depends on more than the state: see [`crate::ContactRound`], [`crate::plan_members`],
    /// [`warren_core::reconcile_verification`] and [`warren_core::image_step`].
    pub fn plan(self, state: &State, now: Timestamp) -> Option<ReconcilePlan> {
        match self {
            Self::Level => Some(reconcile_feature_level(state)),
            Self::Schedule => Some(schedule_plan(&schedule(state, now), state, now)),
            Self::Tokens => Some(reap_tokens(state, now)),
            Self::Ca => Some(reconcile_ca_rotation(state, now)),
            Self::Service(id) => Some(reconcile_service(state, &id, now)),
            Self::Reap(id) => Some(reap(state, &id, now)),
            Self::Members | Self::Liveness | Self::Verification | Self::Image(_) => None,
        }
    }
}

/// The plan that applies the scheduler's result.
pub fn schedule_plan(placement: &SchedulePlan, state: &State, now: Timestamp) -> ReconcilePlan {
    let commands = placement.command(state, now).into_iter().collect();
    ReconcilePlan { commands, recheck_after: placement.recheck_after, pause: None }
}

/// What follows when a command of a plan was not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanErrorAction {
    /// The rest of the plan: the plan was made from an older state, and the change has enqueued the key again.
    Continue,
    /// Another run after that delay.
    RequeueAfter(Duration),
    /// Another run after a back-off.
    Fail,
}

impl From<&ProposeError> for PlanErrorAction {
    fn from(error: &ProposeError) -> Self {
        match error {
            ProposeError::Rejected(_) | ProposeError::NotLeader | ProposeError::Stopping => Self::Continue,
            ProposeError::WriteStalled(_) => Self::RequeueAfter(STALLED_RETRY_DELAY),
            _ => Self::Fail,
        }
    }
}
