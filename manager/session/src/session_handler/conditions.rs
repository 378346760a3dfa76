//! Stores node conditions in the replicated state when they change.

use std::collections::BTreeSet;

use tokio::sync::watch;
use tonic::Status;
use warren_core::state::ObjectKind;
use warren_core::{Command, Refusal};
use warren_proto::convert::node_condition;
use warren_store::ProposeError;
use warren_store::problem::node_removed;
use warren_types::NodeCondition;

use super::SessionHandler;

/// The conditions reported last; `None` before the first report.
pub type ReportedConditions = Option<BTreeSet<NodeCondition>>;

/// Parses the conditions of a heartbeat. Unknown conditions of later versions are skipped.
pub fn parse(kinds: &[i32]) -> BTreeSet<NodeCondition> {
    kinds.iter().filter_map(|kind| node_condition(*kind).ok()).collect()
}

impl SessionHandler<'_> {
    /// Replicates the reported conditions of the node. Every heartbeat is compared with the state, so a
    /// failed write is retried with the next one.
    ///
    /// # Errors
    /// The node was removed.
    pub(super) async fn replicate_conditions(
        &self,
        mut reported: watch::Receiver<ReportedConditions>,
    ) -> Result<(), Status> {
        while reported.changed().await.is_ok() {
            let Some(conditions) = reported.borrow_and_update().clone() else { continue };
            let published = self.context.store.read();
            if published.state.node(&self.node).is_none_or(|node| node.conditions == conditions) {
                continue;
            }
            let text: Vec<&str> = conditions.iter().map(|condition| condition.as_str()).collect();
            let text = text.join(", ");
            let (node, session, at) = (self.node, self.session_number, self.context.clock.now());
            let command = Command::SetNodeConditions { node, session, conditions, at };
            match Box::pin(self.context.store.propose(command)).await {
                Ok(_) => tracing::info!(%node, conditions = text, "node conditions changed"),
                Err(ProposeError::Rejected(Refusal::NotFound { kind: ObjectKind::Node, .. })) => {
                    return Err(node_removed());
                }
                // Also returned for a superseded session, which ends by itself.
                Err(error) => {
                    tracing::debug!(%node, %error, "storing node conditions failed; retrying with the next heartbeat")
                }
            }
        }
        Ok(())
    }
}
