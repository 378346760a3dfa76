//! How a machine becomes a manager: with a token, through any manager. It repeats the request with the same
//! key until it is answered, so it becomes one member; only then it has data and starts.

use std::collections::BTreeMap;

use warren_core::{Command, CommandResponse, FEATURE_LEVEL, State};
use warren_log::{ConfState, LogStore, WriteBatch};
use warren_replica::{KnownManager, MemberDirectory, ProposeError, registration};
use warren_types::{Id, ManagerAddress, ManagerId, NodeName, NodeRole, TokenHash, TokenId};

use super::pending_writes::WRITE_TIMEOUT;
use super::{SimManager, WriteOrigin, addresses};
use crate::event::{ManagerEvent, SimEvent};
use crate::simulation::ClusterSimulation;

/// The voters that the group was founded with.
pub const FOUNDERS: [u64; 1] = [1];

/// The identity and address that a manager advertises.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagerHello {
    pub id: ManagerId,
    pub name: NodeName,
    pub address: ManagerAddress,
}

/// The hash of the token's secret.
fn hash() -> TokenHash {
    TokenHash([7; 32])
}

/// Creates the token for managers, unless it exists.
pub(super) fn token(state: &State) -> Option<Command> {
    let (id, role, hash) = (TokenId(Id(7)), NodeRole::Manager, hash());
    let at = state.clock();
    let create = Command::CreateToken {
        id,
        role,
        hash,
        expires_at: None,
        max_uses: None,
        labels: Default::default(),
        at,
    };
    state.token(&id).is_none().then_some(create)
}

impl SimManager {
    /// Its data after the join: the first members of the group, whether it is one of them or not.
    pub fn become_member(&mut self, member: u64) {
        self.id = member;
        let conf_state = Some(ConfState::of_voters(FOUNDERS));
        let founding = WriteBatch { conf_state, ..WriteBatch::default() };
        self.disk.open().append(&founding).expect("no crash is scheduled before the first start");
    }

    fn hello(&self) -> ManagerHello {
        ManagerHello { id: self.key, name: self.name.clone(), address: self.address.clone() }
    }

    /// Wipes the machine: another key, no data.
    fn wiped(&self, host: usize, key: ManagerId) -> Self {
        let Self { name, address, boot_count: boots, clock_off, wipe_count: wiped, .. } = self;
        let (name, address) = (name.clone(), address.clone());
        let (boots, clock_off, wiped) = (*boots, *clock_off, wiped + 1);
        Self { name, address, boot_count: boots, clock_off, wipe_count: wiped, ..Self::new(host, key) }
    }
}

impl ClusterSimulation {
    /// A key that no machine had before.
    pub(super) fn new_key(&mut self) -> ManagerId {
        ManagerId(Id(u128::from(self.rng.next()) << 64 | u128::from(self.rng.next())))
    }

    /// A machine loses all manager data. At its next start it asks to join again.
    pub(super) fn wipe(&mut self, host: usize) {
        self.manager_dies(host);
        let key = self.new_key();
        self.managers[host] = self.managers[host].wiped(host, key);
    }

    /// A new machine replaces a lost one: another name and another address.
    pub(super) fn replace_machine(&mut self, host: usize) {
        let manager = &mut self.managers[host];
        manager.name = addresses::name(host, manager.wipe_count);
        manager.address = addresses::address(host, 100 + manager.wipe_count);
    }

    /// A machine that is not a manager asks a running one, and repeats that until it is one.
    pub(super) fn request_join(&mut self, host: usize) {
        let SimManager { id, wipe_count: wiped, .. } = self.managers[host];
        if id != 0 {
            return;
        }
        let again = self.rng.between(300, 1_500);
        self.after(again, SimEvent::ManagerStarts { host });
        let others = (0..self.managers.len()).filter(|other| *other != host);
        let others: Vec<usize> = others.filter(|other| self.is_link_open(host, *other)).collect();
        let hello = Box::new(self.managers[host].hello());
        if let Some(other) = self.rng.pick(&others) {
            self.at_manager(other, 3, ManagerEvent::Join { from: host, wiped, hello });
        }
    }

    /// A manager answers a join request.
    pub(super) fn handle_join(&mut self, host: usize, from: usize, wiped: u64, hello: &ManagerHello) {
        let at = self.wall_time(host);
        let ManagerHello { id, name, address } = hello.clone();
        let join = Command::JoinManager { hash: hash(), id, name, address, level: FEATURE_LEVEL, at };
        self.submit(host, WriteOrigin::Joiner { host: from, wiped }, join, self.now + WRITE_TIMEOUT);
    }

    pub(super) fn join_answered(
        &mut self,
        host: usize,
        from: usize,
        wiped: u64,
        answer: Result<CommandResponse, ProposeError>,
    ) {
        let Ok(joined) = answer else { return };
        let lost = self.has_faults && self.rng.one_in(self.fault_rates.lost_one_in);
        if let (CommandResponse::Member(joined), false) = (joined, lost || !self.is_link_open(host, from)) {
            let member = joined.member_id;
            let delay = self.rng.between(1, 200);
            let managers =
                self.process(host).map_or_else(BTreeMap::new, |run| MemberDirectory::of(run.state()).members);
            self.after(delay, SimEvent::Joined { host: from, wiped, member, managers });
        }
    }

    /// The machine gets its answer, and starts.
    pub(crate) fn joined(
        &mut self,
        host: usize,
        wiped: u64,
        member: u64,
        managers: BTreeMap<u64, KnownManager>,
    ) {
        let manager = &mut self.managers[host];
        if manager.wipe_count != wiped || manager.id != 0 {
            return;
        }
        manager.become_member(member);
        manager.bootstrap_peers = managers;
        self.manager_starts(host);
    }

    /// A manager advertises itself at its start, and again until the state contains it.
    pub(super) fn register_manager(&mut self, host: usize) {
        let (at, ManagerHello { id, name, address }) = (self.wall_time(host), self.managers[host].hello());
        let member = self.managers[host].id;
        let Some(run) = self.process(host) else { return };
        if run.role().leader_id.is_some()
            && let Some(register) = registration(run.state(), member, id, &name, &address, at)
        {
            self.submit(host, WriteOrigin::Nobody, register, self.now + WRITE_TIMEOUT);
        }
    }
}
