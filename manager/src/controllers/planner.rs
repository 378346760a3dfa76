//! Runs the pure planners: reads the newest state, runs one planner, proposes its commands.

use tokio::time::Instant;
use warren_api::controller_status::{MembershipWait, PlacementRefusals};
use warren_control::RunOutcome;
use warren_core::{ReconcilePlan, schedule};
use warren_replica::{PlanErrorAction, ReconcileKey, schedule_plan};
use warren_session::SessionRegistry;
use warren_store::timestamp::TimestampSource;
use warren_store::{PublishedState, Store};
use warren_types::{MemberId, Timestamp};

use super::images::ImagePinner;
use super::liveness::{FetchContacts, LivenessMonitor};
use super::members::MembershipReconciler;
use super::scheduler_metrics::SchedulerMetrics;
use super::verification::NodeVerifier;

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
    verifier: NodeVerifier,
    image_pinner: ImagePinner,
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
    /// Runs the checks of nodes.
    pub verifier: NodeVerifier,
    /// Pins the images of services.
    pub image_pinner: ImagePinner,
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
            verifier,
            image_pinner,
        } = inputs;
        let members = MembershipReconciler::new(store.clone(), member, waits);
        let listening = LivenessMonitor::new(registry, ask);
        Self {
            store,
            member,
            members,
            placement_refusals: refusals,
            clock,
            metrics,
            liveness: listening,
            verifier,
            image_pinner,
        }
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
            ReconcileKey::Members => return self.members.reconcile(&published).await,
            ReconcileKey::Verification => return self.verifier.reconcile(&published, now).await,
            ReconcileKey::Image(id) => return self.image_pinner.reconcile(&published, id),
            ReconcileKey::Schedule => self.schedule(&published, now),
            ReconcileKey::Liveness => {
                let round = self.liveness.fetch(&published, self.member).await;
                // The state may have changed meanwhile.
                let published = self.store.read();
                if !published.role.can_plan {
                    return RunOutcome::Done;
                }
                self.liveness.plan(&published, round, self.clock.now())
            }
            key => key.plan(&published.state, now).unwrap_or_default(),
        };
        self.execute_plan(plan).await
    }

    fn schedule(&self, published: &PublishedState, now: Timestamp) -> ReconcilePlan {
        let began = Instant::now();
        let placement = schedule(&published.state, now);
        self.metrics.record_run(began.elapsed(), placement.assignments.len());
        let plan = schedule_plan(&placement, &published.state, now);
        self.placement_refusals.replace(placement.refusals);
        plan
    }

    async fn execute_plan(&self, plan: ReconcilePlan) -> RunOutcome {
        for command in plan.commands {
            let Err(error) = self.store.propose_locally(command).await else { continue };
            match PlanErrorAction::from(&error) {
                PlanErrorAction::Continue => {}
                // Logged where it was detected; every key would log it again.
                PlanErrorAction::RequeueAfter(delay) => return RunOutcome::RequeueAfter(delay),
                PlanErrorAction::Fail => return RunOutcome::Failed(error.into()),
            }
        }
        if let Some(pause) = plan.pause {
            return RunOutcome::PauseFor(pause);
        }
        plan.recheck_after.map_or(RunOutcome::Done, RunOutcome::RequeueAfter)
    }
}
