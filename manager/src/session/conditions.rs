//! What is wrong with a node becomes a fact that managers decide by: written when it changes, and only then.

use std::collections::BTreeSet;

use tokio::sync::watch;
use tonic::Status;
use warren_core::state::Kind;
use warren_core::{Command, Refusal};
use warren_proto::convert::node_condition;
use warren_types::NodeCondition;

use super::conversation::Conversation;
use crate::api::problem::node_removed;
use crate::store::ProposeError;

/// What the agent last said; `None` before its first word on it.
pub type Said = Option<BTreeSet<NodeCondition>>;

/// The conditions in a heartbeat. Those of a later version are left out: nothing could be decided by them.
pub fn parse(kinds: &[i32]) -> BTreeSet<NodeCondition> {
    kinds.iter().filter_map(|kind| node_condition(*kind).ok()).collect()
}

impl Conversation<'_> {
    /// Makes what the agent says of its node a fact. Every heartbeat is looked at, so a write that failed is made up
    /// for by the next.
    ///
    /// # Errors
    /// The node was removed.
    pub(super) async fn store_conditions(&self, mut said: watch::Receiver<Said>) -> Result<(), Status> {
        while said.changed().await.is_ok() {
            let Some(conditions) = said.borrow_and_update().clone() else { continue };
            let published = self.server.store.read();
            if published.state.node(&self.node).is_none_or(|node| node.conditions == conditions) {
                continue;
            }
            let words: Vec<&str> = conditions.iter().map(|condition| condition.as_str()).collect();
            let words = words.join(", ");
            let (node, session, at) = (self.node, self.number, self.server.clock.now());
            let command = Command::SetNodeConditions { node, session, conditions, at };
            match Box::pin(self.server.store.propose(command)).await {
                Ok(_) => tracing::info!(%node, conditions = words, "the node's conditions changed"),
                Err(ProposeError::Rejected(Refusal::NotFound { kind: Kind::Node, .. })) => {
                    return Err(node_removed());
                }
                // Of a session that another one replaced as well: it ends by itself.
                Err(error) => {
                    tracing::debug!(%node, %error, "the node's conditions wait for its next heartbeat")
                }
            }
        }
        Ok(())
    }
}
