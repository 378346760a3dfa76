//! An arbitrary node as input of the network renderers, and packets that walk the rendered chains.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::num::NonZeroU16;
use std::sync::Arc;

use arbitrary::{Arbitrary, Result, Unstructured};
use warren_network::desired::{Chains, DesiredNetwork};
use warren_network::{
    Attachment, ClusterNetwork, DEFAULT_MTU, DEFAULT_VNI, DEFAULT_VXLAN_PORT, HostPort, Ipv4Net,
    NetworkMembers, NodeNetwork, NodeNetworkSettings, Overlay, PeerNode, TaskKey, TaskNetwork,
    TransportProtocol, desired_network,
};

/// Length limit of a chain's name in iptables.
const MAX_CHAIN_NAME: usize = 28;
/// Rules that one packet may meet on its way through the tree of addresses or ports, for any number of services.
const MAX_STEPS: usize = 90;
/// The number of this node. The addresses of node N are in 10.210.N.0/24.
const ME: u8 = 1;

/// Each packet to a published port or virtual address reaches its backends and nothing else, in few steps; tasks reach
/// the members of their networks and nobody else; and each jump leads to a chain.
pub fn run(bytes: &[u8]) {
    let Ok(node) = node(&mut Unstructured::new(bytes)) else { return };
    let desired = desired_network(&node);
    assert_eq!(desired, desired_network(&node), "the output is not deterministic");
    check_chains(&desired);
    check_virtual_addresses(&node, table(&desired, "nat"));
    check_ports(&node, &desired);
    check_isolation(&node, &desired);
    check_routes(&node, &desired);
}

/// What an input contains, for the test of the corpus.
pub fn features(bytes: &[u8]) -> BTreeSet<&'static str> {
    let Ok(node) = node(&mut Unstructured::new(bytes)) else { return BTreeSet::new() };
    let (cluster, ports) = (&node.cluster, &node.ports);
    let is_there = [
        ("overlay", node.settings.overlay().is_some()),
        ("second block", node.settings.blocks().len() > 1),
        ("tree of services", cluster.services.len() > 16),
        ("service without backend", cluster.services.values().any(BTreeSet::is_empty)),
        ("tree of ports", ports.len() > 40),
        ("port without backend", ports.values().any(BTreeSet::is_empty)),
        ("task in two networks", node.tasks.values().any(|task| task.networks.len() > 1)),
        ("internal network", cluster.networks.values().any(|network| network.internal)),
    ];
    is_there.into_iter().filter(|(_, found)| *found).map(|(name, _)| name).collect()
}

fn table<'d>(desired: &'d DesiredNetwork, name: &str) -> &'d Chains {
    &desired.tables.iter().find(|table| table.name == name).expect("every table is rendered").chains
}

fn node(input: &mut Unstructured<'_>) -> Result<NodeNetwork> {
    let valid = "a valid setting";
    let range = |text: &str| text.parse::<Ipv4Net>().expect(valid);
    let settings = NodeNetworkSettings::new(vec![range("10.210.0.0/16")], block(ME), DEFAULT_MTU);
    let mut settings = settings.expect(valid);
    if bool::arbitrary(input)? {
        settings = settings.with_block(block(ME + 1)).expect(valid);
    }
    if bool::arbitrary(input)? {
        let own = Overlay::new(ME.into(), underlay(ME), DEFAULT_VXLAN_PORT, DEFAULT_VNI);
        settings = settings.with_overlay(own.expect(valid));
    }
    let mut node = NodeNetwork::new(settings);
    let mut cluster = ClusterNetwork::default();
    for number in peers(input)? {
        cluster.peers.insert(
            number.into(),
            PeerNode { blocks: vec![block(number)], underlay: underlay(number), key: None },
        );
    }
    for number in 1..=u32::from(u8::arbitrary(input)? % 4) {
        let network = NetworkMembers { internal: bool::arbitrary(input)?, members: addresses(input)? };
        cluster.networks.insert(number, network);
    }
    // Services of one input are near each other or far apart.
    let stride = u32::from(u8::arbitrary(input)?) % 64 + 1;
    let first = u32::from(Ipv4Addr::new(10, 210, 224, 1));
    for place in 0..u32::from(u8::arbitrary(input)?) {
        let address = Ipv4Addr::from(first + place * stride % 7_900);
        cluster.services.insert(address, addresses(input)?);
    }
    for number in 0..u8::arbitrary(input)? % 32 {
        let address = Ipv4Addr::new(10, 210, ME + input.int_in_range(0..=1)?, u8::arbitrary(input)?);
        let networks = (1..=4).filter(|_| bool::arbitrary(input).unwrap_or_default()).collect();
        let attachment =
            Attachment { networks, allows_metadata: bool::arbitrary(input)?, ..Attachment::new(address) };
        let task = TaskKey::parse(&format!("t-{number}")).expect(valid);
        let task = TaskNetwork { task, attachment, namespace: None };
        if node.admit(&task).is_ok() {
            node.tasks.insert(task.task, task.attachment);
        }
    }
    for _ in 0..u8::arbitrary(input)? {
        let port = NonZeroU16::new(u16::arbitrary(input)?).unwrap_or(NonZeroU16::MIN);
        let (protocol, bind) = (*input.choose(&TransportProtocol::ALL)?, u8::arbitrary(input)? % 4);
        // A port is held on all addresses or on some of them.
        let binds =
            if bind == 0 { vec![None] } else { (1..=bind).map(|last| Some(own_address(last))).collect() };
        let is_held = |at: &HostPort| at.port() == port.get() && at.protocol() == protocol;
        if node.ports.keys().any(is_held) {
            continue;
        }
        for ip in binds {
            let target = |ip| SocketAddrV4::new(ip, 8080);
            let backends = addresses(input)?.into_iter().map(target).collect();
            node.ports.insert(HostPort::new(ip, port, protocol), backends);
        }
    }
    node.cluster = Arc::new(cluster);
    Ok(node)
}

fn block(number: u8) -> Ipv4Net {
    Ipv4Net::new(Ipv4Addr::new(10, 210, number, 0), 24).expect("24 bits are a prefix")
}

fn underlay(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, number)
}

/// An address of the node, other than that of the underlay.
fn own_address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 51, 100, last)
}

fn peers(input: &mut Unstructured<'_>) -> Result<BTreeSet<u8>> {
    let count = u8::arbitrary(input)? % 40;
    (0..count).map(|_| input.int_in_range(ME + 2..=200)).collect()
}

/// Addresses of up to seven tasks, on any node.
fn addresses(input: &mut Unstructured<'_>) -> Result<BTreeSet<Ipv4Addr>> {
    let count = u8::arbitrary(input)? % 8;
    (0..count)
        .map(|_| Ok(Ipv4Addr::new(10, 210, u8::arbitrary(input)? % 16 + 1, u8::arbitrary(input)?)))
        .collect()
}

#[derive(Debug, Clone, Copy)]
struct Packet {
    source: Ipv4Addr,
    destination: Ipv4Addr,
    protocol: TransportProtocol,
    port: u16,
}

/// What can happen to the packet in `chain`: the targets, of which load balancing selects one, and the rules met.
fn walk(chains: &Chains, chain: &str, packet: Packet) -> (BTreeSet<String>, usize) {
    let (mut reached, mut steps) = (BTreeSet::new(), 0);
    for rule in &chains[chain] {
        steps += 1;
        assert!(steps < 1_000, "{chain} has a circle");
        let words: Vec<&str> = rule.split(' ').collect();
        let Some(is_sure) = matches(&words, packet) else { continue };
        let verb = words.iter().position(|word| matches!(*word, "-j" | "-g")).expect("a rule has a target");
        let target = words[verb + 1];
        if chains.contains_key(target) {
            let (below, met) = walk(chains, target, packet);
            let is_final = words[verb] == "-g" || !below.is_empty();
            reached.extend(below);
            steps += met;
            if is_final && is_sure {
                break;
            }
        } else {
            reached.insert(words[verb + 1..].join(" "));
            if is_sure {
                break;
            }
        }
    }
    (reached, steps)
}

/// Whether the rule matches always (`true`) or for some connections; `None`: never.
fn matches(words: &[&str], packet: Packet) -> Option<bool> {
    let mut is_sure = true;
    for pair in words.windows(2) {
        let fits = |address: Ipv4Addr| pair[1].parse::<Ipv4Net>().expect("a range").contains(&address);
        let is_match = match pair[0] {
            "-s" => fits(packet.source),
            "-d" => fits(packet.destination),
            "-p" => pair[1] == packet.protocol.as_str(),
            "--dport" => {
                let (first, last) = pair[1].split_once(':').unwrap_or((pair[1], pair[1]));
                let port = |text: &str| text.parse::<u16>().expect("a port");
                (port(first)..=port(last)).contains(&packet.port)
            }
            "--every" => {
                is_sure = false;
                true
            }
            _ => true,
        };
        if !is_match {
            return None;
        }
    }
    Some(is_sure)
}

fn check_chains(desired: &DesiredNetwork) {
    for table in &desired.tables {
        for (chain, rules) in &table.chains {
            assert!(chain.len() <= MAX_CHAIN_NAME && chain.starts_with("WARREN-"), "{chain}");
            for rule in rules {
                let mut words = rule.split(' ').skip_while(|word| !matches!(*word, "-j" | "-g")).skip(1);
                let target = words.next().unwrap_or_default();
                let is_there = table.chains.contains_key(target) || !target.starts_with("WARREN-");
                // The chain of users is not rendered.
                assert!(is_there || target == "WARREN-USER", "{rule} in {chain} leads nowhere");
            }
        }
    }
}

fn translations(chains: &Chains, root: &str, packet: Packet) -> BTreeSet<String> {
    let (reached, steps) = walk(chains, root, packet);
    assert!(steps <= MAX_STEPS, "{packet:?} meets {steps} rules");
    let translation = |target: String| target.strip_prefix("DNAT --to-destination ").map(str::to_owned);
    reached.into_iter().filter_map(translation).collect()
}

fn check_virtual_addresses(node: &NodeNetwork, nat: &Chains) {
    let nobody = BTreeSet::new();
    for address in node.cluster.services.keys().flat_map(|ip| [*ip, Ipv4Addr::from(u32::from(*ip) ^ 1)]) {
        let backends = node.cluster.services.get(&address).unwrap_or(&nobody);
        let expected = backends.iter().map(ToString::to_string).collect();
        let packet = Packet {
            source: own_address(9),
            destination: address,
            protocol: TransportProtocol::Udp,
            port: 53,
        };
        assert_eq!(translations(nat, "WARREN-VIP", packet), expected, "{address}");
    }
}

fn check_ports(node: &NodeNetwork, desired: &DesiredNetwork) {
    let (nat, filter) = (table(desired, "nat"), table(desired, "filter"));
    for at in node.ports.keys() {
        for (port, last) in [(at.port(), 1), (at.port(), 7), (at.port() ^ 1, 1)] {
            for protocol in TransportProtocol::ALL {
                let destination = own_address(last);
                let packet = Packet { source: own_address(9), destination, protocol, port };
                let holds = |at: &HostPort| {
                    (at.port(), at.protocol()) == (port, protocol)
                        && at.ip().is_none_or(|ip| ip == destination)
                };
                let held = node.ports.iter().find(|(at, _)| holds(at)).map(|(_, backends)| backends);
                let expected = held.into_iter().flatten().map(ToString::to_string).collect();
                assert_eq!(translations(nat, "WARREN-PORTS", packet), expected, "{packet:?}");
                let (refused, _) = walk(filter, "WARREN-CLOSED", packet);
                assert_eq!(
                    !refused.is_empty(),
                    held.is_some_and(BTreeSet::is_empty),
                    "{packet:?}: {refused:?}"
                );
            }
        }
    }
}

fn check_isolation(node: &NodeNetwork, desired: &DesiredNetwork) {
    let mut members: BTreeMap<u32, BTreeSet<Ipv4Addr>> = BTreeMap::new();
    for (number, network) in &node.cluster.networks {
        members.entry(*number).or_default().extend(&network.members);
    }
    for task in node.tasks.values() {
        for number in &task.networks {
            members.entry(*number).or_default().insert(task.address);
        }
    }
    let everybody: BTreeSet<Ipv4Addr> = members.values().flatten().copied().collect();
    for task in node.tasks.values() {
        let class = desired.isolation.classes[&task.address];
        for other in &everybody {
            let expected = task.networks.iter().any(|number| members[number].contains(other));
            let allowed = desired.isolation.allowed.contains(&(*other, class));
            assert_eq!(allowed, expected, "from {} in {:?} to {other}", task.address, task.networks);
        }
        let is_open = |number: &u32| match node.cluster.networks.get(number) {
            Some(network) => !network.internal,
            None => *number == warren_network::DEFAULT_NETWORK,
        };
        let is_confined = desired.isolation.confined.contains(&task.address);
        assert_eq!(is_confined, !task.networks.iter().any(is_open), "{task:?}");
    }
}

fn check_routes(node: &NodeNetwork, desired: &DesiredNetwork) {
    let through: BTreeSet<Ipv4Net> = desired
        .node
        .routes
        .iter()
        // The others lead answers back through the node that accepted the connection.
        .filter(|route| route.via.is_some() && route.destination.prefix_len() > 0)
        .map(|route| route.destination)
        .collect();
    let is_reachable = node.settings.overlay().is_some();
    let blocks = node.cluster.peers.values().flat_map(|peer| &peer.blocks).copied();
    assert_eq!(through, blocks.filter(|_| is_reachable).collect(), "routes to peers");
    assert_eq!(desired.node.peers.len(), if is_reachable { node.cluster.peers.len() } else { 0 });
    assert_eq!(desired.links.len(), node.tasks.len());
}
