//! Deletes join tokens.

use warren_types::{Timestamp, TokenId};

use super::ReconcilePlan;
use crate::state::{Command, State, delete_at};

/// Deletes join tokens a day after they expired.
pub fn reap_tokens(state: &State, now: Timestamp) -> ReconcilePlan {
    let times = || state.tokens().filter_map(|token| Some((token.id, delete_at(token)?)));
    let over: Vec<TokenId> = times().filter(|(_, time)| *time <= now).map(|(id, _)| id).collect();
    let next = times().map(|(_, time)| time).filter(|time| *time > now).min();
    let term = state.applied().term;
    let delete = (!over.is_empty()).then_some(Command::DeleteTokens { term, tokens: over, at: now });
    ReconcilePlan {
        commands: delete.into_iter().collect(),
        recheck_after: next.map(|time| time.saturating_since(now)),
        pause: None,
    }
}
