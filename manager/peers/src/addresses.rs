//! The shared [`PeerTable`], and notifications about its changes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use warren_replica::{KnownManager, MemberDirectory, PeerCaller, PeerRejection, PeerRoute, PeerTable};
use warren_types::{ManagerAddress, ManagerId, MemberId};

/// The addresses. Cheap to clone; all clones share one table.
#[derive(Clone)]
pub struct PeerAddresses(Arc<AddressesInner>);

struct AddressesInner {
    own_id: MemberId,
    table: Mutex<PeerTable>,
    changed: watch::Sender<u64>,
}

impl PeerAddresses {
    /// The addresses known to member `own`, which is reachable at `address`.
    pub fn new(own: MemberId, address: ManagerAddress) -> Self {
        let table = Mutex::new(PeerTable::new(own, address));
        Self(Arc::new(AddressesInner { own_id: own, table, changed: watch::Sender::new(0) }))
    }

    fn lock(&self) -> MutexGuard<'_, PeerTable> {
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
        self.lock().own_address().clone()
    }

    /// Sets the address of this manager; replaces the initial one.
    pub fn set_own_address(&self, address: ManagerAddress) {
        self.lock().set_own_address(address);
    }

    /// Adds the managers that existed when this one joined. They are dialled until the state has members: a
    /// manager whose address is recorded wrongly has no other way to contact them.
    pub fn add_bootstrap_peers(&self, managers: BTreeMap<MemberId, KnownManager>) {
        self.lock().add_bootstrap_peers(managers);
    }

    /// Notifies about every change of the addresses.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }

    /// The managers in the state.
    pub fn members(&self) -> Arc<MemberDirectory> {
        self.lock().members().clone()
    }

    /// The incarnation of this manager's state; 0 without a state.
    pub fn incarnation(&self) -> u64 {
        self.lock().members().incarnation
    }

    /// Replaces the managers in the state.
    pub fn update(&self, directory: MemberDirectory) {
        if self.lock().update(directory) {
            self.notify_changed();
        }
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
        let connection_number = self.lock().accept_connection(caller, address, led)?;
        self.notify_changed();
        Ok(InboundConnection { addresses: self.clone(), caller, connection_number })
    }

    /// The member that calls, by its certificate: one in the state. A manager without a state knows only the
    /// members with an open connection that sent a hello.
    ///
    /// # Errors
    /// [`PeerRejection::Removed`], [`PeerRejection::UnknownManager`].
    pub fn identify_caller(&self, id: ManagerId) -> Result<MemberId, PeerRejection> {
        self.lock().identify_caller(id)
    }

    /// All other known managers that were not removed.
    pub fn others(&self) -> Vec<MemberId> {
        self.lock().others()
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
        self.addresses.lock().is_current(self.caller, self.connection_number, led)
    }
}

impl Drop for InboundConnection {
    fn drop(&mut self) {
        self.addresses.lock().close_connection(self.caller.member_id, self.connection_number);
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

    fn members(members: &[(MemberId, u128, &str)], next: MemberId) -> MemberDirectory {
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
        directory.update(members(&[(1, 11, "a:2")], 4));
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
        directory.update(members(&[(1, 11, "a:1"), (2, 12, "b:1")], 3));
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
        directory.update(members(&[(1, 11, "a:1"), (2, 12, "b:1")], 3));
        let visited = connect(&directory, 2, "b:1");
        let changes = directory.changes();
        directory.update(MemberDirectory { departed: [(id(12), 2)].into(), ..members(&[(1, 11, "a:1")], 3) });
        assert!(changes.has_changed().unwrap());
        assert_eq!(visited.is_current(false), Err(PeerRejection::Removed { member: 2, id: id(12) }));
        assert_eq!((directory.others(), directory.route(2)), (vec![], None));
        assert!(directory.identify_caller(id(12)).is_err());
    }

    #[test]
    fn unknown_manager_is_rejected_while_led() {
        let directory = PeerAddresses::new(1, at("a:1"));
        directory.update(members(&[(1, 11, "a:1"), (2, 12, "b:1")], 3));
        let visited = connect(&directory, 9, "i:1");
        assert_eq!(directory.identify_caller(id(19)), Err(PeerRejection::UnknownManager(id(19))));
        assert_eq!(visited.is_current(false), Ok(true));
        assert_eq!(visited.is_current(true), Err(PeerRejection::UnknownManager(id(19))));
    }

    #[test]
    fn connection_ends_when_first_state_has_other_incarnation() {
        let directory = PeerAddresses::new(4, at("d:1"));
        let visited = connect(&directory, 1, "a:1");
        let later = MemberDirectory { incarnation: 2, ..members(&[(1, 11, "a:1"), (4, 14, "d:1")], 5) };
        directory.update(later);
        let over = PeerRejection::OlderIncarnation { member: 1, own: 2, found: 1 };
        assert_eq!(visited.is_current(false), Err(over));
        assert_eq!(directory.route(1).unwrap().connection_number, 0);
    }

    #[test]
    fn own_address_follows_later_state_changes() {
        let directory = PeerAddresses::new(1, at("a:2"));
        directory.update(members(&[(1, 11, "a:1")], 2));
        assert_eq!(directory.own_address(), at("a:2"));
        directory.update(members(&[(1, 11, "a:3")], 2));
        assert_eq!(directory.own_address(), at("a:3"));
    }
}
