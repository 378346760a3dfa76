//! Commands on managers.

use std::sync::Arc;

use warren_types::{
    ManagerAddress, ManagerId, Member, MemberId, NodeName, NodeRole, Suffrage, TokenHash, Violation,
};

use super::{Entry, node, token};
use crate::state::{Answer, Change, Command, Departed, Kind, MAX_MEMBERS, Refusal, State, digest};

/// What a manager says of itself.
#[derive(Clone, Copy)]
struct Word<'a> {
    id: ManagerId,
    name: &'a NodeName,
    address: &'a ManagerAddress,
    level: u32,
}

pub(super) fn carry_out(state: &mut State, entry: &mut Entry, command: &Command) -> Result<Answer, Refusal> {
    match command {
        Command::RegisterMember { member, id, name, address, level, .. } => {
            register(state, entry, *member, Word { id: *id, name, address, level: *level })
        }
        Command::JoinManager { hash, id, name, address, level, .. } => {
            join(state, entry, hash, Word { id: *id, name, address, level: *level })
        }
        Command::UpdateMember { member, version, wanted, address, .. } => {
            update(state, entry, *member, *version, (*wanted, address.as_ref()))
        }
        Command::RemoveMember { member, .. } => remove(state, entry, *member),
        Command::DeleteMember { member, .. } => delete(state, entry, *member),
        other => unreachable!("sorted by `State::carry_out`: {other:?}"),
    }
}

/// A manager says at its start what it is. The first one of all makes the group's first record.
fn register(state: &mut State, entry: &mut Entry, member: MemberId, word: Word) -> Result<Answer, Refusal> {
    if state.members.is_empty() {
        return found(state, entry, member, word);
    }
    let known = state.members.get(&member).filter(|known| known.id == word.id);
    let known = known.cloned().ok_or_else(|| Refusal::not_found(Kind::Manager, word.id))?;
    let Word { id: _, name, address, level } = word;
    if known.name == *name && known.address == *address && known.level == level {
        return Ok(Answer::Member(known));
    }
    check_unique(state, &known, name, address)?;
    change(state, entry, member, |member| {
        member.name = name.clone();
        member.address = address.clone();
        member.level = level;
    })
}

/// A cluster that was just founded, or is from before there were several managers.
fn found(state: &mut State, entry: &mut Entry, member: MemberId, word: Word) -> Result<Answer, Refusal> {
    let least = state.next_member.max(1);
    let next = member.checked_add(1).filter(|_| member >= least);
    let next = next.ok_or_else(|| {
        let message = format!("{member} cannot be the first manager's; give {least} or more");
        Refusal::Invalid(Violation::new("member", message).into())
    })?;
    Ok(add(state, entry, (member, next), word, None))
}

/// A machine becomes a manager with a token. One that did and does not know it may say so again, as long as the token
/// is there and has not expired.
fn join(state: &mut State, entry: &mut Entry, hash: &TokenHash, word: Word) -> Result<Answer, Refusal> {
    let (token, role) = token::valid(state, entry, hash)?;
    if role != NodeRole::Manager {
        return Err(Refusal::TokenRole { wanted: NodeRole::Manager, found: role });
    }
    if let Some(known) = state.member_of(&word.id) {
        return if known.removing { Err(removing(known)) } else { Ok(Answer::Member(known.clone())) };
    }
    token::check_use(state, token)?;
    if word.level < state.level {
        return Err(Refusal::LevelTooLow { wanted: state.level, found: word.level });
    }
    if state.next_member == 0 {
        return Err(Refusal::NoManagers);
    }
    let found = state.members.len();
    let next = state.next_member.checked_add(1).filter(|_| found < MAX_MEMBERS);
    let next = next.ok_or(Refusal::TooManyManagers { found: u32::try_from(found).unwrap_or(u32::MAX) })?;
    let replaced = state
        .staying_members()
        .find(|other| other.address == *word.address && state.replacement_of(other.member).is_none());
    let replaced = replaced.cloned();
    // Of a machine that lost its data twice, the one in between never took over, and never will.
    let between = replaced.as_ref().filter(|known| known.replaces.is_some()).map(|known| known.member);
    let replaces = replaced.as_ref().map(|known| known.replaces.unwrap_or(known.member));
    let shared: Vec<MemberId> = between.into_iter().chain(replaces).collect();
    state.check_unique_member(word.name, word.address, &shared)?;
    if let Some(between) = between {
        change(state, entry, between, leave)?;
    }
    let answer = add(state, entry, (state.next_member, next), word, replaces);
    token::use_once(state, entry, token);
    node::begin_anew(state, entry, (word.name, word.address.host()), replaces);
    Ok(answer)
}

/// Adds a member that is to vote: its id, and the one after it.
fn add(
    state: &mut State,
    entry: &mut Entry,
    (member, next): (MemberId, MemberId),
    word: Word,
    replaces: Option<MemberId>,
) -> Answer {
    let Word { id, name, address, level } = word;
    let record = Member {
        member,
        id,
        name: name.clone(),
        address: address.clone(),
        wanted: Suffrage::Voter,
        replaces,
        removing: false,
        level,
        version: entry.index,
        created_at: entry.now,
    };
    state.forget_departure(id);
    state.sum.add(digest::member(&record));
    let record = Arc::new(record);
    state.members.insert(member, record.clone());
    state.next_member = next;
    entry.changes.push(Change::Member(member));
    Answer::Member(record)
}

/// What people want of a manager, and where it is reached; `None` leaves it.
fn update(
    state: &mut State,
    entry: &mut Entry,
    member: MemberId,
    version: Option<u64>,
    (wanted, address): (Option<Suffrage>, Option<&ManagerAddress>),
) -> Result<Answer, Refusal> {
    let known = state.members.get(&member).cloned();
    let known = known.ok_or_else(|| Refusal::not_found(Kind::Manager, member))?;
    let (wanted, address) = (wanted.unwrap_or(known.wanted), address.unwrap_or(&known.address));
    if known.wanted == wanted && known.address == *address {
        return Ok(Answer::Member(known));
    }
    if let Some(wanted) = version.filter(|version| *version != known.version) {
        let (name, found) = (known.name.to_string(), known.version);
        return Err(Refusal::VersionConflict { kind: Kind::Manager, name, wanted, found });
    }
    if known.removing {
        return Err(removing(&known));
    }
    if wanted == Suffrage::Learner {
        state.others_stand(&known)?;
    }
    check_unique(state, &known, &known.name, address)?;
    change(state, entry, member, |member| {
        member.wanted = wanted;
        member.address = address.clone();
    })
}

/// Marks a manager for removal; it leaves the raft group first.
fn remove(state: &mut State, entry: &mut Entry, member: MemberId) -> Result<Answer, Refusal> {
    let Some(known) = state.members.get(&member).cloned() else { return Ok(Answer::Done) };
    if known.removing {
        return Ok(Answer::Member(known));
    }
    state.others_stand(&known)?;
    change(state, entry, member, leave)
}

/// Forgets a manager that is out of the raft group.
fn delete(state: &mut State, entry: &mut Entry, member: MemberId) -> Result<Answer, Refusal> {
    let Some(known) = state.members.get(&member).cloned() else { return Ok(Answer::Done) };
    let replacement = state.replacement_of(member).map(|other| other.member);
    if !known.removing && replacement.is_none() {
        return Err(Refusal::ManagerStays { manager: known.name.clone() });
    }
    if let Some(replacement) = replacement {
        change(state, entry, replacement, |member| member.replaces = None)?;
    }
    state.sum.remove(digest::member(&known));
    state.members.remove(&member);
    state.remember_departure(known.id, Departed { member, index: entry.index });
    entry.changes.push(Change::Member(member));
    Ok(Answer::Done)
}

/// Whoever leaves takes nobody's place.
fn leave(member: &mut Member) {
    member.removing = true;
    member.replaces = None;
}

fn removing(member: &Member) -> Refusal {
    Refusal::ManagerRemoving { manager: member.name.clone() }
}

/// Refuses a name or an address of another manager, but for the one that it replaces, or that replaces it.
fn check_unique(
    state: &State,
    known: &Member,
    name: &NodeName,
    address: &ManagerAddress,
) -> Result<(), Refusal> {
    if known.removing {
        return Ok(());
    }
    let replacement = state.replacement_of(known.member).map(|other| other.member);
    let shared: Vec<MemberId> = [known.member].into_iter().chain(known.replaces).chain(replacement).collect();
    state.check_unique_member(name, address, &shared)
}

fn change(
    state: &mut State,
    entry: &mut Entry,
    id: MemberId,
    change: impl FnOnce(&mut Member),
) -> Result<Answer, Refusal> {
    let shared = state.members.get_mut(&id).ok_or_else(|| Refusal::not_found(Kind::Manager, id))?;
    state.sum.remove(digest::member(shared));
    let member = Arc::make_mut(shared);
    change(member);
    member.version = entry.index;
    state.sum.add(digest::member(member));
    entry.changes.push(Change::Member(id));
    Ok(Answer::Member(shared.clone()))
}
