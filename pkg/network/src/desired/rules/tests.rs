use std::num::NonZeroU16;

use super::*;
use crate::desired::desired_network;
use crate::keys::{HostPort, TaskKey, TransportProtocol};
use crate::model::{
    Attachment, ClusterNetwork, DEFAULT_MTU, DEFAULT_VNI, DEFAULT_VXLAN_PORT, DirectRoutes,
    NodeNetworkSettings, Overlay, PeerNode, PortRange, WireGuard,
};

fn node(cluster: &[&str]) -> NodeNetwork {
    let ranges = cluster.iter().map(|range| range.parse().unwrap()).collect();
    NodeNetwork::new(NodeNetworkSettings::new(ranges, "10.210.1.0/24".parse().unwrap(), DEFAULT_MTU).unwrap())
}

/// The same node on an overlay, with a peer.
fn on_overlay(mut node: NodeNetwork) -> NodeNetwork {
    let own = [192, 0, 2, 1].into();
    let overlay = Overlay::new(1, own, DEFAULT_VXLAN_PORT, DEFAULT_VNI).unwrap();
    node.settings = node.settings.with_overlay(overlay);
    let peer = |block: &str, underlay: [u8; 4]| PeerNode {
        blocks: vec![block.parse().unwrap()],
        underlay: underlay.into(),
        key: None,
    };
    let peers =
        [(1, peer("10.210.1.0/24", [192, 0, 2, 1])), (2, peer("10.210.2.0/24", [192, 0, 2, 2]))].into();
    node.cluster = Arc::new(ClusterNetwork { peers, ..ClusterNetwork::default() });
    node
}

/// The same node with routes to its peer, without a tunnel.
fn direct(node: NodeNetwork) -> NodeNetwork {
    let mut node = on_overlay(node);
    let routes = DirectRoutes::new(1, [192, 0, 2, 1].into(), "eth0").unwrap();
    node.settings = node.settings.with_direct_routes(routes);
    node
}

fn publish(
    node: &mut NodeNetwork,
    ip: Option<&str>,
    port: u16,
    protocol: TransportProtocol,
    backends: &[&str],
) {
    let at = HostPort::new(ip.map(|ip| ip.parse().unwrap()), NonZeroU16::new(port).unwrap(), protocol);
    node.ports.insert(at, backends.iter().map(|backend| backend.parse().unwrap()).collect());
}

fn serve(node: &mut NodeNetwork, address: &str, backends: &[&str]) {
    let backends = backends.iter().map(|backend| backend.parse().unwrap()).collect();
    Arc::make_mut(&mut node.cluster).services.insert(address.parse().unwrap(), backends);
}

/// The tables in readable form.
fn text(node: &NodeNetwork) -> String {
    let mut lines = Vec::new();
    for table in tables(node) {
        lines.push(format!("*{}", table.name));
        for (chain, rules) in table.chains {
            lines.push(chain);
            lines.extend(rules.into_iter().map(|rule| format!("  {rule}")));
        }
    }
    lines.join("\n")
}

/// Lines that only the first has.
fn added(after: &NodeNetwork, before: &NodeNetwork) -> String {
    let (after, before) = (text(after), text(before));
    let added: Vec<&str> = after.lines().filter(|line| !before.lines().any(|known| known == *line)).collect();
    added.join("\n")
}

#[test]
fn a_node_without_tasks() {
    let expected = "\
*raw
WARREN-RAW
  -i wc+ -g WARREN-RAW-C
  -i lo -j RETURN
  -s 10.210.0.0/16 -j DROP
  -d 10.210.0.0/16 -j DROP
  -d 127.0.0.0/8 -j DROP
WARREN-RAW-C
  -m rpfilter --invert -j DROP
  -d 127.0.0.0/8 -j DROP
WARREN-RAW-OUT
  -m mark --mark 0x77000 -j CT --notrack
*mangle
*filter
WARREN-CLOSED
WARREN-FWD
  -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
  -m conntrack --ctstate INVALID -j DROP
  -d 10.210.224.0/19 -p tcp -j REJECT --reject-with tcp-reset
  -d 10.210.224.0/19 -j REJECT --reject-with icmp-port-unreachable
  -i wc+ -m conntrack --ctstate DNAT --ctorigdst 10.210.224.0/19 -j ACCEPT
  -m conntrack --ctstate DNAT -g WARREN-PUB
  -i wc+ -j ACCEPT
  -j DROP
WARREN-IN
  -m conntrack --ctstate NEW -j WARREN-CLOSED
  -i wc+ -g WARREN-NODE
WARREN-NODE
  -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
  -m conntrack --ctstate INVALID -j DROP
  -p icmp -m icmp --icmp-type 8 -j ACCEPT
  -d 10.210.1.1/32 -p udp -m udp --dport 53 -j ACCEPT
  -d 10.210.1.1/32 -p tcp -m tcp --dport 53 -j ACCEPT
  -p tcp -j REJECT --reject-with tcp-reset
  -j REJECT --reject-with icmp-port-unreachable
WARREN-OUT
  -o wc+ -p icmp -m icmp --icmp-type 5 -j DROP
  -o wc+ -p icmp -m icmp --icmp-type 3/3 -m conntrack --ctstate RELATED --ctproto 17 \
  --ctorigdst 10.210.1.1 --ctorigdstport 53 -j DROP
  -d 10.210.224.0/19 -p tcp -j REJECT --reject-with tcp-reset
  -d 10.210.224.0/19 -j REJECT --reject-with icmp-port-unreachable
WARREN-PUB
  -j WARREN-USER
  -j ACCEPT
*nat
WARREN-HAIRPIN
WARREN-MASQ
  -d 10.210.0.0/16 -j RETURN
  -j MASQUERADE --random-fully
WARREN-OUT
  -d 10.210.224.0/19 -j WARREN-VIP
  -d 10.210.1.1/32 -p tcp -m tcp --dport 53 -j RETURN
  -d 10.210.1.1/32 -p udp -m udp --dport 53 -j RETURN
  -m addrtype --dst-type LOCAL -j WARREN-PORTS
WARREN-PORTS
WARREN-POST
  -s 10.210.1.0/24 -d 10.210.1.0/24 -m conntrack --ctstate DNAT -j WARREN-HAIRPIN
  -s 127.0.0.0/8 -o wc+ -j SNAT --to-source 10.210.1.1
  -s 10.210.1.0/24 -j WARREN-MASQ
WARREN-PRE
  -d 10.210.224.0/19 -j WARREN-VIP
  -d 10.210.1.1/32 -p tcp -m tcp --dport 53 -j RETURN
  -d 10.210.1.1/32 -p udp -m udp --dport 53 -j RETURN
  -m addrtype --dst-type LOCAL -j WARREN-PORTS
WARREN-VIP";
    assert_eq!(text(&node(&["10.210.0.0/16"])), expected);
}

#[test]
fn an_overlay_adds_its_own_rules() {
    let alone = node(&["10.210.0.0/16"]);
    let expected = "  \
  -i warren-vx -g WARREN-RAW-VX
  -p udp -m udp --dport 4789 -m addrtype --dst-type LOCAL -j CT --notrack
  -p udp -m udp --dport 4789 -j DROP
  -p udp -m udp --dport 4789 -j CT --notrack
WARREN-RAW-VX
  -s 127.0.0.0/8 -j DROP
  -s 10.210.1.0/24 -j DROP
  -s 10.210.0.0/16 -j RETURN
  -d 10.210.1.0/24 -g WARREN-RAW-ZONE
WARREN-RAW-ZONE
  -j CT --zone-orig mark
WARREN-ENTRY
  -s 10.210.0.0/16 -j RETURN
  -j CONNMARK --save-mark --nfmask 0xfff --ctmask 0xfff00000 --left-shift-mark 20
  -j CONNMARK --restore-mark --nfmask 0xfff00000 --ctmask 0xfff00000
  -m rpfilter --validmark --invert -j DROP
WARREN-EXIT
  -j MARK --set-xmark 0x0/0xffffffff
  -s 10.210.0.0/16 -j RETURN
  -j MARK --set-xmark 0x1/0xffffffff
  -m connmark ! --mark 0x0/0xfff00000 -j CONNMARK --restore-mark --nfmask 0xfff00000 --ctmask 0xfff00000
  -o warren-vx -g WARREN-EXIT
  -i wc+ -m connmark ! --mark 0x0/0xfff00000 -j CONNMARK --restore-mark --nfmask 0xfff00000 --ctmask 0xfff00000
  -i warren-vx -m conntrack --ctstate NEW -j WARREN-ENTRY
  -i warren-vx -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xfff00000
  -i wc+ ! -o warren-vx -m connmark ! --mark 0x0/0xfff00000 -j DROP
  -i warren-vx -o wc+ -j ACCEPT
  -p udp -m udp --dport 4789 -j WARREN-VXIN
  -p udp -m udp --dport 4789 -j DROP
  -i warren-vx -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
  -i warren-vx -p icmp -m icmp --icmp-type 8 -j ACCEPT
  -i warren-vx -j DROP
WARREN-VXIN
  -s 192.0.2.2/32 -j ACCEPT
WARREN-NODES
  -s 192.0.2.2/32 -j SNAT --to-source 10.210.1.1
WARREN-PEER
  -s 10.210.0.0/16 -j RETURN
  -m addrtype --src-type LOCAL -j SNAT --to-source 10.210.1.1
  -g WARREN-NODES
  -o warren-vx -j WARREN-PEER
  -i warren-vx -j RETURN";
    let mut found = added(&on_overlay(alone.clone()), &alone);
    // The names of chains that exist in two tables are in the first text as well.
    found = found.lines().filter(|line| *line != "WARREN-POST").collect::<Vec<_>>().join("\n");
    assert_eq!(found, expected);
}

#[test]
fn routes_add_rules_for_the_device_of_the_peers() {
    let alone = node(&["10.210.0.0/16"]);
    let direct = direct(alone.clone());
    let expected = "  \
  -s 10.210.0.0/16 -i eth0 -m rpfilter -g WARREN-RAW-PEER
WARREN-RAW-PEER
  -d 10.210.1.0/24 -j RETURN
  -s 10.210.0.0/16 -i eth0 -o wc+ -j ACCEPT
  -s 10.210.0.0/16 -i eth0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
  -s 10.210.0.0/16 -i eth0 -p icmp -m icmp --icmp-type 8 -j ACCEPT
  -s 10.210.0.0/16 -i eth0 -j DROP
WARREN-PEER
  -s 10.210.0.0/16 -j RETURN
  -m addrtype --src-type LOCAL -j SNAT --to-source 10.210.1.1
  -d 10.210.0.0/16 -o eth0 -j WARREN-PEER
  -s 10.210.0.0/16 -i eth0 -j RETURN";
    assert_eq!(added(&direct, &alone), expected);
    assert_eq!(jumps(&direct.settings), jumps(&alone.settings));
    let desired = desired_network(&direct).node;
    assert_eq!((desired.overlay, desired.wireguard, desired.peers), (None, None, vec![]));
    let route = desired.routes.iter().find(|route| route.via.is_some()).unwrap();
    assert_eq!((route.destination.to_string(), route.onlink), ("10.210.2.0/24".to_owned(), false));
    assert_eq!((route.device.as_deref(), route.via), (Some("eth0"), Some([192, 0, 2, 2].into())));
    assert_eq!(route.source, Some(direct.settings.gateway()));
}

#[test]
fn published_ports_add_only_to_their_own_chains() {
    use TransportProtocol::{Sctp, Tcp, Udp};
    let empty = node(&["10.210.0.0/16"]);
    let mut node = empty.clone();
    publish(&mut node, None, 8080, Tcp, &["10.210.1.3:80", "10.210.1.2:80", "10.210.1.4:80"]);
    publish(&mut node, Some("127.0.0.1"), 9000, Tcp, &["10.210.1.2:81"]);
    publish(&mut node, Some("192.0.2.1"), 9000, Udp, &["10.210.1.3:81"]);
    publish(&mut node, None, 9000, Sctp, &["10.210.1.3:82"]);
    publish(&mut node, Some("192.0.2.1"), 9001, Tcp, &[]);
    publish(&mut node, None, 9001, Udp, &[]);
    let expected = "  \
  -p tcp -g WARREN-CLOSED-t
  -p udp -g WARREN-CLOSED-u
WARREN-CLOSED-t
  -d 192.0.2.1/32 -p tcp -m tcp --dport 9001 -m addrtype --dst-type LOCAL -j REJECT --reject-with tcp-reset
WARREN-CLOSED-u
  -p udp -m udp --dport 9001 -m addrtype --dst-type LOCAL -j REJECT --reject-with icmp-port-unreachable
WARREN-H-8080-tcp
  -p tcp -m statistic --mode nth --every 3 --packet 0 -j DNAT --to-destination 10.210.1.2:80
  -p tcp -m statistic --mode nth --every 2 --packet 0 -j DNAT --to-destination 10.210.1.3:80
  -p tcp -j DNAT --to-destination 10.210.1.4:80
WARREN-H-9000-sctp
  -p sctp -j DNAT --to-destination 10.210.1.3:82
WARREN-H-9000-tcp-7f000001
  -p tcp -j DNAT --to-destination 10.210.1.2:81
WARREN-H-9000-udp-c0000201
  -p udp -j DNAT --to-destination 10.210.1.3:81
  -s 10.210.1.2/32 -d 10.210.1.2/32 -j SNAT --to-source 10.210.1.1
  -s 10.210.1.3/32 -d 10.210.1.3/32 -j SNAT --to-source 10.210.1.1
  -s 10.210.1.4/32 -d 10.210.1.4/32 -j SNAT --to-source 10.210.1.1
  -p tcp -g WARREN-PORTS-t
  -p udp -g WARREN-PORTS-u
  -p sctp -g WARREN-PORTS-s
WARREN-PORTS-s
  -p sctp -m sctp --dport 9000 -g WARREN-H-9000-sctp
WARREN-PORTS-t
  -p tcp -m tcp --dport 8080 -g WARREN-H-8080-tcp
  -d 127.0.0.1/32 -p tcp -m tcp --dport 9000 -g WARREN-H-9000-tcp-7f000001
WARREN-PORTS-u
  -d 192.0.2.1/32 -p udp -m udp --dport 9000 -g WARREN-H-9000-udp-c0000201";
    assert_eq!(added(&node, &empty), expected);
}

/// Publishes a port in ingress mode.
fn ingress(node: &mut NodeNetwork, port: u16, protocol: TransportProtocol, backends: &[&str]) {
    let at = HostPort::new(None, NonZeroU16::new(port).unwrap(), protocol);
    let backends = backends.iter().map(|backend| backend.parse().unwrap()).collect();
    Arc::make_mut(&mut node.cluster).ingress.insert(at, backends);
}

#[test]
fn ingress_ports_lead_to_all_nodes_on_the_overlay_and_to_this_one_otherwise() {
    use TransportProtocol::{Tcp, Udp};
    let overlay = on_overlay(node(&["10.210.0.0/16"]));
    let far = |number| {
        let far = Overlay::new(number, [192, 0, 2, 1].into(), DEFAULT_VXLAN_PORT, DEFAULT_VNI).unwrap();
        NodeNetwork { settings: overlay.settings.clone().with_overlay(far), ..overlay.clone() }
    };
    let every = "\
WARREN-H-8080-tcp
  -p tcp -m statistic --mode nth --every 2 --packet 0 -j DNAT --to-destination 10.210.1.2:80
  -p tcp -j DNAT --to-destination 10.210.2.2:80
WARREN-H-8081-udp
  -p udp -j DNAT --to-destination 10.210.2.3:81";
    let own = "\
  -p udp -m udp --dport 8081 -m addrtype --dst-type LOCAL -j REJECT --reject-with icmp-port-unreachable
WARREN-H-8080-tcp
  -p tcp -j DNAT --to-destination 10.210.1.2:80";
    for (empty, expected) in [
        (overlay.clone(), every),
        (far(4095), every),
        (far(4096), own),
        (direct(node(&["10.210.0.0/16"])), own),
        (node(&["10.210.0.0/16"]), own),
    ] {
        let mut node = empty.clone();
        ingress(&mut node, 8080, Tcp, &["10.210.2.2:80", "10.210.1.2:80"]);
        ingress(&mut node, 8081, Udp, &["10.210.2.3:81"]);
        let found = added(&node, &empty);
        let targets = ["-j DNAT", "-j REJECT"];
        let found = found.lines().filter(|line| {
            line.starts_with("WARREN-H-") || targets.iter().any(|target| line.contains(target))
        });
        assert_eq!(found.collect::<Vec<_>>().join("\n").trim_start(), expected);
        // Connections of a task to itself.
        assert!(text(&node).contains("-s 10.210.1.2/32 -d 10.210.1.2/32 -j SNAT --to-source 10.210.1.1"));
        // Host mode wins, and nothing else changes.
        let before = node.clone();
        publish(&mut node, None, 8080, Tcp, &["10.210.1.9:80"]);
        let changes = chain_changes(&before, &node);
        let names: Vec<&str> = changes.iter().map(|change| change.chain.as_str()).collect();
        assert_eq!(names, ["WARREN-H-8080-tcp", "WARREN-HAIRPIN"]);
        assert!(text(&node).contains("WARREN-H-8080-tcp\n  -p tcp -j DNAT --to-destination 10.210.1.9:80\n"));
    }
    // Only numbers that fit have a way back.
    let mut many = overlay;
    let peer = many.cluster.peers[&2].clone();
    Arc::make_mut(&mut many.cluster).peers.extend([(4095, peer.clone()), (4096, peer)]);
    let desired = desired_network(&many).node;
    let tables: BTreeSet<u32> = desired.routes.iter().map(|route| route.table).collect();
    assert_eq!(tables, [254, 4098, 8191].into());
    assert_eq!(desired.rules.iter().map(|rule| rule.priority).max(), Some(9000));
    assert!(desired.rules.iter().any(|rule| rule.mark.is_some_and(|mark| mark.value == 0xfff0_0000)));
}

#[test]
fn one_ingress_port_among_many_changes_its_chain() {
    let mut before = on_overlay(node(&["10.210.0.0/16"]));
    for port in 20_000..21_000 {
        ingress(&mut before, port, TransportProtocol::Tcp, &["10.210.2.2:80", "10.210.2.3:80"]);
    }
    let mut after = before.clone();
    ingress(&mut after, 20_500, TransportProtocol::Tcp, &["10.210.2.2:80"]);
    let names = |changes: Vec<ChainChange>| {
        changes.into_iter().map(|change| format!("{} {}", change.table, change.chain)).collect::<Vec<_>>()
    };
    assert_eq!(names(chain_changes(&before, &after)), ["nat WARREN-H-20500-tcp"]);
    // Its last backend goes: its rule, its chain, and the one that refuses it.
    ingress(&mut after, 20_500, TransportProtocol::Tcp, &[]);
    assert!(names(chain_changes(&before, &after)).len() <= 4, "{:?}", chain_changes(&before, &after));
}

#[test]
fn services_are_translated_without_ports() {
    let empty = node(&["10.210.0.0/16"]);
    let mut node = empty.clone();
    serve(&mut node, "10.210.224.7", &["10.210.1.2", "10.210.2.2"]);
    // Without a backend it stays untranslated and is rejected.
    serve(&mut node, "10.210.224.8", &[]);
    let expected = "  \
  -s 10.210.1.2/32 -d 10.210.1.2/32 -j SNAT --to-source 10.210.1.1
WARREN-S-0ad2e007
  -m statistic --mode nth --every 2 --packet 0 -j DNAT --to-destination 10.210.1.2
  -j DNAT --to-destination 10.210.2.2
  -d 10.210.224.7/32 -g WARREN-S-0ad2e007";
    assert_eq!(added(&node, &empty), expected);
}

#[test]
fn allowed_ports_of_the_node_precede_the_refusal() {
    let mut node = node(&["10.210.0.0/16"]);
    let range = |protocol, first, last| PortRange { protocol, first, last };
    let allowed =
        [range(TransportProtocol::Tcp, 9100, 9100), range(TransportProtocol::Udp, 6000, 6010)].into();
    node.settings = node.settings.with_allowed_ports(allowed);
    let rules = "  -p tcp -m tcp --dport 9100:9100 -j ACCEPT
  -p udp -m udp --dport 6000:6010 -j ACCEPT
  -p tcp -j REJECT --reject-with tcp-reset";
    assert!(text(&node).contains(rules), "{}", text(&node));
}

#[test]
fn every_range_of_the_cluster_is_kept_inside() {
    let text = text(&node(&["10.220.0.0/16", "10.210.0.0/16"]));
    for rule in [
        "  -s 10.220.0.0/16 -j DROP",
        "  -d 10.220.0.0/16 -j DROP",
        "  -d 10.210.0.0/16 -j RETURN\n  -d 10.220.0.0/16 -j RETURN\n  -j MASQUERADE --random-fully",
        "  -d 10.210.224.0/19 -j WARREN-VIP\n  -d 10.220.224.0/19 -j WARREN-VIP",
    ] {
        assert!(text.contains(rule), "{rule}");
    }
}

#[test]
fn every_jump_target_exists() {
    let mut node = on_overlay(node(&["10.210.0.0/16"]));
    for port in 20_000..25_000 {
        let backends: &[&str] = if port % 3 == 0 { &[] } else { &["10.210.1.2:80"] };
        let protocol = TransportProtocol::ALL[usize::from(port % 3)];
        publish(&mut node, (port % 2 == 0).then_some("255.255.255.255"), port, protocol, backends);
    }
    let cluster = Arc::make_mut(&mut node.cluster);
    for service in 0..3_000_u32 {
        let own = Ipv4Addr::from(0x0ad2_0102 + service % 200);
        let far = Ipv4Addr::from(0x0ad2_0202 + service % 200);
        cluster.services.insert(Ipv4Addr::from(0x0ad2_e001 + service), BTreeSet::from([own, far]));
    }
    let desired = desired_network(&node);
    for table in &desired.tables {
        let jumps =
            desired.jumps.iter().filter(|jump| jump.table == table.name).map(|jump| jump.rule.to_owned());
        for rule in table.chains.values().flatten().cloned().chain(jumps) {
            let words: Vec<&str> = rule.split(' ').collect();
            let target = words.windows(2).find(|pair| matches!(pair[0], "-j" | "-g")).unwrap()[1];
            let exists = table.chains.contains_key(target) || target == crate::names::USER_CHAIN;
            assert!(!target.starts_with("WARREN-") || exists, "{rule}");
        }
        assert!(table.chains.keys().all(|name| name.len() <= 28 && name.starts_with("WARREN-")));
    }
    assert_eq!(desired, crate::desired::desired_network(&node), "the same input gives the same output");
}

/// Applies changes to tables as the kernel does.
fn apply(tables: &mut [IptablesTable], changes: Vec<ChainChange>) {
    for change in changes {
        let table = tables.iter_mut().find(|table| table.name == change.table).unwrap();
        match change.rules {
            Some(rules) => drop(table.chains.insert(change.chain, rules)),
            None => assert!(table.chains.remove(&change.chain).is_some(), "{} is unknown", change.chain),
        }
    }
}

#[test]
fn changes_lead_to_the_same_chains_as_a_full_write() {
    let mut node = node(&["10.210.0.0/16"]);
    let mut found = tables(&node);
    let mut seed = 7_u32;
    let mut random = |below: u32| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) % below
    };
    for _ in 0..600 {
        let before = node.clone();
        let backends: BTreeSet<Ipv4Addr> =
            (0..random(4)).map(|_| Ipv4Addr::from(0x0ad2_0102 + (random(2) << 8) + random(40))).collect();
        match random(10) {
            8 => {
                let backends: Vec<String> = backends.iter().map(|ip| format!("{ip}:80")).collect();
                let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
                let protocol = TransportProtocol::ALL[random(3) as usize];
                ingress(&mut node, 8000 + random(40) as u16, protocol, &backends);
            }
            9 => drop(Arc::make_mut(&mut node.cluster).ingress.pop_first()),
            0..=3 => {
                let cluster = Arc::make_mut(&mut node.cluster);
                cluster.services.insert(Ipv4Addr::from(0x0ad2_e000 + random(60)), backends);
            }
            4 => {
                let address = Ipv4Addr::from(0x0ad2_e000 + random(60));
                Arc::make_mut(&mut node.cluster).services.remove(&address);
            }
            5 => {
                let at = HostPort::new(
                    None,
                    NonZeroU16::new(8000 + random(40) as u16).unwrap(),
                    TransportProtocol::ALL[random(3) as usize],
                );
                let backends = backends.into_iter().map(|ip| std::net::SocketAddrV4::new(ip, 80)).collect();
                node.ports.insert(at, backends);
            }
            6 => drop(node.ports.pop_first()),
            _ => {
                let number = 2 + random(30) as u16;
                let [_, octet] = number.to_be_bytes();
                let peer = PeerNode {
                    key: None,
                    blocks: vec![format!("10.210.{octet}.0/24").parse().unwrap()],
                    underlay: Ipv4Addr::new(192, 0, 2, octet),
                };
                Arc::make_mut(&mut node.cluster).peers.insert(number, peer);
                // Another data plane.
                match random(10) {
                    0 => node.settings = on_overlay(node.clone()).settings,
                    1 => node.settings = direct(node.clone()).settings,
                    _ => {}
                }
            }
        }
        let changes = chain_changes(&before, &node);
        assert!(node != before || changes.is_empty());
        apply(&mut found, changes);
        assert_eq!(found, tables(&node));
    }
    assert!(chain_changes(&node, &node.clone()).is_empty());
}

#[test]
fn one_service_changes_one_chain() {
    let mut before = node(&["10.210.0.0/16"]);
    for last in 1..=100 {
        serve(&mut before, &format!("10.210.224.{last}"), &["10.210.2.2", "10.210.2.3"]);
    }
    let mut after = before.clone();
    serve(&mut after, "10.210.224.50", &["10.210.2.2"]);
    let changes = chain_changes(&before, &after);
    let names: Vec<&str> = changes.iter().map(|change| change.chain.as_str()).collect();
    assert_eq!(names, ["WARREN-S-0ad2e032"]);
}

#[test]
fn links_routes_and_peers_follow_from_the_node() {
    let mut node = on_overlay(node(&["10.210.0.0/16"]));
    let task = TaskKey::parse("web.1").unwrap();
    node.tasks.insert(task, Attachment::new("10.210.1.9".parse().unwrap()));
    let desired = desired_network(&node);
    assert_eq!(desired.node.gateway.address, Ipv4Addr::new(10, 210, 1, 1));
    let routes: Vec<String> = desired
        .node
        .routes
        .iter()
        .map(|route| format!("{} {} {:?} {:?}", route.destination, route.metric, route.device, route.via))
        .collect();
    assert_eq!(
        routes,
        [
            "10.210.0.0/16 4096 None None",
            "10.210.2.0/24 0 Some(\"warren-vx\") Some(10.210.2.1)",
            "10.210.224.0/19 0 Some(\"lo\") None",
            // The way back to the peer as an entry node.
            "0.0.0.0/0 0 Some(\"warren-vx\") Some(10.210.2.1)",
        ]
    );
    let [peer] = desired.node.peers.as_slice() else { panic!("{:?}", desired.node.peers) };
    assert_eq!((peer.gateway, peer.mac), (Ipv4Addr::new(10, 210, 2, 1), [0x02, 0x57, 192, 0, 2, 2]));
    let device = desired.node.overlay.unwrap();
    assert_eq!((device.mac, device.mtu), ([0x02, 0x57, 192, 0, 2, 1], 1450));
    let [link] = desired.links.as_slice() else { panic!("{:?}", desired.links) };
    assert_eq!((link.mac, link.mtu), ([0x02, 0x58, 10, 210, 1, 9], 1450));
    assert_eq!(link.host_sysctls()[0].path, format!("net/ipv4/conf/{}/route_localnet", link.name));
}

#[test]
fn encrypted_nodes_exchange_packets_of_the_overlay_only_through_wireguard() {
    let plain = on_overlay(node(&["10.210.0.0/16"]));
    let mut encrypted = plain.clone();
    let private_key: warren_wireguard::WireGuardPrivateKey = "11".repeat(32).parse().unwrap();
    let wireguard = WireGuard { private_key: private_key.clone(), port: 51820 };
    encrypted.settings = encrypted.settings.with_wireguard(wireguard).unwrap();
    let expected = "  -i warren-wg -p udp -m udp --dport 4789 -j WARREN-VXIN
  -p udp -m udp --dport 51820 -j WARREN-VXIN
  ! -o warren-wg -p udp -m udp --dport 4789 -j DROP";
    assert_eq!(added(&encrypted, &plain), expected);
    assert_eq!(added(&plain, &encrypted), "  -p udp -m udp --dport 4789 -j WARREN-VXIN");

    // Without its key a peer is not reached, and without WireGuard nothing refers to it.
    let key = warren_wireguard::WireGuardPublicKey([2; 32]);
    let desired = |node: &NodeNetwork| {
        let desired = desired_network(node).node;
        let routes = desired.routes.into_iter().filter(|route| route.table == 4096);
        let routes: Vec<String> = routes
            .map(|route| format!("{} {:?} {:?}", route.destination, route.device, route.source))
            .collect();
        let rules: Vec<String> =
            desired.rules.iter().map(|rule| format!("{} {rule} {:?}", rule.priority, rule.action)).collect();
        (desired.wireguard, routes, rules)
    };
    let unreachable = "0.0.0.0/0 None None".to_owned();
    let own = [
        "900 10.210.0.0/16 with priority 900 Table(254)",
        "9000 0.0.0.0/0 with priority 9000 Nop",
        "901 packets with mark 0x0/0xfff00000 Goto(9000)",
        "1002 packets with mark 0x200000/0xfff00000 Table(4098)",
    ];
    assert_eq!(desired(&plain), (None, vec![], own.map(str::to_owned).to_vec()));
    let (device, routes, rules) = desired(&encrypted);
    let device = device.unwrap();
    assert_eq!((device.mtu, device.settings.port), (DEFAULT_MTU + 50, 51820));
    assert_eq!((device.settings.private_key, device.settings.peers), (private_key, vec![]));
    assert_eq!(routes, std::slice::from_ref(&unreachable));
    let both = ["890 UDP packets to port 4789 Table(4096)", "890 UDP packets from port 4789 Table(4096)"];
    assert_eq!(rules, [&both[..], &own].concat());
    Arc::make_mut(&mut encrypted.cluster).peers.get_mut(&2).unwrap().key = Some(key);
    let (device, routes, _) = desired(&encrypted);
    let peer = warren_wireguard::WireGuardPeer { key, address: [192, 0, 2, 2].into() };
    assert_eq!(device.unwrap().settings.peers, [peer]);
    assert_eq!(routes, [unreachable, "192.0.2.2/32 Some(\"warren-wg\") Some(192.0.2.1)".to_owned()]);
}
