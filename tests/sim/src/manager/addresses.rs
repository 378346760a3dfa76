//! Addresses of members, and which members are admitted, as the [`warren_replica::PeerTable`] of each manager decides.

use std::collections::BTreeSet;
use std::time::Duration;

use warren_replica::{PeerCaller, PeerRejection};
use warren_types::{ManagerAddress, NodeName};

use super::SimManager;
use crate::event::PeerMessage;
use crate::network::SimHost;
use crate::simulation::ClusterSimulation;

/// The address of a machine after that many moves.
pub fn address(host: usize, moved: u64) -> ManagerAddress {
    format!("m{host}-{moved}.example:8080").parse().expect("a valid address")
}

/// The name of the `number`th machine in that position.
pub fn name(host: usize, number: u64) -> NodeName {
    format!("manager-{host}-{number}").parse().expect("a valid name")
}

impl SimManager {
    /// The identity that its certificate and its hello prove.
    fn caller(&self) -> PeerCaller {
        let cluster = self.run.as_ref().and_then(|run| run.state().cluster());
        let incarnation = cluster.map_or(0, |cluster| cluster.incarnation);
        PeerCaller { member_id: self.id, id: self.key, incarnation }
    }
}

impl ClusterSimulation {
    /// The machine at one of the member's addresses whose certificate is that of the member.
    pub(crate) fn reachable_host(&self, host: usize, id: u64) -> Option<usize> {
        let route = self.process(host)?.peers.route(id)?;
        let at = |address: &ManagerAddress| {
            let is_it = |it: &SimManager| it.address == *address && it.id == id && it.key == route.id;
            self.managers.iter().position(is_it)
        };
        route.addresses.iter().find_map(at)
    }

    /// Whether messages of a member are accepted here. A removed member is told so by a manager that leads or has
    /// contact with a leader.
    pub(super) fn accepts_member(&mut self, host: usize, id: u64) -> bool {
        let Some(sender) = self.host_of(id) else {
            return self.process(host).is_none_or(|run| !run.peers.members().was_removed(id));
        };
        let (caller, address) = (self.managers[sender].caller(), &self.managers[sender].address);
        let now = self.now;
        let address = self
            .process(host)
            .and_then(|run| (run.peers.reported_address(id) != Some(address)).then(|| address.clone()));
        let Some(run) = &mut self.managers[host].run else { return true };
        let role = run.replica.role();
        let since = Duration::from_millis(now - run.leader_contact_at);
        let led = role.has_leader_besides(id, since);
        let admitted = match address {
            Some(address) => run.peers.accept_connection(caller, address, led).map(drop),
            None => run.peers.members().admit(caller, led),
        };
        if let Err(PeerRejection::Removed { member, .. }) = admitted
            && role.may_report_removal(since)
        {
            self.send_peer(host, sender, PeerMessage::Removed { member });
        }
        admitted.is_ok()
    }

    /// Advertises the member to all known members.
    pub(super) fn send_hello(&mut self, host: usize) {
        let Some(run) = self.process(host) else { return };
        let routes = run.peers.others().into_iter().filter_map(|id| run.peers.route(id));
        // Sent to the process now at that address, which checks it.
        let at =
            |address: ManagerAddress| self.managers.iter().position(|manager| manager.address == address);
        let others: BTreeSet<usize> = routes.flat_map(|route| route.addresses).filter_map(at).collect();
        let id = self.managers[host].id;
        for to in others.into_iter().filter(|to| *to != host) {
            self.send_peer(host, to, PeerMessage::Hello { id });
        }
    }

    /// Messages pass between the two managers in both directions.
    pub(super) fn is_link_open(&self, one: usize, other: usize) -> bool {
        let (one, other) = (SimHost::Manager(one), SimHost::Manager(other));
        self.links.is_open(one, other) && self.links.is_open(other, one)
    }
}
