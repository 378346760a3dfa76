//! Commands on join tokens, and joining with one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use warren_types::{
    NodeDescription, NodeId, NodeName, NodeRole, Taint, Token, TokenHash, TokenId, Violation, Violations,
    validate_token_labels,
};

use super::ApplyContext;
use super::node::{self, NewNode};
use crate::state::feature_level::MULTI_MANAGER_LEVEL;
use crate::state::limits::delete_at;
use crate::state::{CommandResponse, MAX_TOKENS, ObjectKind, Refusal, State, StateChange, digest};

/// How much the lifetimes of a token and of its repeated request may differ: each counts from the moment at
/// which a manager made the request a command, to the moment at which it was applied.
const LIFETIME_SLACK_MS: u64 = 20_000;

pub(super) fn create(
    state: &mut State,
    entry: &mut ApplyContext,
    token: Token,
) -> Result<CommandResponse, Refusal> {
    let id = token.id;
    let taken = || Refusal::AlreadyExists { kind: ObjectKind::Token, name: id.to_string() };
    if let Some(known) = state.tokens.get(&id) {
        let desired = |token: &Token| (token.role, token.hash, token.max_uses);
        let is_same = desired(known) == desired(&token) && known.labels == token.labels;
        let is_same = is_same && has_same_lifetime(known, &token);
        return is_same.then(|| CommandResponse::Token(known.clone())).ok_or_else(taken);
    }
    if state.index.token_hashes.contains_key(&token.hash) {
        return Err(taken());
    }
    let invalid = |path, message| Err(Refusal::Invalid(Violation::new(path, message).into()));
    if token.max_uses == Some(0) {
        return invalid("maxUses", "0 allows no join; leave it out for no limit");
    }
    if token.is_expired(entry.now) {
        return invalid("expiresAt", "is in the past; give a future time or none");
    }
    let mut wrong = Violations::default();
    validate_token_labels(token.role, &token.labels, &mut wrong);
    wrong.into_result(()).map_err(Refusal::Invalid)?;
    if state.tokens.len() >= MAX_TOKENS {
        return Err(Refusal::TooManyTokens { found: u32::try_from(state.tokens.len()).unwrap_or(u32::MAX) });
    }
    state.index.token_hashes.insert(token.hash, id);
    state.digest_sum.add(digest::token(&token));
    let token = Arc::new(token);
    state.tokens.insert(id, token.clone());
    entry.changes.push(StateChange::Token(id));
    Ok(CommandResponse::Token(token))
}

/// A repeated request starts later and so has a later expiry.
fn has_same_lifetime(known: &Token, again: &Token) -> bool {
    let lifetime = |token: &Token| token.expires_at.map(|end| end.0.saturating_sub(token.created_at.0));
    match (lifetime(known), lifetime(again)) {
        (Some(known), Some(again)) => known.abs_diff(again) <= LIFETIME_SLACK_MS,
        (known, again) => known == again,
    }
}

pub(super) fn remove(state: &mut State, entry: &mut ApplyContext, id: TokenId) -> CommandResponse {
    let Some(token) = state.tokens.remove(&id) else { return CommandResponse::Done };
    state.index.token_hashes.remove(&token.hash);
    state.digest_sum.remove(digest::token(&token));
    entry.changes.push(StateChange::Token(id));
    CommandResponse::Token(token)
}

/// Deletes tokens that expired some time ago.
pub(super) fn delete(state: &mut State, entry: &mut ApplyContext, tokens: &[TokenId]) -> CommandResponse {
    for id in tokens.iter().copied() {
        let over = state.tokens.get(&id).and_then(|token| delete_at(token));
        if over.is_some_and(|time| time <= entry.now) {
            remove(state, entry, id);
        }
    }
    CommandResponse::Done
}

/// A host that joined with the token and does not know it may repeat the request, as long as the token exists
/// and has not expired: only a new host counts as a use.
pub(super) fn join(
    state: &mut State,
    entry: &mut ApplyContext,
    hash: TokenHash,
    id: NodeId,
    name: &NodeName,
    (description, taints): (&NodeDescription, &BTreeSet<Taint>),
) -> Result<CommandResponse, Refusal> {
    let (token, role) = find_valid(state, entry, &hash)?;
    if role != NodeRole::Worker && state.feature_level >= MULTI_MANAGER_LEVEL {
        return Err(Refusal::TokenRoleMismatch { wanted: NodeRole::Worker, found: role });
    }
    let known = state.nodes.contains_key(&id);
    if !known {
        check_use(state, token)?;
    }
    let held = state.tokens.get(&token).cloned();
    let none = BTreeMap::new();
    let labels = held.as_ref().map_or(&none, |token| &token.labels);
    let answer = node::register(state, entry, id, name, role, NewNode { description, labels, taints })?;
    if !known {
        count_use(state, entry, token);
    }
    Ok(answer)
}

/// The token with that secret, which has not expired, and its role.
pub(super) fn find_valid(
    state: &State,
    entry: &ApplyContext,
    hash: &TokenHash,
) -> Result<(TokenId, NodeRole), Refusal> {
    let token = state.token_by_hash(hash).ok_or(Refusal::TokenNotFound)?;
    if token.is_expired(entry.now) { Err(Refusal::TokenExpired) } else { Ok((token.id, token.role)) }
}

/// Rejects a token that no further host may use.
pub(super) fn check_use(state: &State, id: TokenId) -> Result<(), Refusal> {
    let token = state.tokens.get(&id).ok_or(Refusal::TokenNotFound)?;
    if token.is_exhausted() { Err(Refusal::TokenExhausted { uses: token.uses }) } else { Ok(()) }
}

/// Counts a host that joined with it.
pub(super) fn count_use(state: &mut State, entry: &mut ApplyContext, id: TokenId) {
    let Some(shared) = state.tokens.get_mut(&id) else { return };
    state.digest_sum.remove(digest::token(shared));
    let token = Arc::make_mut(shared);
    token.uses = token.uses.saturating_add(1);
    token.version = entry.index;
    state.digest_sum.add(digest::token(token));
    entry.changes.push(StateChange::Token(id));
}
