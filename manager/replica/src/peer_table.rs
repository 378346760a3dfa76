//! Addresses of the other managers: those in the state, and those that managers report when they connect.
//!
//! A manager that has just joined has applied nothing and knows no members; the leader dials it, and its
//! hello contains the leader's address. A manager that moved reports its new address before the state has it.
//! Both addresses are tried, the reported one first: the certificate shows whether the right manager
//! answered.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_types::{ManagerAddress, ManagerId, MemberId};

use crate::{KnownManager, MemberDirectory, PeerCaller, PeerRejection};

/// Maximum number of inbound peers; a cluster has at most 16 members, and some that were replaced.
const MAX_INBOUND_PEERS: usize = 64;

/// The managers in the state, and those that connected.
#[derive(Debug)]
pub struct PeerTable {
    own_id: MemberId,
    own_address: ManagerAddress,
    members: Arc<MemberDirectory>,
    /// Managers named in the join response, used until the state has members.
    bootstrap_peers: BTreeMap<MemberId, KnownManager>,
    inbound: BTreeMap<MemberId, InboundPeer>,
    connection_count: u64,
}

/// The hello of an inbound peer.
#[derive(Debug)]
struct InboundPeer {
    id: ManagerId,
    /// The incarnation of the peer's state; 0 without one.
    incarnation: u64,
    address: ManagerAddress,
    connection_number: u64,
    /// Whether its connection is still open.
    is_connected: bool,
}

/// How to reach a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerRoute {
    /// The manager id expected in the certificate.
    pub id: ManagerId,
    /// Addresses in the order of preference; never empty.
    pub addresses: Vec<ManagerAddress>,
    /// Increases whenever the member connects, which proves that it is running.
    pub connection_number: u64,
}

impl PeerTable {
    /// The addresses known to member `own_id`, which is reachable at `own_address`.
    pub fn new(own_id: MemberId, own_address: ManagerAddress) -> Self {
        Self {
            own_id,
            own_address,
            members: Arc::default(),
            bootstrap_peers: BTreeMap::new(),
            inbound: BTreeMap::new(),
            connection_count: 0,
        }
    }

    /// The member id of this manager.
    pub fn own_id(&self) -> MemberId {
        self.own_id
    }

    /// The address of this manager: the initial one, until the state has another.
    pub fn own_address(&self) -> &ManagerAddress {
        &self.own_address
    }

    /// Sets the address of this manager; replaces the initial one.
    pub fn set_own_address(&mut self, address: ManagerAddress) {
        self.own_address = address;
    }

    /// Adds the managers that existed when this one joined. They are dialled until the state has members: a
    /// manager whose address is recorded wrongly has no other way to contact them.
    pub fn add_bootstrap_peers(&mut self, managers: BTreeMap<MemberId, KnownManager>) {
        if self.members.members.is_empty() {
            self.bootstrap_peers = managers;
        }
    }

    /// The managers in the state.
    pub fn members(&self) -> &Arc<MemberDirectory> {
        &self.members
    }

    /// Replaces the managers in the state. Returns whether that changed anything.
    pub fn update(&mut self, directory: MemberDirectory) -> bool {
        if *self.members == directory {
            return false;
        }
        let address =
            |directory: &MemberDirectory| Some(directory.members.get(&self.own_id)?.address.clone());
        // The first address in the state may be outdated since this start; this manager corrects it
        // itself.
        if let (Some(before), Some(now)) = (address(&self.members), address(&directory))
            && before != now
        {
            self.own_address = now;
        }
        self.inbound.retain(|member, peer| {
            let InboundPeer { id, incarnation, .. } = *peer;
            directory.admit(PeerCaller { member_id: *member, id, incarnation }, false).is_ok()
        });
        if !directory.members.is_empty() {
            self.bootstrap_peers.clear();
        }
        self.members = Arc::new(directory);
        true
    }

    /// Admits a member that connected and sent its id and address; returns the number of its connection. Its earlier
    /// connection is superseded. For `led` see [`MemberDirectory::admit`].
    ///
    /// # Errors
    /// As [`MemberDirectory::admit`].
    pub fn accept_connection(
        &mut self,
        caller: PeerCaller,
        address: ManagerAddress,
        led: bool,
    ) -> Result<u64, PeerRejection> {
        let PeerCaller { member_id: member, id, incarnation } = caller;
        self.members.admit(caller, led)?;
        if self.inbound.len() >= MAX_INBOUND_PEERS && !self.inbound.contains_key(&member) {
            return Err(PeerRejection::UnknownManager(id));
        }
        self.connection_count += 1;
        let connection_number = self.connection_count;
        let peer = InboundPeer { id, incarnation, address, connection_number, is_connected: true };
        self.inbound.insert(member, peer);
        Ok(connection_number)
    }

    /// The connection with that number was closed.
    pub fn close_connection(&mut self, member: MemberId, number: u64) {
        if let Some(peer) = self.inbound.get_mut(&member).filter(|peer| peer.connection_number == number) {
            peer.is_connected = false;
        }
    }

    /// Whether the connection with that number may continue: the member is still admitted and has no newer one.
    ///
    /// # Errors
    /// As [`MemberDirectory::admit`].
    pub fn is_current(&self, caller: PeerCaller, number: u64, led: bool) -> Result<bool, PeerRejection> {
        self.members.admit(caller, led)?;
        Ok(self.inbound.get(&caller.member_id).is_some_and(|peer| peer.connection_number == number))
    }

    /// The address that the member reported last, if it connected.
    pub fn reported_address(&self, member: MemberId) -> Option<&ManagerAddress> {
        self.inbound.get(&member).map(|peer| &peer.address)
    }

    /// The member that calls, by its certificate: one in the state. A manager without a state knows only the
    /// members with an open connection that sent a hello.
    ///
    /// # Errors
    /// [`PeerRejection::Removed`], [`PeerRejection::UnknownManager`].
    pub fn identify_caller(&self, id: ManagerId) -> Result<MemberId, PeerRejection> {
        if let Some(member) = self.members.departed.get(&id) {
            return Err(PeerRejection::Removed { member: *member, id });
        }
        let connected = || {
            let mut connected = self.inbound.iter().filter(|(_, peer)| peer.is_connected && peer.id == id);
            connected.next().map(|(member, _)| *member)
        };
        let found = if self.members.members.is_empty() { connected() } else { self.members.member_of(id) };
        found.ok_or(PeerRejection::UnknownManager(id))
    }

    /// All other known managers that were not removed.
    pub fn others(&self) -> Vec<MemberId> {
        let all = self.members.members.keys().chain(self.inbound.keys()).chain(self.bootstrap_peers.keys());
        let mut others: Vec<_> = all.copied().filter(|member| *member != self.own_id).collect();
        others.sort_unstable();
        others.dedup();
        others
    }

    /// How to reach a member.
    pub fn route(&self, member: MemberId) -> Option<PeerRoute> {
        let known = self.members.members.get(&member).or_else(|| self.bootstrap_peers.get(&member));
        let inbound = self.inbound.get(&member);
        let id = known.map(|known| known.id).or(inbound.map(|inbound| inbound.id))?;
        let reported = inbound.map(|inbound| inbound.address.clone());
        let stored =
            known.map(|known| known.address.clone()).filter(|stored| Some(stored) != reported.as_ref());
        let addresses = reported.into_iter().chain(stored).collect();
        let connection_number = inbound.map_or(0, |inbound| inbound.connection_number);
        Some(PeerRoute { id, addresses, connection_number })
    }
}
