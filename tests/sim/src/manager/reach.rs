//! Where members are: what the state says of them, until they said something newer themselves. Who is in the group no
//! more is not let in, and told so.

use std::collections::BTreeMap;

use warren_types::{ManagerAddress, NodeName};

use super::Manager;
use crate::event::ToPeer;
use crate::network::End;
use crate::world::World;

/// Where members said that they are, each with what the state said of it then: whatever the state says later is newer.
#[derive(Debug, Default)]
pub struct Told(BTreeMap<u64, (Option<ManagerAddress>, ManagerAddress)>);

/// The address of a machine after it moved so often.
pub fn address(host: usize, moved: u64) -> ManagerAddress {
    format!("m{host}-{moved}.example:8080").parse().expect("a valid address")
}

/// The name of the machine that is the `number`th in that place.
pub fn name(host: usize, number: u64) -> NodeName {
    format!("manager-{host}-{number}").parse().expect("a valid name")
}

impl World {
    /// Where the manager on `host` looks for a member.
    fn address_of(&self, host: usize, id: u64) -> Option<ManagerAddress> {
        let run = self.life(host)?;
        let known = run.state.member(id).map(|member| member.address.clone());
        let told = run.told.0.get(&id).filter(|(then, _)| *then == known);
        told.map(|(_, address)| address.clone()).or(known)
    }

    /// The machine that the manager on `host` reaches when it looks for a member: it is that member.
    pub(crate) fn reach(&self, host: usize, id: u64) -> Option<usize> {
        let address = self.address_of(host, id)?;
        let found = self.managers.iter().position(|manager| manager.address == address);
        found.filter(|found| self.managers[*found].id == id)
    }

    /// A word of another member arrived: it is where it said it is.
    pub(super) fn was_told(&mut self, host: usize, id: u64, address: ManagerAddress) {
        let Some(run) = &mut self.managers[host].run else { return };
        let known = run.state.member(id).map(|member| member.address.clone());
        run.told.0.insert(id, (known, address));
    }

    /// Whether a member's words are heard here: it is a member, or too new to be known. One that was removed is told
    /// so by a manager that leads or hears a leader.
    pub(super) fn lets_in(&mut self, host: usize, id: u64) -> bool {
        let sender = self.host_of(id);
        let Some(run) = self.life(host) else { return true };
        let is_new = id >= run.state.next_member();
        // A group that was just founded has no member that said who it is.
        let founded = run.state.members().next().is_some();
        if is_new || !founded || run.state.member(id).is_some() {
            if let Some(address) = sender.map(|sender| self.managers[sender].address.clone()) {
                self.was_told(host, id, address);
            }
            return true;
        }
        let leader_is_heard = run.role.leads || run.role.leader.is_some();
        if let Some(sender) = sender.filter(|_| leader_is_heard) {
            self.send_peer(host, sender, ToPeer::Removed);
        }
        false
    }

    /// Says to all members that can be found who this is, and where. Before it has any state, it knows those that
    /// it was told of when it joined.
    pub(super) fn says_hello(&mut self, host: usize) {
        let Some(run) = self.life(host) else { return };
        let Manager { id, address, introduced, .. } = &self.managers[host];
        let known: Vec<u64> = run.state.members().map(|other| other.member).filter(|it| it != id).collect();
        // Whoever is at the address now: it knows better.
        let at =
            |address: &ManagerAddress| self.managers.iter().position(|manager| manager.address == *address);
        let others: Vec<usize> = match run.state.members().next() {
            Some(_) => known.into_iter().filter_map(|other| at(&self.address_of(host, other)?)).collect(),
            None => introduced.iter().filter_map(at).collect(),
        };
        let (id, address) = (*id, address.clone());
        for to in others.into_iter().filter(|to| *to != host) {
            self.send_peer(host, to, ToPeer::Hello { id, address: address.clone() });
        }
    }

    /// Words get from one manager to the other, and back.
    pub(super) fn both_ways_are_open(&self, one: usize, other: usize) -> bool {
        let (one, other) = (End::Manager(one), End::Manager(other));
        self.ways.is_open(one, other) && self.ways.is_open(other, one)
    }
}
