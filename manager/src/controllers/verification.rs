//! Runs the checks of nodes that are due while this manager leads. [`reconcile_verification`] decides.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warren_api::Api;
use warren_control::RunOutcome;
use warren_core::{Command, CommandResponse, reconcile_verification};
use warren_store::PublishedState;
use warren_telemetry::{Counter, Family, Registry};
use warren_types::{Node, NodeCheckResult, NodeId, Timestamp};

/// Counts the results of checks.
#[derive(Debug, Clone, Default)]
pub struct VerificationMetrics {
    results: Family<[(&'static str, String); 2], Counter>,
}

impl VerificationMetrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Results of the checks of nodes, by check and result";
        registry.register("warren_node_checks", help, self.results.clone());
    }

    /// Counts one result.
    pub fn record(&self, result: &NodeCheckResult) {
        let labels = [("check", result.name.clone()), ("result", result.outcome.as_str().to_owned())];
        self.results.get_or_create(&labels).inc();
    }
}

/// Begins and records the checks of nodes. Clones share which checks run.
#[derive(Clone)]
pub struct NodeVerifier {
    api: Api,
    metrics: VerificationMetrics,
    running: Arc<Mutex<BTreeSet<NodeId>>>,
}

impl NodeVerifier {
    /// Reaches nodes over `api`.
    pub fn new(api: Api, metrics: VerificationMetrics) -> Self {
        Self { api, metrics, running: Arc::default() }
    }

    fn running(&self) -> MutexGuard<'_, BTreeSet<NodeId>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes nodes that fail for good, and begins the checks that are due. `published` is the leader's state.
    pub async fn reconcile(&self, published: &PublishedState, now: Timestamp) -> RunOutcome {
        let running = self.running().clone();
        let plan = reconcile_verification(&published.state, &running, now);
        for command in plan.commands {
            if let Err(error) = self.api.store.propose_locally(command).await {
                tracing::warn!(%error, "a node that is not verified was not removed; retrying");
            }
        }
        for node in plan.begin {
            let command = Command::BeginVerification { term: published.role.term, node, at: now };
            match self.api.store.propose_locally(command).await {
                Ok(CommandResponse::Node(node)) => self.start(published.role.term, &node),
                Ok(_) => {}
                Err(error) => tracing::debug!(%node, %error, "checks not begun; retrying"),
            }
        }
        plan.recheck_after.map_or(RunOutcome::Done, RunOutcome::RequeueAfter)
    }

    fn start(&self, term: u64, node: &Node) {
        let (id, name) = (node.id, node.name.clone());
        let answered = node.verification.as_ref().map_or(0, |verification| verification.requested);
        self.running().insert(id);
        let verifier = self.clone();
        self.api.shutdown.spawn_cancellable("verification", async move {
            let results = verifier.api.verify_node(id).await;
            results.iter().for_each(|result| verifier.metrics.record(result));
            let at = verifier.api.clock.now();
            let command = Command::RecordVerification { term, node: id, answered, results, at };
            match verifier.api.store.propose_locally(command).await {
                Ok(CommandResponse::Node(node)) => log_result(&node),
                Ok(_) => {}
                // They run again, here or at the next leader.
                Err(error) => tracing::debug!(node = %name, %error, "results of checks not recorded"),
            }
            verifier.running().remove(&id);
        });
    }
}

fn log_result(node: &Node) {
    let Some(verification) = node.verification.as_deref() else { return };
    match verification.failed_check() {
        None => tracing::info!(node = %node.name, "node verified"),
        Some(failed) => {
            let failures = verification.failures;
            tracing::warn!(node = %node.name, check = failed.name, failures, "node not verified");
        }
    }
}
