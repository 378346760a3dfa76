//! Commands on managers.

use std::sync::Arc;

use warren_types::{
    ManagerAddress, ManagerId, Member, MemberId, NodeName, NodeRole, PublicKeyHash, Suffrage, TokenHash,
    Violation,
};

use super::{ApplyContext, node, token};
use crate::state::{
    Command, CommandResponse, DepartedManager, MAX_MEMBERS, MAX_REMOVED_NODES, ObjectKind, Refusal, State,
    StateChange, digest,
};

/// A manager's description of itself.
#[derive(Clone, Copy)]
struct MemberInfo<'a> {
    id: ManagerId,
    name: &'a NodeName,
    address: &'a ManagerAddress,
    level: u32,
}

pub(super) fn execute(
    state: &mut State,
    entry: &mut ApplyContext,
    command: &Command,
) -> Result<CommandResponse, Refusal> {
    match command {
        Command::RegisterMember { member, id, name, address, level, .. } => {
            register(state, entry, *member, MemberInfo { id: *id, name, address, level: *level })
        }
        Command::JoinManager { hash, id, name, address, level, .. } => {
            join(state, entry, hash, MemberInfo { id: *id, name, address, level: *level })
        }
        Command::UpdateMember { member, version, desired_suffrage: wanted, address, .. } => {
            update(state, entry, *member, *version, (*wanted, address.as_ref()))
        }
        Command::RemoveMember { member, .. } => remove(state, entry, *member),
        Command::DeleteMember { member, .. } => delete(state, entry, *member),
        other => unreachable!("sorted by `State::carry_out`: {other:?}"),
    }
}

/// A manager registers itself at its start. The first one creates the group's first record.
fn register(
    state: &mut State,
    entry: &mut ApplyContext,
    member: MemberId,
    word: MemberInfo,
) -> Result<CommandResponse, Refusal> {
    if state.members.is_empty() {
        return register_first(state, entry, member, word);
    }
    let known = state.members.get(&member).filter(|known| known.manager_id == word.id);
    let known = known.cloned().ok_or_else(|| Refusal::not_found(ObjectKind::Manager, word.id))?;
    let MemberInfo { id: _, name, address, level } = word;
    if known.name == *name && known.address == *address && known.level == level {
        return Ok(CommandResponse::Member(known));
    }
    check_unique(state, &known, name, address)?;
    update_member(state, entry, member, |member| {
        member.name = name.clone();
        member.address = address.clone();
        member.level = level;
    })
}

/// A cluster that was just created, or is from before multiple managers.
fn register_first(
    state: &mut State,
    entry: &mut ApplyContext,
    member: MemberId,
    word: MemberInfo,
) -> Result<CommandResponse, Refusal> {
    let least = state.next_member_id.max(1);
    let next = member.checked_add(1).filter(|_| member >= least);
    let next = next.ok_or_else(|| {
        let message = format!("{member} cannot be the first manager's; give {least} or more");
        Refusal::Invalid(Violation::new("member", message).into())
    })?;
    Ok(add(state, entry, (member, next), word, None))
}

/// A host joins as a manager with a token. One that did and does not know it may repeat the request, as long
/// as the token exists and has not expired.
fn join(
    state: &mut State,
    entry: &mut ApplyContext,
    hash: &TokenHash,
    word: MemberInfo,
) -> Result<CommandResponse, Refusal> {
    let (token, role) = token::find_valid(state, entry, hash)?;
    if role != NodeRole::Manager {
        return Err(Refusal::TokenRoleMismatch { wanted: NodeRole::Manager, found: role });
    }
    if let Some(known) = state.member_of_manager(&word.id) {
        return if known.removing {
            Err(removing_refusal(known))
        } else {
            Ok(CommandResponse::Member(known.clone()))
        };
    }
    token::check_use(state, token)?;
    if word.level < state.feature_level {
        return Err(Refusal::FeatureLevelTooLow { wanted: state.feature_level, found: word.level });
    }
    if state.next_member_id == 0 {
        return Err(Refusal::NoRegisteredManager);
    }
    let found = state.members.len();
    let next = state.next_member_id.checked_add(1).filter(|_| found < MAX_MEMBERS);
    let next = next.ok_or(Refusal::TooManyManagers { found: u32::try_from(found).unwrap_or(u32::MAX) })?;
    let replaced = state
        .remaining_members()
        .find(|other| other.address == *word.address && state.replacement_of(other.member_id).is_none());
    let replaced = replaced.cloned();
    // If a host lost its data twice, the record in between never took over, and never will.
    let between = replaced.as_ref().filter(|known| known.replaces.is_some()).map(|known| known.member_id);
    let replaces = replaced.as_ref().map(|known| known.replaces.unwrap_or(known.member_id));
    let shared: Vec<MemberId> = between.into_iter().chain(replaces).collect();
    state.check_unique_member(word.name, word.address, &shared)?;
    if let Some(between) = between {
        update_member(state, entry, between, mark_removing)?;
    }
    let answer = add(state, entry, (state.next_member_id, next), word, replaces);
    token::count_use(state, entry, token);
    node::reset_node(state, entry, (word.name, word.address.host()), replaces);
    Ok(answer)
}

/// Adds a member that is to vote: its id, and the one after it.
fn add(
    state: &mut State,
    entry: &mut ApplyContext,
    (member, next): (MemberId, MemberId),
    word: MemberInfo,
    replaces: Option<MemberId>,
) -> CommandResponse {
    let MemberInfo { id, name, address, level } = word;
    let record = Member {
        member_id: member,
        manager_id: id,
        name: name.clone(),
        address: address.clone(),
        desired_suffrage: Suffrage::Voter,
        replaces,
        removing: false,
        level,
        version: entry.index,
        created_at: entry.now,
        administrator_key: None,
    };
    state.forget_departure(id);
    state.digest_sum.add(digest::member(&record));
    let record = Arc::new(record);
    state.members.insert(member, record.clone());
    state.next_member_id = next;
    entry.changes.push(StateChange::Member(member));
    CommandResponse::Member(record)
}

/// Changes the suffrage and the address of a manager; `None` keeps the value.
fn update(
    state: &mut State,
    entry: &mut ApplyContext,
    member: MemberId,
    version: Option<u64>,
    (desired, address): (Option<Suffrage>, Option<&ManagerAddress>),
) -> Result<CommandResponse, Refusal> {
    let known = state.members.get(&member).cloned();
    let known = known.ok_or_else(|| Refusal::not_found(ObjectKind::Manager, member))?;
    let (required, address) = (desired.unwrap_or(known.desired_suffrage), address.unwrap_or(&known.address));
    if known.desired_suffrage == required && known.address == *address {
        return Ok(CommandResponse::Member(known));
    }
    if let Some(wanted) = version.filter(|version| *version != known.version) {
        let (name, found) = (known.name.to_string(), known.version);
        return Err(Refusal::VersionConflict { kind: ObjectKind::Manager, name, expected: wanted, found });
    }
    if known.removing {
        return Err(removing_refusal(&known));
    }
    if required == Suffrage::Learner {
        state.check_other_voters(&known)?;
    }
    check_unique(state, &known, &known.name, address)?;
    update_member(state, entry, member, |member| {
        member.desired_suffrage = required;
        member.address = address.clone();
    })
}

/// Lists the key of the administrator of a manager's machine.
pub(super) fn set_administrator_key(
    state: &mut State,
    entry: &mut ApplyContext,
    member: MemberId,
    key: PublicKeyHash,
) -> Result<CommandResponse, Refusal> {
    let known = state.members.get(&member).cloned();
    let known = known.ok_or_else(|| Refusal::not_found(ObjectKind::Manager, member))?;
    // A manager that finds that its key is revoked makes another one.
    if known.administrator_key == Some(key) || state.is_revoked(&key) {
        return Ok(CommandResponse::Member(known));
    }
    state.revoke_administrator(&known, entry.now);
    update_member(state, entry, member, |member| member.administrator_key = Some(key))
}

/// Marks a manager for removal; it leaves the raft group first.
fn remove(state: &mut State, entry: &mut ApplyContext, member: MemberId) -> Result<CommandResponse, Refusal> {
    let Some(known) = state.members.get(&member).cloned() else { return Ok(CommandResponse::Done) };
    if known.removing {
        return Ok(CommandResponse::Member(known));
    }
    state.check_other_voters(&known)?;
    state.revoke_administrator(&known, entry.now);
    update_member(state, entry, member, mark_removing)
}

/// Deletes a manager that is out of the raft group.
fn delete(state: &mut State, entry: &mut ApplyContext, member: MemberId) -> Result<CommandResponse, Refusal> {
    let Some(known) = state.members.get(&member).cloned() else { return Ok(CommandResponse::Done) };
    let replacement = state.replacement_of(member).map(|other| other.member_id);
    if !known.removing && replacement.is_none() {
        return Err(Refusal::ManagerNotRemoving { manager: known.name.clone() });
    }
    if let Some(replacement) = replacement {
        update_member(state, entry, replacement, |member| member.replaces = None)?;
    }
    state.digest_sum.remove(digest::member(&known));
    state.members.remove(&member);
    state.revoke_administrator(&known, entry.now);
    state.record_departure(known.manager_id, DepartedManager { member, index: entry.index });
    entry.changes.push(StateChange::Member(member));
    Ok(CommandResponse::Done)
}

/// A member that is removed replaces no other.
fn mark_removing(member: &mut Member) {
    member.removing = true;
    member.replaces = None;
}

fn removing_refusal(member: &Member) -> Refusal {
    Refusal::ManagerRemoving { manager: member.name.clone() }
}

/// Rejects a name or an address of another manager, except for the one that it replaces, or that replaces it.
fn check_unique(
    state: &State,
    known: &Member,
    name: &NodeName,
    address: &ManagerAddress,
) -> Result<(), Refusal> {
    if known.removing {
        return Ok(());
    }
    let replacement = state.replacement_of(known.member_id).map(|other| other.member_id);
    let shared: Vec<MemberId> =
        [known.member_id].into_iter().chain(known.replaces).chain(replacement).collect();
    state.check_unique_member(name, address, &shared)
}

pub(super) fn update_member(
    state: &mut State,
    entry: &mut ApplyContext,
    id: MemberId,
    change: impl FnOnce(&mut Member),
) -> Result<CommandResponse, Refusal> {
    let shared = state.members.get_mut(&id).ok_or_else(|| Refusal::not_found(ObjectKind::Manager, id))?;
    state.digest_sum.remove(digest::member(shared));
    let member = Arc::make_mut(shared);
    change(member);
    member.version = entry.index;
    state.digest_sum.add(digest::member(member));
    entry.changes.push(StateChange::Member(id));
    Ok(CommandResponse::Member(shared.clone()))
}

impl State {
    /// The manager is a member again, so it has not departed.
    pub(super) fn forget_departure(&mut self, manager: ManagerId) {
        if let Some(departed) = self.departed_managers.remove(&manager) {
            self.digest_sum.remove(digest::departed_manager(manager, departed));
        }
    }

    /// Records that a manager left. Beyond the limit the oldest record is deleted.
    pub(super) fn record_departure(&mut self, manager: ManagerId, departed: DepartedManager) {
        self.forget_departure(manager);
        self.digest_sum.add(digest::departed_manager(manager, departed));
        self.departed_managers.insert(manager, departed);
        if self.departed_managers.len() > MAX_REMOVED_NODES {
            let oldest =
                self.departed_managers.iter().min_by_key(|(_, departed)| (departed.index, departed.member));
            if let Some(manager) = oldest.map(|(manager, _)| *manager) {
                self.forget_departure(manager);
            }
        }
    }
}
