//! How a machine becomes a manager: with a token, through any manager. It repeats that until it is answered, with the
//! same key, so that it becomes one member; only then it has data and starts.

use warren_core::{Answer, Command, LEVEL, Outcome, State};
use warren_log::{Batch, ConfState, LogStore};
use warren_types::{Id, ManagerAddress, ManagerId, NodeName, NodeRole, TokenHash, TokenId};

use super::writes::PATIENCE;
use super::{Manager, Who, reach};
use crate::event::{Answered, Event, OnManager};
use crate::world::World;

/// The voters that the group was founded with.
pub const FOUNDERS: [u64; 1] = [1];

/// What a manager says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word {
    pub id: ManagerId,
    pub name: NodeName,
    pub address: ManagerAddress,
}

/// Of the token's secret.
fn hash() -> TokenHash {
    TokenHash([7; 32])
}

/// The token for managers, unless there is one.
pub(super) fn token(state: &State) -> Option<Command> {
    let (id, role, hash) = (TokenId(Id(7)), NodeRole::Manager, hash());
    let at = state.clock();
    let create = Command::CreateToken { id, role, hash, expires_at: None, max_uses: None, at };
    state.token(&id).is_none().then_some(create)
}

impl Manager {
    /// What it has when it became a manager: the members that the group began with, whether it is one of them or not.
    pub fn becomes(&mut self, member: u64) {
        self.id = member;
        let conf_state = Some(ConfState::of_voters(FOUNDERS));
        let founding = Batch { conf_state, ..Batch::default() };
        self.disk.open().append(&founding).expect("no crash is planned before the first start");
    }

    fn word(&self) -> Word {
        Word { id: self.key, name: self.name.clone(), address: self.address.clone() }
    }

    /// The machine without what it had: another key, no data.
    fn wiped(&self, host: usize, key: ManagerId) -> Self {
        let Self { name, address, boots, clock_off, wiped, .. } = self;
        let (name, address) = (name.clone(), address.clone());
        let (boots, clock_off, wiped) = (*boots, *clock_off, wiped + 1);
        Self { name, address, boots, clock_off, wiped, ..Self::new(host, key) }
    }
}

impl World {
    /// A key that no machine had before.
    pub(super) fn new_key(&mut self) -> ManagerId {
        ManagerId(Id(u128::from(self.chance.next()) << 64 | u128::from(self.chance.next())))
    }

    /// A machine loses all that its manager had. When it starts next, it asks to become one again.
    pub(super) fn wipe(&mut self, host: usize) {
        self.manager_dies(host);
        let key = self.new_key();
        self.managers[host] = self.managers[host].wiped(host, key);
    }

    /// Another machine takes the place of one that is lost: another name and another address.
    pub(super) fn is_another_machine(&mut self, host: usize) {
        let manager = &mut self.managers[host];
        manager.name = reach::name(host, manager.wiped);
        manager.address = reach::address(host, 100 + manager.wiped);
    }

    /// A machine that is no manager asks one that runs, and again until it is one.
    pub(super) fn asks_to_join(&mut self, host: usize) {
        let Manager { id, wiped, .. } = self.managers[host];
        if id != 0 {
            return;
        }
        let again = self.chance.between(300, 1_500);
        self.after(again, Event::ManagerStarts { host });
        let others = (0..self.managers.len()).filter(|other| *other != host);
        let others: Vec<usize> = others.filter(|other| self.both_ways_are_open(host, *other)).collect();
        let word = Box::new(self.managers[host].word());
        if let Some(other) = self.chance.pick(&others) {
            self.at_manager(other, 3, OnManager::Join { from: host, wiped, word });
        }
    }

    /// A manager answers a machine that wants to become one.
    pub(super) fn joins_through(&mut self, host: usize, from: usize, wiped: u64, word: &Word) {
        let at = self.stamp(host);
        let Word { id, name, address } = word.clone();
        let join = Command::JoinManager { hash: hash(), id, name, address, level: LEVEL, at };
        self.submit(host, Who::Joiner { host: from, wiped }, join, self.now + PATIENCE);
    }

    pub(super) fn join_answered(&mut self, host: usize, from: usize, wiped: u64, answer: Answered) {
        let joined = match answer.as_ref().map(|(_, outcome)| &**outcome) {
            Ok(Outcome::Applied { answer, .. } | Outcome::Unchanged { answer }) => answer,
            _ => return,
        };
        let lost = self.faulty && self.chance.one_in(self.climate.lost_one_in);
        if let (Answer::Member(joined), false) = (joined, lost || !self.both_ways_are_open(host, from)) {
            let member = joined.member;
            let delay = self.chance.between(1, 200);
            let managers = self.life(host).map_or_else(Vec::new, |run| {
                run.state.members().map(|member| member.address.clone()).collect()
            });
            self.after(delay, Event::Joined { host: from, wiped, member, managers });
        }
    }

    /// The machine has its answer, and starts.
    pub(crate) fn joined(&mut self, host: usize, wiped: u64, member: u64, managers: Vec<ManagerAddress>) {
        let manager = &mut self.managers[host];
        if manager.wiped != wiped || manager.id != 0 {
            return;
        }
        manager.becomes(member);
        manager.introduced = managers;
        self.manager_starts(host);
    }

    /// A manager says at its start what it is, and again until the state has it.
    pub(super) fn registers(&mut self, host: usize) {
        let (at, word) = (self.stamp(host), self.managers[host].word());
        let member = self.managers[host].id;
        let Some(run) = self.life(host) else { return };
        let known = match run.state.member(member) {
            Some(known) => known.name == word.name && known.address == word.address,
            None => run.state.members().next().is_some(),
        };
        if known || run.role.leader.is_none() {
            return;
        }
        let Word { id, name, address } = word;
        let register = Command::RegisterMember { member, id, name, address, level: LEVEL, at };
        self.submit(host, Who::Nobody, register, self.now + PATIENCE);
    }
}
