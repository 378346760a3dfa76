use std::sync::Arc;

use super::*;
use crate::keys::TaskKey;
use crate::model::{Attachment, ClusterNetwork, DEFAULT_MTU, NetworkMembers};

fn ip(node: u8, last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 210, node, last)
}

/// A node with tasks, given by the last bytes of their addresses and their networks.
fn node(tasks: &[(u8, &[NetworkNumber])]) -> NodeNetwork {
    let settings = NodeNetworkSettings::new(
        vec!["10.210.0.0/16".parse().unwrap()],
        "10.210.1.0/24".parse().unwrap(),
        DEFAULT_MTU,
    );
    let mut node = NodeNetwork::new(settings.unwrap());
    for (last, networks) in tasks {
        let networks = networks.iter().copied().collect();
        let attachment = Attachment { networks, ..Attachment::new(ip(1, *last)) };
        node.tasks.insert(TaskKey::parse(&format!("web.{last}")).unwrap(), attachment);
    }
    node
}

fn with_network(
    mut node: NodeNetwork,
    number: NetworkNumber,
    internal: bool,
    members: &[Ipv4Addr],
) -> NodeNetwork {
    let network = NetworkMembers { internal, members: members.iter().copied().collect() };
    Arc::make_mut(&mut node.cluster).networks.insert(number, network);
    node
}

/// Whether the table lets a task connect to an address.
fn may(table: &Isolation, from: Ipv4Addr, to: Ipv4Addr) -> bool {
    table.classes.get(&from).is_some_and(|class| table.allowed.contains(&(to, *class)))
}

#[test]
fn tasks_reach_members_of_their_networks_only() {
    let node = with_network(node(&[(2, &[1]), (3, &[2]), (4, &[1, 2]), (5, &[])]), 1, false, &[ip(2, 2)]);
    let node = with_network(node, 2, false, &[ip(2, 3), ip(2, 4)]);
    let node = with_network(node, 9, false, &[ip(2, 9)]);
    let table = isolation(&node);
    let all = [ip(1, 2), ip(1, 3), ip(1, 4), ip(1, 5), ip(2, 2), ip(2, 3), ip(2, 9)];
    let reach = |from| all.map(|to| may(&table, from, to));
    assert_eq!(reach(ip(1, 2)), [true, false, true, false, true, false, false]);
    assert_eq!(reach(ip(1, 3)), [false, true, true, false, false, true, false]);
    assert_eq!(reach(ip(1, 4)), [true, true, true, false, true, true, false]);
    assert_eq!(reach(ip(1, 5)), [false; 7], "in no network");
    assert_eq!(table.confined, BTreeSet::from([ip(1, 5)]));
    assert_eq!(table.classes[&ip(1, 2)], 1);
    assert_eq!(table.classes[&ip(1, 3)], 2);
}

#[test]
fn only_tasks_of_internal_networks_have_no_way_out() {
    let node = node(&[(2, &[1]), (3, &[2]), (4, &[1, 2]), (5, &[2, 3]), (6, &[7])]);
    // A network of which nothing is known yet may be internal, but the default network is not.
    assert_eq!(isolation(&node).confined, BTreeSet::from([ip(1, 3), ip(1, 5), ip(1, 6)]));
    let node = with_network(with_network(with_network(node, 1, false, &[]), 2, true, &[]), 3, true, &[]);
    let node = with_network(node, 7, false, &[]);
    assert_eq!(isolation(&node).confined, BTreeSet::from([ip(1, 3), ip(1, 5)]));
}

#[test]
fn metadata_is_refused_unless_the_task_allows_it() {
    let mut node = node(&[(2, &[1]), (3, &[1])]);
    node.tasks.values_mut().next().unwrap().allows_metadata = true;
    assert_eq!(isolation(&node).metadata, BTreeSet::from([ip(1, 2)]));
}

#[test]
fn classes_do_not_depend_on_other_tasks() {
    let alone = isolation(&node(&[(4, &[2, 3])])).classes[&ip(1, 4)];
    let table = isolation(&node(&[(2, &[1]), (3, &[1, 2, 3]), (4, &[2, 3]), (5, &[3, 2])]));
    assert_eq!(table.classes[&ip(1, 4)], alone);
    assert_eq!(table.classes[&ip(1, 5)], alone);
    assert!(alone & COMBINATION != 0 && table.classes[&ip(1, 3)] != alone);
}

#[test]
fn combinations_with_the_same_hash_get_different_classes() {
    let networks = BTreeSet::from([1, 2]);
    let mut taken = BTreeSet::new();
    let first = class(&networks, &mut taken);
    let second = class(&networks, &mut taken);
    assert_ne!(first, second);
    // A number beyond the range of single networks is hashed as well.
    assert!(class(&BTreeSet::from([COMBINATION | 5]), &mut BTreeSet::new()) & COMBINATION != 0);
    assert!(class(&BTreeSet::from([0]), &mut BTreeSet::new()) & COMBINATION != 0);
}

#[test]
fn chains_name_every_range() {
    let settings = NodeNetworkSettings::new(
        vec!["10.210.0.0/16".parse().unwrap(), "10.220.0.0/16".parse().unwrap()],
        "10.210.1.0/24".parse().unwrap(),
        DEFAULT_MTU,
    );
    let mut node = NodeNetwork::new(settings.unwrap());
    node.cluster = Arc::new(ClusterNetwork::default());
    let expected = "\
\tchain refuse {
\t\tmeta mark set 0x0
\t\tmeta l4proto tcp reject with tcp reset
\t\treject with icmp type admin-prohibited
\t}
\tchain isolate {
\t\tip daddr { 10.210.224.0/19, 10.220.224.0/19 } accept
\t\tmeta mark set 0x0
\t\tmeta mark set ip saddr map @class
\t\tip daddr . meta mark @allowed meta mark set 0x0 accept
\t\tgoto refuse
\t}
\tchain forward {
\t\ttype filter hook forward priority -5; policy accept;
\t\tiifname != \"wc*\" accept
\t\tct state established,related accept
\t\tct original ip daddr 169.254.169.254 ip saddr != @metadata goto refuse
\t\tip saddr @confined goto isolate
\t\tct status dnat ct original ip daddr != { 10.210.224.0/19, 10.220.224.0/19 } accept
\t\tip daddr { 10.210.0.0/16, 10.220.0.0/16 } goto isolate
\t}
\tchain input {
\t\ttype filter hook input priority -5; policy accept;
\t\tiifname != \"wc*\" accept
\t\tct state established,related accept
\t\tct original ip daddr 169.254.169.254 ip saddr != @metadata goto refuse
\t\tip saddr != @confined accept
\t\tip daddr 10.210.1.1 meta l4proto { tcp, udp } th dport 53 accept
\t\tip daddr 10.210.1.1 meta l4proto icmp accept
\t\tgoto refuse
\t}
";
    assert_eq!(isolation(&node).chains, expected);
}
