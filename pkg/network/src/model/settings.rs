//! Settings of the node itself: its addresses, its overlay, what containers may reach on it.

use std::collections::BTreeSet;
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use ipnet::Ipv4Net;

use crate::error::Error;
use crate::keys::TransportProtocol;
use warren_wireguard::WireGuardPrivateKey;

/// Link MTU that fits an overlay on an Ethernet of 1500 bytes, so that containers need not be re-created
/// when a node gets its first peer.
pub const DEFAULT_MTU: u32 = 1500 - OVERLAY_OVERHEAD;

/// Bytes that VXLAN adds to each packet: Ethernet, VXLAN, UDP and IP headers.
pub const OVERLAY_OVERHEAD: u32 = 50;

/// Bytes that WireGuard adds to each packet beside [`OVERLAY_OVERHEAD`].
pub const WIREGUARD_OVERHEAD: u32 = warren_wireguard::OVERHEAD;

/// Smallest MTU of task links: every IPv4 host must accept packets of this size (RFC 791).
pub const MIN_MTU: u32 = 576;

/// UDP port of VXLAN (RFC 7348).
pub const DEFAULT_VXLAN_PORT: u16 = 4789;

/// VXLAN network identifier, one for the whole cluster.
pub const DEFAULT_VNI: u32 = 4096;

const MAX_VNI: u32 = (1 << 24) - 1;

/// Longest name of a device, in bytes.
const MAX_DEVICE_NAME: usize = 15;

/// The node's end of the cluster's overlay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overlay {
    number: u16,
    address: Ipv4Addr,
    port: u16,
    vni: u32,
}

impl Overlay {
    /// Validates the node's number (not 0), its address on the underlay, the UDP port and the VNI.
    ///
    /// # Errors
    /// [`Error::InvalidOverlay`] with the value that cannot be used.
    pub fn new(number: u16, address: Ipv4Addr, port: u16, vni: u32) -> Result<Self, Error> {
        check_node(number, address)?;
        let refuse = |reason: String| Err(Error::InvalidOverlay { reason });
        if port == 0 {
            return refuse("0 is not a UDP port".to_owned());
        }
        if !(1..=MAX_VNI).contains(&vni) {
            return refuse(format!("VNI {vni} is not one of 1 to {MAX_VNI}"));
        }
        Ok(Self { number, address, port, vni })
    }

    /// Number of this node in the cluster.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Address of this node on the underlay: other nodes send to it.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// UDP port of VXLAN.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// VXLAN network identifier.
    pub fn vni(&self) -> u32 {
        self.vni
    }
}

/// The number of a node and its address on the underlay.
fn check_node(number: u16, address: Ipv4Addr) -> Result<(), Error> {
    let reason = match number {
        0 => "0 is not a node number; they count from 1".to_owned(),
        _ if !is_host_address(address) => format!("{address} is not an address that other nodes can send to"),
        _ => return Ok(()),
    };
    Err(Error::InvalidOverlay { reason })
}

/// The node's end of the encryption below the overlay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireGuard {
    /// Its key. The public half is known to its peers.
    pub private_key: WireGuardPrivateKey,
    /// UDP port of this node and of its peers.
    pub port: u16,
}

/// The node's end of routes to its peers without a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectRoutes {
    number: u16,
    address: Ipv4Addr,
    device: String,
}

impl DirectRoutes {
    /// Validates the node's number (not 0), its address on the underlay, and the name of the device with it.
    ///
    /// # Errors
    /// [`Error::InvalidOverlay`] with the value that cannot be used.
    pub fn new(number: u16, address: Ipv4Addr, device: &str) -> Result<Self, Error> {
        check_node(number, address)?;
        let refuse = |reason: String| Err(Error::InvalidOverlay { reason });
        if device == "lo" {
            return refuse(
                "its data address is on lo, which leads to no other node; set --data-address".to_owned(),
            );
        }
        // Rules have the name: there a `+` at its end is any text, and quotes have a meaning.
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
        if !(1..=MAX_DEVICE_NAME).contains(&device.len()) || !device.bytes().all(is_plain) {
            return refuse(format!("rules cannot have the name of device {device:?}; rename it"));
        }
        Ok(Self { number, address, device: device.to_owned() })
    }

    /// Address of this node on the underlay: other nodes send to it.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Name of the device on which the peers are.
    pub fn device(&self) -> &str {
        &self.device
    }
}

/// Whether packets to the address reach one host.
pub(crate) fn is_host_address(address: Ipv4Addr) -> bool {
    !address.is_unspecified() && !address.is_loopback() && !address.is_multicast() && !address.is_broadcast()
}

/// A range of ports of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortRange {
    /// The protocol.
    pub protocol: TransportProtocol,
    /// The first port.
    pub first: u16,
    /// The last port, equal to `first` for a single one.
    pub last: u16,
}

impl FromStr for PortRange {
    type Err = String;

    /// Parses `PORT[-PORT][/PROTOCOL]`; without a protocol it is TCP.
    fn from_str(text: &str) -> Result<Self, String> {
        let (ports, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let protocol = TransportProtocol::ALL.into_iter().find(|known| known.as_str() == protocol);
        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
        let range =
            (|| Some(Self { protocol: protocol?, first: first.parse().ok()?, last: last.parse().ok()? }))();
        range.filter(|range| 0 < range.first && range.first <= range.last).ok_or_else(|| {
            format!(
                "{text:?} is not a range of ports; give PORT[-PORT][/PROTOCOL], like 9100 or 6000-6009/udp"
            )
        })
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protocol, first, last } = self;
        if first == last { write!(f, "{first}/{protocol}") } else { write!(f, "{first}-{last}/{protocol}") }
    }
}

/// Settings of the node, and the address plan of the cluster as the node sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeNetworkSettings {
    cluster_ranges: Vec<Ipv4Net>,
    blocks: Vec<Ipv4Net>,
    mtu: u32,
    overlay: Option<Overlay>,
    wireguard: Option<WireGuard>,
    direct_routes: Option<DirectRoutes>,
    allowed_ports: BTreeSet<PortRange>,
}

impl NodeNetworkSettings {
    /// Validates the cluster's ranges, the node's first block within one of them, and the MTU of task links
    /// in bytes ([`DEFAULT_MTU`] unless the underlay is smaller).
    ///
    /// # Errors
    /// [`Error::InvalidSubnet`] when the block lies outside every range, overlaps virtual addresses or is
    /// too small for a gateway and a task; [`Error::MtuTooSmall`].
    pub fn new(cluster: Vec<Ipv4Net>, block: Ipv4Net, mtu: u32) -> Result<Self, Error> {
        let mut cluster: Vec<Ipv4Net> = cluster.iter().map(Ipv4Net::trunc).collect();
        cluster.sort();
        cluster.dedup();
        if mtu < MIN_MTU {
            return Err(Error::MtuTooSmall { mtu, needed: MIN_MTU });
        }
        let none = Self {
            cluster_ranges: cluster,
            blocks: Vec::new(),
            mtu,
            overlay: None,
            wireguard: None,
            direct_routes: None,
            allowed_ports: BTreeSet::new(),
        };
        none.with_block(block)
    }

    /// Adds a block of addresses for tasks. The gateway stays in the first one.
    ///
    /// # Errors
    /// [`Error::InvalidSubnet`] as for the first block, and when it overlaps another block.
    pub fn with_block(mut self, block: Ipv4Net) -> Result<Self, Error> {
        let block = block.trunc();
        let refuse = |reason| Err(Error::InvalidSubnet { subnet: block, reason });
        if block.prefix_len() > 30 {
            return refuse("it is smaller than a /30, so that gateway and tasks do not fit");
        }
        if !self.cluster_ranges.iter().any(|range| range.contains(&block)) {
            return refuse("it lies outside every range of the cluster");
        }
        let length = self.blocks.first().unwrap_or(&block).prefix_len();
        let mut virtual_ranges = self.cluster_ranges.iter().filter_map(|range| virtual_range(*range, length));
        if virtual_ranges.any(|range| overlap(range, block)) {
            return refuse("it overlaps the virtual addresses of the cluster");
        }
        if self.blocks.iter().any(|other| overlap(*other, block)) {
            return refuse("it overlaps another block of this node");
        }
        self.blocks.push(block);
        Ok(self)
    }

    /// Connects the node to the overlay.
    pub fn with_overlay(self, overlay: Overlay) -> Self {
        Self { overlay: Some(overlay), direct_routes: None, ..self }
    }

    /// Connects the node to its peers without a tunnel.
    pub fn with_direct_routes(self, routes: DirectRoutes) -> Self {
        Self { direct_routes: Some(routes), ..self.without_overlay() }
    }

    /// Takes the node off the overlay, whose device cannot be used.
    pub(crate) fn without_overlay(self) -> Self {
        Self { overlay: None, wireguard: None, ..self }
    }

    /// Encrypts everything that the node sends through the overlay, and accepts nothing else from peers. Peers without
    /// a key are not reached.
    ///
    /// # Errors
    /// [`Error::InvalidOverlay`]: there is no overlay, or it has the same UDP port.
    pub fn with_wireguard(self, wireguard: WireGuard) -> Result<Self, Error> {
        let refuse = |reason: String| Err(Error::InvalidOverlay { reason });
        let port = wireguard.port;
        match self.overlay {
            None => refuse("WireGuard encrypts an overlay, and there is none".to_owned()),
            Some(_) if port == 0 => refuse("0 is not a UDP port".to_owned()),
            Some(overlay) if overlay.port == port => {
                refuse(format!("VXLAN and WireGuard cannot both have UDP port {port}"))
            }
            Some(_) => Ok(Self { wireguard: Some(wireguard), ..self }),
        }
    }

    /// Ports of the node itself that containers may reach.
    pub fn with_allowed_ports(self, allowed_ports: BTreeSet<PortRange>) -> Self {
        Self { allowed_ports, ..self }
    }

    /// The cluster's ranges, sorted.
    pub fn cluster(&self) -> &[Ipv4Net] {
        &self.cluster_ranges
    }

    /// The part of each range for virtual addresses of services: its last eighth, or what comes next to it in whole
    /// blocks. A range of one block has none.
    pub fn virtual_ranges(&self) -> impl Iterator<Item = Ipv4Net> + '_ {
        let block = self.blocks.first().map(Ipv4Net::prefix_len);
        self.cluster_ranges.iter().filter_map(move |range| virtual_range(*range, block?))
    }

    /// The node's blocks, the first with the gateway.
    pub fn blocks(&self) -> &[Ipv4Net] {
        &self.blocks
    }

    /// MTU of task links, in bytes.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Number of this node in the cluster; `None` for a node without peers.
    pub(crate) fn number(&self) -> Option<u16> {
        let of_routes = || self.direct_routes.as_ref().map(|routes| routes.number);
        self.overlay.map(|overlay| overlay.number).or_else(of_routes)
    }

    /// The node's end of the overlay; `None` for a node without peers, or with [`DirectRoutes`].
    pub fn overlay(&self) -> Option<&Overlay> {
        self.overlay.as_ref()
    }

    /// The encryption below the overlay, if there is one.
    pub fn wireguard(&self) -> Option<&WireGuard> {
        self.wireguard.as_ref()
    }

    /// The node's end of routes without a tunnel, if it has no overlay.
    pub fn direct_routes(&self) -> Option<&DirectRoutes> {
        self.direct_routes.as_ref()
    }

    /// Ports of the node itself that containers may reach.
    pub fn allowed_ports(&self) -> &BTreeSet<PortRange> {
        &self.allowed_ports
    }

    /// The first address of the first block: the gateway of the tasks.
    pub fn gateway(&self) -> Ipv4Addr {
        gateway_of(self.blocks[0])
    }

    /// Whether the address is of one of the node's blocks.
    pub(crate) fn is_own(&self, address: Ipv4Addr) -> bool {
        self.blocks.iter().any(|block| block.contains(&address))
    }

    /// Whether a task of this node can have the address.
    pub fn is_assignable(&self, address: Ipv4Addr) -> bool {
        self.blocks.iter().any(|block| {
            let reserved = [block.network(), block.broadcast(), self.gateway()];
            block.contains(&address) && !reserved.contains(&address)
        })
    }
}

/// The device of this machine that leads to the other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Underlay {
    /// Its name.
    pub device: String,
    /// The smallest MTU of it and of the routes to the other nodes, in bytes.
    pub mtu: u32,
}

/// A route of the machine that shares addresses with a range of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeConflict {
    /// Destination of the route.
    pub destination: Ipv4Net,
    /// Name of its device, if it has one.
    pub device: Option<String>,
}

/// The gateway of a node whose first block this is.
pub(crate) fn gateway_of(block: Ipv4Net) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(block.network()) + 1)
}

/// The virtual addresses of a range whose blocks have that prefix length; the managers assign them by the same rule.
fn virtual_range(range: Ipv4Net, block: u8) -> Option<Ipv4Net> {
    let bits = block.checked_sub(range.prefix_len())?.min(3);
    let last = Ipv4Net::new(range.broadcast(), range.prefix_len() + bits).ok()?;
    (bits > 0).then(|| last.trunc())
}

/// Whether two ranges have an address in common.
pub(crate) fn overlap(a: Ipv4Net, b: Ipv4Net) -> bool {
    a.contains(&b.network()) || b.contains(&a.network())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    fn settings(subnet: &str) -> Result<NodeNetworkSettings, Error> {
        NodeNetworkSettings::new(vec![net("10.210.0.0/16")], net(subnet), DEFAULT_MTU)
    }

    #[test]
    fn blocks_are_checked_and_the_first_has_the_gateway() {
        let node = settings("10.210.7.9/24").unwrap().with_block(net("10.210.9.0/24")).unwrap();
        assert_eq!(node.gateway(), Ipv4Addr::new(10, 210, 7, 1));
        for (address, fits) in [
            ([10, 210, 7, 0], false),
            ([10, 210, 7, 1], false),
            ([10, 210, 7, 2], true),
            ([10, 210, 7, 254], true),
            ([10, 210, 7, 255], false),
            ([10, 210, 8, 2], false),
            ([10, 210, 9, 0], false),
            ([10, 210, 9, 1], true),
        ] {
            assert_eq!(node.is_assignable(Ipv4Addr::from(address)), fits, "{address:?}");
        }
        for bad in ["10.211.0.0/24", "10.210.0.0/31", "10.0.0.0/8", "10.210.224.0/24", "10.210.128.0/17"] {
            assert!(matches!(settings(bad), Err(Error::InvalidSubnet { .. })), "{bad}");
        }
        let twice = node.with_block(net("10.210.9.128/25"));
        assert!(matches!(twice, Err(Error::InvalidSubnet { .. })), "{twice:?}");
    }

    #[test]
    fn virtual_addresses_are_the_last_eighth_of_each_range_in_whole_blocks() {
        let ranges = ["10.220.0.0/23", "10.210.0.0/16", "10.221.0.0/24", "10.222.0.0/30"].map(net).to_vec();
        let node = NodeNetworkSettings::new(ranges, net("10.210.7.0/24"), DEFAULT_MTU).unwrap();
        let found: Vec<Ipv4Net> = node.virtual_ranges().collect();
        assert_eq!(found, [net("10.210.224.0/19"), net("10.220.1.0/24")]);
    }

    #[test]
    fn overlay_values_are_checked() {
        let host = Ipv4Addr::new(192, 0, 2, 1);
        assert!(Overlay::new(1, host, DEFAULT_VXLAN_PORT, DEFAULT_VNI).is_ok());
        assert!(Overlay::new(u16::MAX, host, 1, MAX_VNI).is_ok());
        for (number, address, port, vni) in [
            (0, host, 4789, 1),
            (1, Ipv4Addr::UNSPECIFIED, 4789, 1),
            (1, Ipv4Addr::LOCALHOST, 4789, 1),
            (1, Ipv4Addr::BROADCAST, 4789, 1),
            (1, Ipv4Addr::new(224, 0, 0, 1), 4789, 1),
            (1, host, 0, 1),
            (1, host, 4789, 0),
            (1, host, 4789, MAX_VNI + 1),
        ] {
            let refused = Overlay::new(number, address, port, vni);
            assert!(matches!(refused, Err(Error::InvalidOverlay { .. })), "{number} {address} {port} {vni}");
        }
        let wireguard = |port| WireGuard { private_key: "11".repeat(32).parse().unwrap(), port };
        let plain = settings("10.210.7.0/24").unwrap();
        assert!(matches!(plain.clone().with_wireguard(wireguard(1)), Err(Error::InvalidOverlay { .. })));
        let overlay = plain.with_overlay(Overlay::new(1, host, 4789, 1).unwrap());
        for (port, fits) in [(51820, true), (4789, false), (0, false)] {
            assert_eq!(overlay.clone().with_wireguard(wireguard(port)).is_ok(), fits, "{port}");
        }
        let encrypted = overlay.with_wireguard(wireguard(51820)).unwrap();
        for (number, device, fits) in [
            (1, "eth0", true),
            (1, "br-lan_0.100", true),
            (0, "eth0", false),
            (1, "lo", false),
            (1, "", false),
            (1, "eth+", false),
            (1, "\"eth0\"", false),
            (1, "eth01234567890123", false),
        ] {
            let made = DirectRoutes::new(number, host, device);
            assert_eq!(made.is_ok(), fits, "{number} {device}: {made:?}");
        }
        // A node has one data plane.
        let direct = encrypted.with_direct_routes(DirectRoutes::new(1, host, "eth0").unwrap());
        assert_eq!((direct.overlay(), direct.wireguard()), (None, None));
        let overlay = direct.with_overlay(Overlay::new(1, host, 4789, 1).unwrap());
        assert_eq!(overlay.direct_routes(), None);
        let tiny = NodeNetworkSettings::new(vec![net("10.210.0.0/16")], net("10.210.1.0/24"), 500);
        assert!(matches!(tiny, Err(Error::MtuTooSmall { mtu: 500, .. })));
    }
}
