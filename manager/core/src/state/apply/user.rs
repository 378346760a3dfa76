//! Commands on users, and logging in.

use std::sync::Arc;

use warren_types::{
    ADMINISTRATOR, LoginToken, MAX_USER_KEYS, PublicKeyHash, Timestamp, TokenHash, User, UserId, UserName,
    UserRole, Violation,
};

use super::ApplyContext;
use super::member::update_member;
use crate::state::{CommandResponse, MAX_USERS, ObjectKind, Refusal, State, StateChange, digest};

/// A user as it is to be created.
pub(super) struct DesiredUser<'a> {
    pub name: &'a UserName,
    pub role: UserRole,
    pub login: LoginToken,
    pub expires_at: Option<Timestamp>,
}

pub(super) fn create(
    state: &mut State,
    entry: &mut ApplyContext,
    id: UserId,
    desired: DesiredUser,
) -> Result<CommandResponse, Refusal> {
    let DesiredUser { name, role, login, expires_at } = desired;
    let taken = || Refusal::AlreadyExists { kind: ObjectKind::User, name: name.to_string() };
    if let Some(known) = state.users.get(&id) {
        let hash = known.login.as_ref().map(|login| login.hash);
        let is_same = known.name == *name && known.role == role && hash == Some(login.hash);
        return is_same.then(|| CommandResponse::User(known.clone())).ok_or_else(taken);
    }
    let invalid = |path, message: &str| Err(Refusal::Invalid(Violation::new(path, message).into()));
    if name.as_str() == ADMINISTRATOR {
        return invalid("name", "admin is the administrator of a manager's machine; give another name");
    }
    if state.index.user_names.contains_key(name) || state.index.login_hashes.contains_key(&login.hash) {
        return Err(taken());
    }
    if expires_at.is_some_and(|end| end <= entry.now) {
        return invalid("expiresAt", "is in the past; give a future time or none");
    }
    if state.users.len() >= MAX_USERS {
        return Err(Refusal::TooManyUsers { found: u32::try_from(state.users.len()).unwrap_or(u32::MAX) });
    }
    let user = User {
        id,
        name: name.clone(),
        role,
        version: entry.index,
        created_at: entry.now,
        expires_at,
        login: Some(login),
        keys: Default::default(),
    };
    Ok(replace(state, entry, None, user))
}

pub(super) fn update(
    state: &mut State,
    entry: &mut ApplyContext,
    (id, version): (UserId, Option<u64>),
    role: Option<UserRole>,
    login: Option<(TokenHash, Timestamp)>,
    remove_keys: bool,
) -> Result<CommandResponse, Refusal> {
    let known = state.users.get(&id).cloned();
    let known = known.ok_or_else(|| Refusal::not_found(ObjectKind::User, id))?;
    let mut changed = User { role: role.unwrap_or(known.role), ..(*known).clone() };
    if let Some((hash, expires_at)) = login
        && known.login.as_ref().is_none_or(|login| login.hash != hash)
    {
        if state.index.login_hashes.contains_key(&hash) || state.index.token_hashes.contains_key(&hash) {
            return Err(Refusal::AlreadyExists { kind: ObjectKind::Token, name: known.name.to_string() });
        }
        changed.login = Some(LoginToken { hash, expires_at, used_by: None });
    }
    if remove_keys {
        changed.keys.clear();
        // A repeated login with a key that was removed must not list it again.
        changed.login.take_if(|login| login.used_by.is_some());
    }
    if changed == *known {
        return Ok(CommandResponse::User(known));
    }
    if let Some(expected) = version.filter(|version| *version != known.version) {
        let (kind, name, found) = (ObjectKind::User, known.name.to_string(), known.version);
        return Err(Refusal::VersionConflict { kind, name, expected, found });
    }
    changed.version = entry.index;
    let response = replace(state, entry, Some(&known), changed);
    if remove_keys {
        revoke_all(state, entry, &known);
    }
    Ok(response)
}

pub(super) fn remove(state: &mut State, entry: &mut ApplyContext, id: UserId) -> CommandResponse {
    let Some(user) = state.users.remove(&id) else { return CommandResponse::Done };
    state.index.remove_user_record(&user);
    state.digest_sum.remove(digest::user(&user));
    revoke_all(state, entry, &user);
    entry.changes.push(StateChange::User(id));
    CommandResponse::User(user)
}

/// Revokes the keys that a user had.
fn revoke_all(state: &mut State, entry: &ApplyContext, user: &User) {
    user.keys.keys().for_each(|key| state.record_revocation(*key, user.name.as_str(), entry.now));
}

/// Revokes one key of a user, or that of the administrator of a manager's machine. The others stay.
pub(super) fn revoke_key(
    state: &mut State,
    entry: &mut ApplyContext,
    key: PublicKeyHash,
) -> Result<CommandResponse, Refusal> {
    if state.is_revoked(&key) {
        return Ok(CommandResponse::Done);
    }
    if let Some(known) = state.user_by_key(&key).cloned() {
        let mut changed = User { version: entry.index, ..User::clone(&known) };
        changed.keys.remove(&key);
        changed.login.take_if(|login| login.used_by == Some(key));
        replace(state, entry, Some(&known), changed);
        state.record_revocation(key, known.name.as_str(), entry.now);
        return Ok(CommandResponse::Done);
    }
    let member = state.members().find(|member| member.administrator_key == Some(key)).cloned();
    let member = member.ok_or_else(|| Refusal::not_found(ObjectKind::User, format!("with the key {key}")))?;
    state.revoke_administrator(&member, entry.now);
    // The key stays refused when its entry is deleted. The manager lists another one.
    update_member(state, entry, member.member_id, |member| member.administrator_key = None)?;
    Ok(CommandResponse::Done)
}

/// Lists the key of a user that has a login token with this hash, which is used up by it.
pub(super) fn login(
    state: &mut State,
    entry: &mut ApplyContext,
    hash: &TokenHash,
    key: PublicKeyHash,
) -> Result<CommandResponse, Refusal> {
    let known = state.user_by_login(hash).cloned().ok_or(Refusal::LoginTokenNotFound)?;
    let login = known.login.clone().ok_or(Refusal::LoginTokenNotFound)?;
    if login.expires_at <= entry.now {
        return Err(Refusal::LoginTokenExpired);
    }
    if known.is_expired(entry.now) {
        return Err(Refusal::UserExpired { user: known.name.clone() });
    }
    if state.is_revoked(&key) {
        let message = "is for a key that was revoked; log in again with another key";
        return Err(Refusal::Invalid(Violation::new("certificateRequest", message).into()));
    }
    match login.used_by {
        Some(other) if other != key => return Err(Refusal::LoginTokenNotFound),
        Some(_) if known.keys.contains_key(&key) => return Ok(CommandResponse::User(known)),
        _ => {}
    }
    // A key proves one user.
    if state.index.user_keys.get(&key).is_some_and(|owner| *owner != known.id) {
        return Err(Refusal::AlreadyExists { kind: ObjectKind::User, name: "with this key".to_owned() });
    }
    let found = known.keys.len();
    if found >= MAX_USER_KEYS && !known.keys.contains_key(&key) {
        let found = u32::try_from(found).unwrap_or(u32::MAX);
        return Err(Refusal::TooManyUserKeys { user: known.name.clone(), found });
    }
    let mut changed = (*known).clone();
    changed.keys.insert(key, entry.now);
    changed.login = Some(LoginToken { used_by: Some(key), ..login });
    changed.version = entry.index;
    Ok(replace(state, entry, Some(&known), changed))
}

fn replace(
    state: &mut State,
    entry: &mut ApplyContext,
    known: Option<&User>,
    changed: User,
) -> CommandResponse {
    if let Some(known) = known {
        state.index.remove_user_record(known);
        state.digest_sum.remove(digest::user(known));
    }
    state.index.add_user_record(&changed);
    state.digest_sum.add(digest::user(&changed));
    let (id, changed) = (changed.id, Arc::new(changed));
    state.users.insert(id, changed.clone());
    entry.changes.push(StateChange::User(id));
    CommandResponse::User(changed)
}
