//! Commands on join tokens, and joining with one.

use std::sync::Arc;

use warren_types::{NodeDescription, NodeId, NodeName, NodeRole, Token, TokenHash, TokenId, Violation};

use super::{Entry, node};
use crate::state::level::SEVERAL_MANAGERS;
use crate::state::tokens::forgotten_at;
use crate::state::{Answer, Change, Kind, MAX_TOKENS, Refusal, State, digest};

/// How much the lifetimes of a token and of its repeated request may differ: each counts from the moment at which the
/// manager that was asked made the request a command, and to the moment at which it was applied.
const LIFETIME_SLACK_MS: u64 = 20_000;

pub(super) fn create(state: &mut State, entry: &mut Entry, token: Token) -> Result<Answer, Refusal> {
    let id = token.id;
    let taken = || Refusal::AlreadyExists { kind: Kind::Token, name: id.to_string() };
    if let Some(known) = state.tokens.get(&id) {
        let wanted = |token: &Token| (token.role, token.hash, token.max_uses);
        let is_same = wanted(known) == wanted(&token) && has_lifetime_of(known, &token);
        return is_same.then(|| Answer::Token(known.clone())).ok_or_else(taken);
    }
    if state.index.token_hashes.contains_key(&token.hash) {
        return Err(taken());
    }
    let invalid = |path, message| Err(Refusal::Invalid(Violation::new(path, message).into()));
    if token.max_uses == Some(0) {
        return invalid("maxUses", "0 lets no machine join; leave it out for any number");
    }
    if token.is_expired(entry.now) {
        return invalid("expiresAt", "lies in the past; give a time to come, or none");
    }
    if state.tokens.len() >= MAX_TOKENS {
        return Err(Refusal::TooManyTokens { found: u32::try_from(state.tokens.len()).unwrap_or(u32::MAX) });
    }
    state.index.token_hashes.insert(token.hash, id);
    state.sum.add(digest::token(&token));
    let token = Arc::new(token);
    state.tokens.insert(id, token.clone());
    entry.changes.push(Change::Token(id));
    Ok(Answer::Token(token))
}

/// A repeated request begins later and so asks for a later end.
fn has_lifetime_of(known: &Token, again: &Token) -> bool {
    let lifetime = |token: &Token| token.expires_at.map(|end| end.0.saturating_sub(token.created_at.0));
    match (lifetime(known), lifetime(again)) {
        (Some(known), Some(again)) => known.abs_diff(again) <= LIFETIME_SLACK_MS,
        (known, again) => known == again,
    }
}

pub(super) fn remove(state: &mut State, entry: &mut Entry, id: TokenId) -> Answer {
    let Some(token) = state.tokens.remove(&id) else { return Answer::Done };
    state.index.token_hashes.remove(&token.hash);
    state.sum.remove(digest::token(&token));
    entry.changes.push(Change::Token(id));
    Answer::Token(token)
}

/// Forgets those that expired a while ago.
pub(super) fn delete(state: &mut State, entry: &mut Entry, tokens: &[TokenId]) -> Answer {
    for id in tokens.iter().copied() {
        let over = state.tokens.get(&id).and_then(|token| forgotten_at(token));
        if over.is_some_and(|time| time <= entry.now) {
            remove(state, entry, id);
        }
    }
    Answer::Done
}

/// A machine that joined with the token and does not know that it did may say so again, as long as the token is
/// there and has not expired: only a machine that is new counts as a use.
pub(super) fn join(
    state: &mut State,
    entry: &mut Entry,
    hash: TokenHash,
    id: NodeId,
    name: &NodeName,
    description: &NodeDescription,
) -> Result<Answer, Refusal> {
    let (token, role) = valid(state, entry, &hash)?;
    if role != NodeRole::Worker && state.level >= SEVERAL_MANAGERS {
        return Err(Refusal::TokenRole { wanted: NodeRole::Worker, found: role });
    }
    let known = state.nodes.contains_key(&id);
    if !known {
        check_use(state, token)?;
    }
    let answer = node::register(state, entry, id, name, role, description)?;
    if !known {
        use_once(state, entry, token);
    }
    Ok(answer)
}

/// The token with that secret, which has not expired, and what it makes of machines.
pub(super) fn valid(state: &State, entry: &Entry, hash: &TokenHash) -> Result<(TokenId, NodeRole), Refusal> {
    let token = state.token_of(hash).ok_or(Refusal::TokenUnknown)?;
    if token.is_expired(entry.now) { Err(Refusal::TokenExpired) } else { Ok((token.id, token.role)) }
}

/// Refuses one that no other machine may use.
pub(super) fn check_use(state: &State, id: TokenId) -> Result<(), Refusal> {
    let token = state.tokens.get(&id).ok_or(Refusal::TokenUnknown)?;
    if token.is_used_up() { Err(Refusal::TokenUsedUp { uses: token.uses }) } else { Ok(()) }
}

/// A machine joined with it.
pub(super) fn use_once(state: &mut State, entry: &mut Entry, id: TokenId) {
    let Some(shared) = state.tokens.get_mut(&id) else { return };
    state.sum.remove(digest::token(shared));
    let token = Arc::make_mut(shared);
    token.uses = token.uses.saturating_add(1);
    token.version = entry.index;
    state.sum.add(digest::token(token));
    entry.changes.push(Change::Token(id));
}
