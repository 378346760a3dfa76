use std::num::NonZeroU16;

use super::*;
use crate::desired::desired_network;
use crate::model::{DEFAULT_MTU, NodeNetworkSettings};

fn node(cluster: &[&str]) -> NodeNetwork {
    let ranges = cluster.iter().map(|range| range.parse().unwrap()).collect();
    NodeNetwork::new(NodeNetworkSettings::new(ranges, "10.210.1.0/24".parse().unwrap(), DEFAULT_MTU).unwrap())
}

fn publish(node: &mut NodeNetwork, ip: Option<&str>, port: u16, backends: &[&str]) {
    let at = HostPort::new(ip.map(|ip| ip.parse().unwrap()), NonZeroU16::new(port).unwrap());
    node.ports.insert(at, backends.iter().map(|backend| backend.parse().unwrap()).collect());
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
*filter
WARREN-CLOSED
WARREN-FWD
  -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
  -m conntrack --ctstate INVALID -j DROP
  -m conntrack --ctstate DNAT -j ACCEPT
  -i wc+ -j ACCEPT
  -j DROP
WARREN-IN
  -p tcp -m conntrack --ctstate NEW -j WARREN-CLOSED
WARREN-OUT
  -o wc+ -p icmp -m icmp --icmp-type 5 -j DROP
*nat
WARREN-HAIRPIN
WARREN-MASQ
  -d 10.210.0.0/16 -j RETURN
  -j MASQUERADE --random-fully
WARREN-OUT
  -m addrtype --dst-type LOCAL -j WARREN-PORTS
WARREN-PORTS
WARREN-POST
  -s 10.210.1.0/24 -d 10.210.1.0/24 -m conntrack --ctstate DNAT -j WARREN-HAIRPIN
  -s 127.0.0.0/8 -o wc+ -j SNAT --to-source 10.210.1.1
  -s 10.210.1.0/24 -j WARREN-MASQ
WARREN-PRE
  -m addrtype --dst-type LOCAL -j WARREN-PORTS";
    assert_eq!(text(&node(&["10.210.0.0/16"])), expected);
}

#[test]
fn published_ports_add_only_to_their_own_chains() {
    let empty = node(&["10.210.0.0/16"]);
    let mut node = empty.clone();
    publish(&mut node, None, 8080, &["10.210.1.3:80", "10.210.1.2:80", "10.210.1.4:80"]);
    publish(&mut node, Some("127.0.0.1"), 9000, &["10.210.1.2:81"]);
    publish(&mut node, Some("192.0.2.1"), 9000, &["10.210.1.3:81"]);
    publish(&mut node, Some("192.0.2.1"), 9001, &[]);
    let before = text(&empty);
    let all = text(&node);
    let added: Vec<&str> = all.lines().filter(|line| !before.lines().any(|known| known == *line)).collect();
    let expected = "  \
  -d 192.0.2.1/32 -p tcp -m tcp --dport 9001 -m addrtype --dst-type LOCAL -j REJECT --reject-with tcp-reset
WARREN-H-8080-tcp
  -p tcp -m statistic --mode nth --every 3 --packet 0 -j DNAT --to-destination 10.210.1.2:80
  -p tcp -m statistic --mode nth --every 2 --packet 0 -j DNAT --to-destination 10.210.1.3:80
  -p tcp -j DNAT --to-destination 10.210.1.4:80
WARREN-H-9000-tcp-7f000001
  -p tcp -j DNAT --to-destination 10.210.1.2:81
WARREN-H-9000-tcp-c0000201
  -p tcp -j DNAT --to-destination 10.210.1.3:81
  -s 10.210.1.2/32 -d 10.210.1.2/32 -j SNAT --to-source 10.210.1.1
  -s 10.210.1.3/32 -d 10.210.1.3/32 -j SNAT --to-source 10.210.1.1
  -s 10.210.1.4/32 -d 10.210.1.4/32 -j SNAT --to-source 10.210.1.1
  -p tcp -m tcp --dport 8080 -g WARREN-H-8080-tcp
  -d 127.0.0.1/32 -p tcp -m tcp --dport 9000 -g WARREN-H-9000-tcp-7f000001
  -d 192.0.2.1/32 -p tcp -m tcp --dport 9000 -g WARREN-H-9000-tcp-c0000201";
    assert_eq!(added.join("\n"), expected);
}

#[test]
fn every_range_of_the_cluster_is_kept_inside() {
    let text = text(&node(&["10.220.0.0/16", "10.210.0.0/16"]));
    for rule in [
        "  -s 10.220.0.0/16 -j DROP",
        "  -d 10.220.0.0/16 -j DROP",
        "  -d 10.210.0.0/16 -j RETURN\n  -d 10.220.0.0/16 -j RETURN\n  -j MASQUERADE --random-fully",
    ] {
        assert!(text.contains(rule), "{rule}");
    }
}

#[test]
fn every_jump_target_exists() {
    let mut node = node(&["10.210.0.0/16"]);
    for port in 20_000..25_000 {
        let backends: &[&str] = if port % 3 == 0 { &[] } else { &["10.210.1.2:80"] };
        publish(&mut node, (port % 2 == 0).then_some("255.255.255.255"), port, backends);
    }
    let desired = desired_network(&node);
    for table in &desired.tables {
        let jumps =
            desired.jumps.iter().filter(|jump| jump.table == table.name).map(|jump| jump.rule.to_owned());
        for rule in table.chains.values().flatten().cloned().chain(jumps) {
            let words: Vec<&str> = rule.split(' ').collect();
            let target = words.windows(2).find(|pair| matches!(pair[0], "-j" | "-g")).unwrap()[1];
            assert!(!target.starts_with("WARREN-") || table.chains.contains_key(target), "{rule}");
        }
        assert!(table.chains.keys().all(|name| name.len() <= 28 && name.starts_with("WARREN-")));
    }
    assert_eq!(desired, crate::desired::desired_network(&node), "the same input gives the same output");
}

#[test]
fn links_and_routes_follow_from_the_tasks() {
    let mut node = node(&["10.210.0.0/16"]);
    node.tasks.insert(crate::TaskKey::parse("web.1").unwrap(), "10.210.1.9".parse().unwrap());
    let desired = desired_network(&node);
    assert_eq!(desired.gateway.address, Ipv4Addr::new(10, 210, 1, 1));
    assert_eq!(desired.routes.len(), 1);
    let [link] = desired.links.as_slice() else { panic!("{:?}", desired.links) };
    assert_eq!((link.mac, link.mtu), ([0x02, 0x58, 10, 210, 1, 9], 1450));
    assert_eq!(link.host_sysctls()[0].path, format!("net/ipv4/conf/{}/route_localnet", link.name));
}
