//! The data address: where other nodes send packets for this node's tasks.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;
use warren_task::DesiredState;
use warren_types::NetworkView;

use super::desired::gateway;

/// An address that no network has (RFC 5737): only the default route leads there.
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Nothing is sent to it: only the source address of the route is of interest.
const ANY_PORT: u16 = 9;

/// The data address of this node, and what it follows from.
pub(crate) struct DataAddress {
    configured: Option<Ipv4Addr>,
    /// What the node says to be its address for other machines.
    advertised: Option<Ipv4Addr>,
    desired_state: watch::Receiver<DesiredState>,
    view: watch::Receiver<NetworkView>,
    /// The own end of the last connection to a manager.
    connected_from: Mutex<Option<Ipv4Addr>>,
    current: watch::Sender<Option<Ipv4Addr>>,
}

/// What is known when the address is chosen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Candidates {
    configured: Option<Ipv4Addr>,
    managers: Vec<Ipv4Addr>,
    connected_from: Option<Ipv4Addr>,
    advertised: Option<Ipv4Addr>,
    /// The one that other nodes know.
    published: Option<Ipv4Addr>,
}

/// What the machine says about addresses.
trait HostRoutes {
    /// The source address of packets to `destination`; `None` without a route.
    fn source_to(&self, destination: Ipv4Addr) -> Option<Ipv4Addr>;
    /// Whether it is an address of this machine.
    fn is_own(&self, address: Ipv4Addr) -> bool;
}

struct KernelRoutes;

impl HostRoutes for KernelRoutes {
    fn source_to(&self, destination: Ipv4Addr) -> Option<Ipv4Addr> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        // Selects the route and sends nothing.
        socket.connect((destination, ANY_PORT)).ok()?;
        match socket.local_addr().ok()? {
            std::net::SocketAddr::V4(address) => Some(*address.ip()),
            std::net::SocketAddr::V6(_) => None,
        }
    }

    fn is_own(&self, address: Ipv4Addr) -> bool {
        UdpSocket::bind((address, 0)).is_ok()
    }
}

/// The first that is usable: the configured one; the source of the route to a manager on another machine; for a manager
/// that is known by its name, the source of the connection to it; the advertised address and the one that other nodes
/// know, if they are of this machine; the source of the default route.
fn choose(candidates: &Candidates, routes: &impl HostRoutes) -> Option<Ipv4Addr> {
    let Candidates { configured, managers, connected_from, advertised, published } = candidates;
    if configured.is_some() {
        return *configured;
    }
    let elsewhere = |manager: &&Ipv4Addr| !manager.is_loopback() && !routes.is_own(**manager);
    let to_manager = managers.iter().filter(elsewhere).find_map(|manager| routes.source_to(*manager));
    let own =
        |address: &Option<Ipv4Addr>| address.filter(|address| usable(address) && routes.is_own(*address));
    to_manager
        .filter(usable)
        .or_else(|| own(connected_from))
        .or_else(|| own(advertised))
        .or_else(|| own(published))
        .or_else(|| routes.source_to(OUTSIDE).filter(usable))
}

/// Whether other machines can send to it.
fn usable(address: &Ipv4Addr) -> bool {
    !address.is_loopback() && !address.is_unspecified()
}

/// A data address given by a person.
pub(crate) fn parse_data_address(text: &str) -> Result<Ipv4Addr, String> {
    let address: Ipv4Addr = text.parse().map_err(|_| "give an IPv4 address of this machine".to_owned())?;
    match usable(&address) && !address.is_multicast() && !address.is_broadcast() {
        true => Ok(address),
        false => Err(format!("other machines cannot send to {address}; give an address that they reach")),
    }
}

impl DataAddress {
    /// The address as far as it is known now.
    pub fn new(
        configured: Option<Ipv4Addr>,
        advertised: Option<&str>,
        desired_state: watch::Receiver<DesiredState>,
        view: watch::Receiver<NetworkView>,
    ) -> Self {
        let advertised = advertised.and_then(|address| address.parse().ok());
        let (connected_from, current) = (Mutex::default(), watch::Sender::new(None));
        let address = Self { configured, advertised, desired_state, view, connected_from, current };
        address.refresh();
        address
    }

    /// The present address; `None` while there is none.
    pub fn current(&self) -> Option<Ipv4Addr> {
        *self.current.borrow()
    }

    /// Follows the address.
    pub fn subscribe(&self) -> watch::Receiver<Option<Ipv4Addr>> {
        self.current.subscribe()
    }

    /// Records the own address of a new connection to a manager.
    pub fn record_connection(&self, from: Option<&str>) {
        let from = from.and_then(|from| from.parse().ok()).filter(usable);
        *self.connected_from.lock().unwrap_or_else(PoisonError::into_inner) = from;
        self.refresh();
    }

    /// Chooses the address again: those of the machine and its routes may have changed.
    pub fn refresh(&self) {
        self.current.send_if_modified(|current| {
            // Chosen under the lock, so that no older choice replaces a newer one.
            let chosen = choose(&self.candidates(), &KernelRoutes);
            let before = std::mem::replace(current, chosen);
            if before != chosen {
                tracing::info!(?before, now = ?chosen, "data address");
            }
            before != chosen
        });
    }

    /// Sets the address, as a change of the machine does.
    #[cfg(test)]
    pub fn set(&self, address: Ipv4Addr) {
        self.current.send_replace(Some(address));
    }

    fn candidates(&self) -> Candidates {
        let settings = self.desired_state.borrow().settings.clone();
        let own = settings.as_ref().map(|settings| settings.number);
        let managers = settings.iter().flat_map(|settings| &settings.managers);
        let published = own.and_then(|own| self.view.borrow().peers.get(&own).map(|peer| peer.address));
        let gateway = settings.as_ref().and_then(gateway);
        Candidates {
            configured: self.configured,
            managers: managers.filter_map(|manager| manager.host().parse().ok()).collect(),
            connected_from: *self.connected_from.lock().unwrap_or_else(PoisonError::into_inner),
            advertised: self.advertised,
            published: published.filter(|published| Some(*published) != gateway),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Own addresses, and source addresses by destination.
    struct FakeRoutes(Vec<Ipv4Addr>, BTreeMap<Ipv4Addr, Ipv4Addr>);

    impl HostRoutes for FakeRoutes {
        fn source_to(&self, destination: Ipv4Addr) -> Option<Ipv4Addr> {
            self.1.get(&destination).copied()
        }

        fn is_own(&self, address: Ipv4Addr) -> bool {
            self.0.contains(&address)
        }
    }

    fn ip(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 0, last)
    }

    #[test]
    fn first_usable_candidate_is_chosen() {
        let routes = FakeRoutes(vec![ip(1), ip(2), ip(3)], [(ip(9), ip(1)), (OUTSIDE, ip(2))].into());
        let unrouted = FakeRoutes(vec![ip(1)], [(OUTSIDE, Ipv4Addr::LOCALHOST)].into());
        let check = |candidates: &Candidates, expected| {
            assert_eq!(choose(candidates, &routes), Some(expected), "{candidates:?}");
        };
        let none = Candidates::default();
        check(&none, ip(2));
        check(&Candidates { published: Some(ip(3)), ..none.clone() }, ip(3));
        check(&Candidates { published: Some(ip(7)), ..none.clone() }, ip(2));
        let known = Candidates { published: Some(ip(3)), advertised: Some(ip(1)), ..none.clone() };
        check(&known, ip(1));
        check(&Candidates { advertised: Some(ip(7)), ..known.clone() }, ip(3));
        // The manager of a hybrid node is on the same machine; the other one shows the way.
        let local = Candidates { managers: vec![Ipv4Addr::LOCALHOST, ip(2)], ..known.clone() };
        check(&local, ip(1));
        check(&Candidates { managers: vec![ip(2), ip(8), ip(9)], ..known.clone() }, ip(1));
        check(&Candidates { connected_from: Some(ip(2)), ..known.clone() }, ip(2));
        check(&Candidates { configured: Some(ip(77)), ..known }, ip(77));
        assert_eq!(choose(&none, &unrouted), None);
        assert_eq!(choose(&Candidates { advertised: Some(ip(1)), ..none }, &unrouted), Some(ip(1)));
    }

    #[test]
    fn own_addresses_are_recognised() {
        assert!(
            KernelRoutes.is_own(Ipv4Addr::LOCALHOST) && !KernelRoutes.is_own(Ipv4Addr::new(192, 0, 2, 77))
        );
        assert_eq!(KernelRoutes.source_to(Ipv4Addr::LOCALHOST), Some(Ipv4Addr::LOCALHOST));
    }

    #[test]
    fn given_address_must_be_reachable_by_others() {
        assert_eq!(parse_data_address("10.0.0.7"), Ok(Ipv4Addr::new(10, 0, 0, 7)));
        for bad in ["", "n1", "127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "fd00::1"] {
            assert!(parse_data_address(bad).is_err(), "{bad}");
        }
    }
}
