//! Addresses of the other managers: those in the state, and those that managers report when they connect.
//!
//! A manager that has just joined has applied nothing and knows no members; the leader dials it, and its
//! hello contains the leader's address. A manager that moved reports its new address before the state has it.
//! Both addresses are tried, the reported one first: the certificate shows whether the right manager
//! answered.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use warren_types::{ManagerAddress, ManagerId, MemberId};

use super::member_directory::{KnownManager, MemberDirectory, PeerCaller, PeerRejection};

/// Maximum number of inbound peers; a cluster has at most 16 members, and some that were replaced.
const MAX_INBOUND_PEERS: usize = 64;

/// The addresses. Cheap to clone; all clones share one table.
#[derive(Clone)]
pub struct PeerAddresses(Arc<AddressesInner>);

struct AddressesInner {
    own_id: MemberId,
    table: Mutex<AddressTable>,
    changed: watch::Sender<u64>,
}

struct AddressTable {
    members: Arc<MemberDirectory>,
    own_address: ManagerAddress,
    /// Managers named in the join response, used until the state has members.
    bootstrap_peers: BTreeMap<MemberId, KnownManager>,
    inbound: BTreeMap<MemberId, InboundPeer>,
    connection_count: u64,
}

/// The hello of an inbound peer.
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

impl AddressTable {
    fn route(&self, member: MemberId) -> Option<PeerRoute> {
        let known = self.members.members.get(&member).or_else(|| self.bootstrap_peers.get(&member));
        let inbound = self.inbound.get(&member);
        let id = known.map(|known| known.id).or(inbound.map(|inbound| inbound.id))?;
        let reported = inbound.map(|inbound| inbound.address.clone());
        let stored =
            known.map(|known| known.address.clone()).filter(|stored| Some(stored) != reported.as_ref());
        let addresses = reported.into_iter().chain(stored).collect();
        Some(PeerRoute {
            id,
            addresses,
            connection_number: inbound.map_or(0, |inbound| inbound.connection_number),
        })
    }
}

impl PeerAddresses {
    /// The addresses known to member `own`, which is reachable at `address`.
    pub fn new(own: MemberId, address: ManagerAddress) -> Self {
        let (roster, visitors) = (Arc::default(), BTreeMap::new());
        let introduced = BTreeMap::new();
        let seen = Mutex::new(AddressTable {
            members: roster,
            own_address: address,
            bootstrap_peers: introduced,
            inbound: visitors,
            connection_count: 0,
        });
        Self(Arc::new(AddressesInner { own_id: own, table: seen, changed: watch::Sender::new(0) }))
    }

    fn lock(&self) -> MutexGuard<'_, AddressTable> {
        // No update can panic halfway, so a poisoned table is still consistent.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify_changed(&self) {
        self.0.changed.send_modify(|changes| *changes += 1);
    }

    /// The member id of this manager.
    pub fn own_id(&self) -> MemberId {
        self.0.own_id
    }

    /// The address of this manager: the initial one, until the state has another.
    pub fn own_address(&self) -> ManagerAddress {
        self.lock().own_address.clone()
    }

    /// Sets the address of this manager; replaces the initial one.
    pub fn set_own_address(&self, address: ManagerAddress) {
        self.lock().own_address = address;
    }

    /// Adds the managers that existed when this one joined. They are dialled until the state has members: a
    /// manager whose address is recorded wrongly has no other way to contact them.
    pub fn add_bootstrap_peers(&self, managers: BTreeMap<MemberId, KnownManager>) {
        let mut seen = self.lock();
        if seen.members.members.is_empty() {
            seen.bootstrap_peers = managers;
        }
    }

    /// Notifies about every change of the addresses.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }

    /// The managers in the state.
    pub fn members(&self) -> Arc<MemberDirectory> {
        self.lock().members.clone()
    }

    /// The incarnation of this manager's state; 0 without a state.
    pub fn incarnation(&self) -> u64 {
        self.lock().members.incarnation
    }

    /// Replaces the managers in the state.
    pub fn update(&self, roster: MemberDirectory) {
        {
            let mut seen = self.lock();
            if *seen.members == roster {
                return;
            }
            let address =
                |roster: &MemberDirectory| Some(roster.members.get(&self.0.own_id)?.address.clone());
            // The first address in the state may be outdated since this start; this manager corrects it
            // itself.
            if let (Some(before), Some(now)) = (address(&seen.members), address(&roster))
                && before != now
            {
                seen.own_address = now;
            }
            seen.inbound.retain(|member, visitor| {
                let InboundPeer { id, incarnation: life, .. } = *visitor;
                roster.admit(PeerCaller { member_id: *member, id, incarnation: life }, false).is_ok()
            });
            if !roster.members.is_empty() {
                seen.bootstrap_peers.clear();
            }
            seen.members = Arc::new(roster);
        }
        self.notify_changed();
    }

    /// Admits a member that connected and sent its id and address. Its earlier connection is superseded. For
    /// `led` see [`MemberDirectory::admit`].
    ///
    /// # Errors
    /// As [`MemberDirectory::admit`].
    pub fn accept_connection(
        &self,
        caller: PeerCaller,
        address: ManagerAddress,
        led: bool,
    ) -> Result<InboundConnection, PeerRejection> {
        let PeerCaller { member_id: member, id, incarnation: life } = caller;
        let visit = {
            let mut seen = self.lock();
            seen.members.admit(caller, led)?;
            if seen.inbound.len() >= MAX_INBOUND_PEERS && !seen.inbound.contains_key(&member) {
                return Err(PeerRejection::UnknownManager(id));
            }
            seen.connection_count += 1;
            let visit = seen.connection_count;
            seen.inbound.insert(
                member,
                InboundPeer { id, incarnation: life, address, connection_number: visit, is_connected: true },
            );
            visit
        };
        self.notify_changed();
        Ok(InboundConnection { addresses: self.clone(), caller, connection_number: visit })
    }

    /// The member that calls, by its certificate: one in the state. A manager without a state knows only the
    /// members with an open connection that sent a hello.
    ///
    /// # Errors
    /// [`PeerRejection::Removed`], [`PeerRejection::UnknownManager`].
    pub fn identify_caller(&self, id: ManagerId) -> Result<MemberId, PeerRejection> {
        let seen = self.lock();
        if let Some(member) = seen.members.departed.get(&id) {
            return Err(PeerRejection::Removed { member: *member, id });
        }
        let visitor = || {
            let mut live =
                seen.inbound.iter().filter(|(_, visitor)| visitor.is_connected && visitor.id == id);
            live.next().map(|(member, _)| *member)
        };
        let found = if seen.members.members.is_empty() { visitor() } else { seen.members.member_of(id) };
        found.ok_or(PeerRejection::UnknownManager(id))
    }

    /// All other known managers that were not removed.
    pub fn others(&self) -> Vec<MemberId> {
        let seen = self.lock();
        let all = seen.members.members.keys().chain(seen.inbound.keys()).chain(seen.bootstrap_peers.keys());
        let mut others: Vec<_> = all.copied().filter(|member| *member != self.0.own_id).collect();
        others.sort_unstable();
        others.dedup();
        others
    }

    /// How to reach a member.
    pub fn route(&self, member: MemberId) -> Option<PeerRoute> {
        self.lock().route(member)
    }
}

/// The open connection of a member.
pub struct InboundConnection {
    addresses: PeerAddresses,
    caller: PeerCaller,
    connection_number: u64,
}

impl InboundConnection {
    /// The connected member.
    pub fn member_id(&self) -> MemberId {
        self.caller.member_id
    }

    /// Whether the connection may continue: the member is still admitted and has no newer connection.
    ///
    /// # Errors
    /// As [`MemberDirectory::admit`].
    pub fn is_current(&self, led: bool) -> Result<bool, PeerRejection> {
        let seen = self.addresses.lock();
        seen.members.admit(self.caller, led)?;
        Ok(seen
            .inbound
            .get(&self.caller.member_id)
            .is_some_and(|visitor| visitor.connection_number == self.connection_number))
    }
}

impl Drop for InboundConnection {
    fn drop(&mut self) {
        let mut seen = self.addresses.lock();
        if let Some(visitor) = seen.inbound.get_mut(&self.caller.member_id)
            && visitor.connection_number == self.connection_number
        {
            visitor.is_connected = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_types::Id;

    fn id(number: u128) -> ManagerId {
        ManagerId(Id(number))
    }

    fn at(text: &str) -> ManagerAddress {
        text.parse().unwrap()
    }

    fn roster(members: &[(MemberId, u128, &str)], next: MemberId) -> MemberDirectory {
        let known = |(member, manager, address): &(MemberId, u128, &str)| {
            (*member, KnownManager { id: id(*manager), address: at(address) })
        };
        MemberDirectory {
            incarnation: 1,
            members: members.iter().map(known).collect(),
            next_id: next,
            ..MemberDirectory::default()
        }
    }

    fn connect(directory: &PeerAddresses, member: MemberId, address: &str) -> InboundConnection {
        let caller = PeerCaller { member_id: member, id: id(10 + u128::from(member)), incarnation: 1 };
        directory.accept_connection(caller, at(address), false).unwrap()
    }

    #[test]
    fn new_manager_dials_bootstrap_peers_until_it_has_state() {
        let directory = PeerAddresses::new(4, at("d:1"));
        let known = |number, address| KnownManager { id: id(number), address: at(address) };
        directory.add_bootstrap_peers([(1, known(11, "a:1")), (2, known(12, "b:1"))].into());
        assert_eq!(directory.others(), [1, 2]);
        let way = directory.route(1).unwrap();
        assert_eq!((way.id, way.addresses), (id(11), vec![at("a:1")]));
        directory.update(MemberDirectory::default());
        assert_eq!(directory.others(), [1, 2], "a state without members says nothing");
        directory.update(roster(&[(1, 11, "a:2")], 4));
        assert_eq!((directory.others(), directory.route(2)), (vec![1], None));
        assert_eq!(directory.route(1).unwrap().addresses, [at("a:2")]);
        directory.add_bootstrap_peers([(2, known(12, "b:1"))].into());
        assert_eq!(directory.others(), [1], "the state knows better");
    }

    #[test]
    fn new_manager_learns_address_of_inbound_peer() {
        let directory = PeerAddresses::new(4, at("d:1"));
        assert_eq!(directory.route(1), None);
        let visited = connect(&directory, 1, "a:1");
        assert_eq!(directory.route(1).unwrap().addresses, [at("a:1")]);
        assert_eq!((directory.others(), directory.identify_caller(id(11))), (vec![1], Ok(1)));
        drop(visited);
        assert_eq!(
            directory.identify_caller(id(11)),
            Err(PeerRejection::UnknownManager(id(11))),
            "it must say hello again"
        );
        assert_eq!(directory.route(1).unwrap().addresses, [at("a:1")], "it may still be there");
    }

    #[test]
    fn self_reported_address_is_tried_first() {
        let directory = PeerAddresses::new(1, at("a:1"));
        directory.update(roster(&[(1, 11, "a:1"), (2, 12, "b:1")], 3));
        let before = directory.route(2).unwrap();
        assert_eq!(before.addresses, [at("b:1")]);
        let visited = connect(&directory, 2, "b:2");
        let now = directory.route(2).unwrap();
        assert_eq!(now.addresses, [at("b:2"), at("b:1")]);
        assert!(now.connection_number > before.connection_number);
        let newest = connect(&directory, 2, "b:3");
        assert_eq!((visited.is_current(false), newest.is_current(false)), (Ok(false), Ok(true)));
        drop(visited);
        assert_eq!(newest.is_current(false), Ok(true), "the end of an earlier visit is not that of this one");
    }

    #[test]
    fn removed_manager_is_disconnected() {
        let directory = PeerAddresses::new(1, at("a:1"));
        directory.update(roster(&[(1, 11, "a:1"), (2, 12, "b:1")], 3));
        let visited = connect(&directory, 2, "b:1");
        let changes = directory.changes();
        directory.update(MemberDirectory { departed: [(id(12), 2)].into(), ..roster(&[(1, 11, "a:1")], 3) });
        assert!(changes.has_changed().unwrap());
        assert_eq!(visited.is_current(false), Err(PeerRejection::Removed { member: 2, id: id(12) }));
        assert_eq!((directory.others(), directory.route(2)), (vec![], None));
        assert!(directory.identify_caller(id(12)).is_err());
    }

    #[test]
    fn unknown_manager_is_rejected_while_led() {
        let directory = PeerAddresses::new(1, at("a:1"));
        directory.update(roster(&[(1, 11, "a:1"), (2, 12, "b:1")], 3));
        let visited = connect(&directory, 9, "i:1");
        assert_eq!(directory.identify_caller(id(19)), Err(PeerRejection::UnknownManager(id(19))));
        assert_eq!(visited.is_current(false), Ok(true));
        assert_eq!(visited.is_current(true), Err(PeerRejection::UnknownManager(id(19))));
    }

    #[test]
    fn connection_ends_when_first_state_has_other_incarnation() {
        let directory = PeerAddresses::new(4, at("d:1"));
        let visited = connect(&directory, 1, "a:1");
        let later = MemberDirectory { incarnation: 2, ..roster(&[(1, 11, "a:1"), (4, 14, "d:1")], 5) };
        directory.update(later);
        let over = PeerRejection::OlderIncarnation { member: 1, own: 2, found: 1 };
        assert_eq!(visited.is_current(false), Err(over));
        assert_eq!(directory.route(1).unwrap().connection_number, 0);
    }

    #[test]
    fn own_address_follows_later_state_changes() {
        let directory = PeerAddresses::new(1, at("a:2"));
        directory.update(roster(&[(1, 11, "a:1")], 2));
        assert_eq!(directory.own_address(), at("a:2"));
        directory.update(roster(&[(1, 11, "a:3")], 2));
        assert_eq!(directory.own_address(), at("a:3"));
    }
}
