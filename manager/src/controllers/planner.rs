//! Runs the pure planners: reads the newest state, asks one of them, proposes what it says.

use std::time::Duration;

use tokio::time::Instant;
use warren_control::Outcome;
use warren_core::{Plan, reap, reap_tokens, reconcile_level, reconcile_service, schedule};
use warren_types::{MemberId, Timestamp};

use super::key::Key;
use super::liveness::{AskContacts, Listening};
use super::{Refusals, Waits};
use crate::metrics::scheduler::SchedulerMetrics;
use crate::session::Registry;
use crate::stamp::Stamp;
use crate::store::{ProposeError, Published, Store};

/// While the log cannot be written, plans are tried this often.
const HELD: Duration = Duration::from_secs(1);

/// What the planning loop needs. One per manager; only a leader's does anything.
pub struct Planner {
    pub(super) store: Store,
    /// This manager.
    pub(super) member: MemberId,
    pub(super) waits: Waits,
    refusals: Refusals,
    clock: Stamp,
    metrics: SchedulerMetrics,
    listening: Listening,
}

/// What a planner says beside its plans, and what it reads beside the state.
pub struct Surroundings {
    /// Who is connected.
    pub registry: Registry,
    /// Asks other managers who is connected to them.
    pub ask: AskContacts,
    /// Why tasks are not placed.
    pub refusals: Refusals,
    /// What the next change of members waits for.
    pub waits: Waits,
    /// Counts the scheduler's runs.
    pub metrics: SchedulerMetrics,
}

impl Planner {
    /// Plans over `store`, as `member` of the group.
    pub fn new(store: Store, member: MemberId, clock: Stamp, surroundings: Surroundings) -> Self {
        let Surroundings { registry, ask, refusals, waits, metrics } = surroundings;
        let listening = Listening::new(registry, ask);
        Self { store, member, waits, refusals, clock, metrics, listening }
    }

    /// Looks at `key` once.
    pub async fn run(&self, key: Key) -> Outcome {
        let published = self.store.read();
        if !published.role.may_plan {
            self.waits.replace(None);
            // Whoever becomes leader wakes every key.
            return Outcome::Done;
        }
        let now = self.clock.now();
        let plan = match key {
            Key::Level => reconcile_level(&published.state),
            Key::Members => return self.members(&published).await,
            Key::Tokens => reap_tokens(&published.state, now),
            Key::Service(id) => reconcile_service(&published.state, &id, now),
            Key::Reap(id) => reap(&published.state, &id),
            Key::Schedule => self.schedule(&published, now),
            Key::Liveness => {
                let told = self.listening.ask(&published, self.member).await;
                // Much may have happened meanwhile.
                let published = self.store.read();
                if !published.role.may_plan {
                    return Outcome::Done;
                }
                self.listening.judge(&published, told, self.clock.now())
            }
        };
        self.carry_out(plan).await
    }

    fn schedule(&self, published: &Published, now: Timestamp) -> Plan {
        let began = Instant::now();
        let placement = schedule(&published.state, now);
        self.metrics.ran(began.elapsed(), placement.assignments.len());
        let commands = placement.command(&published.state, now).into_iter().collect();
        self.refusals.replace(placement.refusals);
        Plan { commands, recheck_after: placement.recheck_after }
    }

    async fn carry_out(&self, plan: Plan) -> Outcome {
        for command in plan.commands {
            match self.store.propose_here(command).await {
                // A plan made on an older state: what changed since has woken the key again.
                Ok(_) | Err(ProposeError::Rejected(_) | ProposeError::NotLeader | ProposeError::Stopping) => {
                }
                // Told where it was noticed; every key would tell it again.
                Err(ProposeError::Held(_)) => return Outcome::RecheckAfter(HELD),
                Err(error) => return Outcome::Failed(error.into()),
            }
        }
        plan.recheck_after.map_or(Outcome::Done, Outcome::RecheckAfter)
    }
}
