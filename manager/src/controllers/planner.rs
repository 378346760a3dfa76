//! Runs the pure planners: reads the newest state, asks one of them, proposes what it says.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use warren_control::Outcome;
use warren_core::{LEVEL, Liveness, Plan, reap, reap_tokens, reconcile_level, reconcile_service, schedule};
use warren_types::Timestamp;

use super::Refusals;
use super::key::Key;
use crate::metrics::scheduler::SchedulerMetrics;
use crate::session::Registry;
use crate::stamp::Stamp;
use crate::store::{ProposeError, Published, Store};

/// A node that is down is looked at this often, whether it came back.
const LISTEN: Duration = Duration::from_secs(1);

/// While the log cannot be written, plans are tried this often.
const HELD: Duration = Duration::from_secs(1);

/// What the planning loop needs. One per manager; only a leader's does anything.
pub struct Planner {
    store: Store,
    registry: Registry,
    refusals: Refusals,
    clock: Stamp,
    metrics: SchedulerMetrics,
    /// Silence is measured from here, on a clock that does not jump.
    started: Instant,
    /// When nodes were heard, since the term that stands with it: a new leader listens anew.
    liveness: Mutex<Option<(u64, Liveness)>>,
}

impl Planner {
    /// Plans over `store`.
    pub fn new(
        store: Store,
        registry: Registry,
        refusals: Refusals,
        clock: Stamp,
        metrics: SchedulerMetrics,
    ) -> Self {
        let started = Instant::now();
        Self { store, registry, refusals, clock, metrics, started, liveness: Mutex::new(None) }
    }

    /// Looks at `key` once.
    pub async fn run(&self, key: Key) -> Outcome {
        let published = self.store.read();
        if !published.role.may_plan {
            // Whoever becomes leader wakes every key.
            return Outcome::Done;
        }
        let now = self.clock.now();
        let plan = match key {
            // This manager is the only member.
            Key::Level => reconcile_level(&published.state, [LEVEL]),
            Key::Tokens => reap_tokens(&published.state, now),
            Key::Service(id) => reconcile_service(&published.state, &id, now),
            Key::Reap(id) => reap(&published.state, &id),
            Key::Schedule => self.schedule(&published, now),
            Key::Liveness => self.liveness(&published, now),
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

    fn liveness(&self, published: &Published, now: Timestamp) -> Plan {
        let (state, term) = (&published.state, published.role.term);
        let elapsed = self.started.elapsed();
        let mut liveness = self.liveness.lock().unwrap_or_else(PoisonError::into_inner);
        let listening = liveness.take().filter(|(started, _)| *started == term).map(|(_, heard)| heard);
        let mut heard = listening.unwrap_or_else(|| Liveness::start(state, elapsed));
        for (node, at) in self.registry.contacts() {
            heard.heard(node, at.saturating_duration_since(self.started));
        }
        let judgement = heard.judge(state, elapsed);
        *liveness = Some((term, heard));
        let recheck_after = judgement.recheck_after.map_or(LISTEN, |next| next.min(LISTEN));
        Plan { commands: judgement.commands(state, now), recheck_after: Some(recheck_after) }
    }

    async fn carry_out(&self, plan: Plan) -> Outcome {
        for command in plan.commands {
            match self.store.propose(command).await {
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
