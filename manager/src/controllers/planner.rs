//! Runs the pure planners: reads the newest state, runs one planner, proposes its commands.

use std::time::Duration;

use tokio::time::Instant;
use warren_control::RunOutcome;
use warren_core::{ReconcilePlan, reap, reap_tokens, reconcile_feature_level, reconcile_service, schedule};
use warren_types::{MemberId, Timestamp};

use super::key::ReconcileKey;
use super::liveness::{FetchContacts, LivenessMonitor};
use super::members::MembershipReconciler;
use super::scheduler_metrics::SchedulerMetrics;
use crate::controller_status::{MembershipWait, PlacementRefusals};
use crate::session::SessionRegistry;
use crate::store::{ProposeError, PublishedState, Store};
use crate::timestamp::TimestampSource;

/// Retry interval while the log cannot be written.
const STALLED_RETRY_DELAY: Duration = Duration::from_secs(1);

/// The planner of one manager; only the leader's does anything.
pub struct Planner {
    store: Store,
    /// The member id of this manager.
    member: MemberId,
    members: MembershipReconciler,
    placement_refusals: PlacementRefusals,
    clock: TimestampSource,
    metrics: SchedulerMetrics,
    liveness: LivenessMonitor,
}

/// Inputs and outputs of a planner besides the state.
pub struct PlannerInputs {
    /// The connected nodes.
    pub registry: SessionRegistry,
    /// Fetches the contacts of other managers.
    pub fetch_contacts: FetchContacts,
    /// Why tasks have no node.
    pub placement_refusals: PlacementRefusals,
    /// What the next membership change waits for.
    pub membership_wait: MembershipWait,
    /// Counts the scheduler's runs.
    pub metrics: SchedulerMetrics,
}

impl Planner {
    /// Plans over `store` as the member `member`.
    pub fn new(store: Store, member: MemberId, clock: TimestampSource, inputs: PlannerInputs) -> Self {
        let PlannerInputs {
            registry,
            fetch_contacts: ask,
            placement_refusals: refusals,
            membership_wait: waits,
            metrics,
        } = inputs;
        let members = MembershipReconciler::new(store.clone(), member, waits);
        let listening = LivenessMonitor::new(registry, ask);
        Self { store, member, members, placement_refusals: refusals, clock, metrics, liveness: listening }
    }

    /// Reconciles `key` once.
    pub async fn run(&self, key: ReconcileKey) -> RunOutcome {
        let published = self.store.read();
        if !published.role.can_plan {
            self.members.clear_wait();
            // A new leader enqueues every key.
            return RunOutcome::Done;
        }
        let now = self.clock.now();
        let plan = match key {
            ReconcileKey::Level => reconcile_feature_level(&published.state),
            ReconcileKey::Members => return self.members.reconcile(&published).await,
            ReconcileKey::Tokens => reap_tokens(&published.state, now),
            ReconcileKey::Service(id) => reconcile_service(&published.state, &id, now),
            ReconcileKey::Reap(id) => reap(&published.state, &id),
            ReconcileKey::Schedule => self.schedule(&published, now),
            ReconcileKey::Liveness => {
                let contacts = self.liveness.fetch(&published, self.member).await;
                // The state may have changed meanwhile.
                let published = self.store.read();
                if !published.role.can_plan {
                    return RunOutcome::Done;
                }
                self.liveness.plan(&published, contacts, self.clock.now())
            }
        };
        self.execute_plan(plan).await
    }

    fn schedule(&self, published: &PublishedState, now: Timestamp) -> ReconcilePlan {
        let began = Instant::now();
        let placement = schedule(&published.state, now);
        self.metrics.record_run(began.elapsed(), placement.assignments.len());
        let commands = placement.command(&published.state, now).into_iter().collect();
        self.placement_refusals.replace(placement.refusals);
        ReconcilePlan { commands, recheck_after: placement.recheck_after }
    }

    async fn execute_plan(&self, plan: ReconcilePlan) -> RunOutcome {
        for command in plan.commands {
            match self.store.propose_locally(command).await {
                // The plan was made from an older state: the change has enqueued the key again.
                Ok(_) | Err(ProposeError::Rejected(_) | ProposeError::NotLeader | ProposeError::Stopping) => {
                }
                // Logged where it was detected; every key would log it again.
                Err(ProposeError::WriteStalled(_)) => return RunOutcome::RequeueAfter(STALLED_RETRY_DELAY),
                Err(error) => return RunOutcome::Failed(error.into()),
            }
        }
        plan.recheck_after.map_or(RunOutcome::Done, RunOutcome::RequeueAfter)
    }
}
