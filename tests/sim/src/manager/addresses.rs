//! Addresses of members: from the state, until a member advertised a newer one itself. Members that were
//! removed are rejected and told so.

use std::collections::BTreeMap;

use warren_types::{ManagerAddress, NodeName};

use super::SimManager;
use crate::event::PeerMessage;
use crate::network::SimHost;
use crate::simulation::ClusterSimulation;

/// The advertised addresses of members, each with the address in the state at that time: a later change of
/// the state is newer.
#[derive(Debug, Default)]
pub struct AdvertisedAddresses(BTreeMap<u64, (Option<ManagerAddress>, ManagerAddress)>);

/// The address of a machine after that many moves.
pub fn address(host: usize, moved: u64) -> ManagerAddress {
    format!("m{host}-{moved}.example:8080").parse().expect("a valid address")
}

/// The name of the `number`th machine in that position.
pub fn name(host: usize, number: u64) -> NodeName {
    format!("manager-{host}-{number}").parse().expect("a valid name")
}

impl ClusterSimulation {
    /// The address that the manager on `host` uses for a member.
    fn address_of(&self, host: usize, id: u64) -> Option<ManagerAddress> {
        let run = self.process(host)?;
        let known = run.state.member(id).map(|member| member.address.clone());
        let advertised_address = run.advertised.0.get(&id).filter(|(then, _)| *then == known);
        advertised_address.map(|(_, address)| address.clone()).or(known)
    }

    /// The machine at that address, if it is that member.
    pub(crate) fn reachable_host(&self, host: usize, id: u64) -> Option<usize> {
        let address = self.address_of(host, id)?;
        let found = self.managers.iter().position(|manager| manager.address == address);
        found.filter(|found| self.managers[*found].id == id)
    }

    /// A message of another member arrived: it is at the advertised address.
    pub(super) fn learn_address(&mut self, host: usize, id: u64, address: ManagerAddress) {
        let Some(run) = &mut self.managers[host].run else { return };
        let known = run.state.member(id).map(|member| member.address.clone());
        run.advertised.0.insert(id, (known, address));
    }

    /// Whether messages of a member are accepted here: it is a member, or too new to be known. A removed
    /// member is told so by a manager that leads or has contact with a leader.
    pub(super) fn accepts_member(&mut self, host: usize, id: u64) -> bool {
        let sender = self.host_of(id);
        let Some(run) = self.process(host) else { return true };
        let is_new = id >= run.state.next_member_id();
        // In a newly founded group no member has advertised an address.
        let founded = run.state.members().next().is_some();
        if is_new || !founded || run.state.member(id).is_some() {
            if let Some(address) = sender.map(|sender| self.managers[sender].address.clone()) {
                self.learn_address(host, id, address);
            }
            return true;
        }
        let leader_is_heard = run.role.is_leader || run.role.leader.is_some();
        if let Some(sender) = sender.filter(|_| leader_is_heard) {
            self.send_peer(host, sender, PeerMessage::Removed);
        }
        false
    }

    /// Advertises id and address to all members with a known address. Before it has any state, it uses the
    /// addresses from its join.
    pub(super) fn send_hello(&mut self, host: usize) {
        let Some(run) = self.process(host) else { return };
        let SimManager { id, address, bootstrap_peers: introduced, .. } = &self.managers[host];
        let known: Vec<u64> =
            run.state.members().map(|other| other.member_id).filter(|it| it != id).collect();
        // Sent to the process now at that address, which checks it.
        let at =
            |address: &ManagerAddress| self.managers.iter().position(|manager| manager.address == *address);
        let others: Vec<usize> = match run.state.members().next() {
            Some(_) => known.into_iter().filter_map(|other| at(&self.address_of(host, other)?)).collect(),
            None => introduced.iter().filter_map(at).collect(),
        };
        let (id, address) = (*id, address.clone());
        for to in others.into_iter().filter(|to| *to != host) {
            self.send_peer(host, to, PeerMessage::Hello { id, address: address.clone() });
        }
    }

    /// Messages pass between the two managers in both directions.
    pub(super) fn is_link_open(&self, one: usize, other: usize) -> bool {
        let (one, other) = (SimHost::Manager(one), SimHost::Manager(other));
        self.links.is_open(one, other) && self.links.is_open(other, one)
    }
}
