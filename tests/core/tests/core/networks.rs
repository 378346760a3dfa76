//! Networks, virtual addresses, and when addresses are assigned again.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use warren_core::{ApplyOutcome, Command, CommandResponse};
use warren_types::*;

use crate::test_cluster::*;

fn network_id(number: u128) -> NetworkId {
    NetworkId(Id(number))
}

fn create(cluster: &TestCluster, number: u128, name: &str) -> Command {
    let (id, name) = (network_id(number), name.parse().unwrap());
    Command::CreateNetwork { id, name, labels: BTreeMap::new(), internal: false, at: cluster.now }
}

fn remove(cluster: &TestCluster, number: u128) -> Command {
    Command::RemoveNetwork { id: network_id(number), at: cluster.now }
}

fn release(cluster: &TestCluster, acknowledged: u64) -> Command {
    let term = cluster.state.applied().term;
    Command::ReleaseAddresses { term, acknowledged, at: cluster.now }
}

fn attached(name: &str, replicas: u32, networks: &[&str]) -> ServiceSpec {
    let mut spec = spec(name, replicas);
    let attachment =
        |name: &&str| NetworkAttachment { network: name.parse().unwrap(), aliases: Default::default() };
    spec.task.network = TaskNetworkMode::Networks(networks.iter().map(attachment).collect());
    spec
}

fn with_alias(mut spec: ServiceSpec, alias: &str) -> ServiceSpec {
    let TaskNetworkMode::Networks(networks) = &mut spec.task.network else { panic!("it has networks") };
    networks[0].aliases.insert(alias.parse().unwrap());
    spec
}

fn virtual_addresses(cluster: &TestCluster, number: u128) -> Vec<String> {
    let service = cluster.state.service(&service_id(number)).unwrap();
    service.virtual_addresses.values().map(ToString::to_string).collect()
}

#[test]
fn network_is_created_once_and_removed_when_unused() {
    let mut cluster = TestCluster::with_nodes(1);
    let default = cluster.state.networks().next().unwrap().clone();
    assert_eq!((default.name.as_str(), default.number), ("default", 1));
    cluster.accept(create(&cluster, 1, "back"));
    let created = cluster.state.network(&network_id(1)).unwrap().clone();
    assert_eq!((created.number, created.version), (2, cluster.state.applied().index));
    let again = cluster.apply(&create(&cluster, 1, "back"));
    assert_eq!(again, ApplyOutcome::Unchanged { answer: CommandResponse::Network(created) });
    assert_eq!(
        cluster.refuse(create(&cluster, 2, "back")),
        "network back already exists; choose another name or remove it first"
    );
    for name in ["host", "none"] {
        assert!(cluster.refuse(create(&cluster, 2, name)).contains("is not a network"));
    }
    cluster.service(1, attached("db", 1, &["back"]));
    assert_eq!(
        cluster.refuse(remove(&cluster, 1)),
        "network back is used by db; remove or update that first"
    );
    cluster.update(1, attached("db", 1, &["default"]));
    cluster.accept(remove(&cluster, 1));
    assert!(cluster.refuse(remove(&cluster, 1)).contains("does not exist"));
    let default = Command::RemoveNetwork { id: default.id, at: cluster.now };
    assert!(cluster.refuse(default).contains("always exists"));
    cluster.accept(create(&cluster, 3, "front"));
    assert_eq!(cluster.state.network(&network_id(3)).unwrap().number, 2, "numbers are used again");
    cluster.state.check().unwrap();
}

#[test]
fn removed_network_prevents_rollback() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.accept(create(&cluster, 1, "back"));
    cluster.service(1, attached("db", 0, &["back"]));
    cluster.update(1, attached("db", 0, &["default"]));
    assert_eq!(virtual_addresses(&cluster, 1).len(), 2, "the earlier revision can become the current one");
    cluster.accept(remove(&cluster, 1));
    assert_eq!(virtual_addresses(&cluster, 1).len(), 1);
    let (id, at, version) = (service_id(1), cluster.now, Some(cluster.version(1)));
    let refusal = cluster.refuse(Command::RollbackService { id, version, revision: Some(1), at });
    let expected =
        "revision 1 of service db is in network back, which was removed; update the service instead";
    assert_eq!(refusal, expected);
    cluster.state.check().unwrap();
}

#[test]
fn names_and_aliases_on_one_network_do_not_collide() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.accept(create(&cluster, 1, "back"));
    cluster.service(1, spec("db", 1));
    let refuse = |cluster: &mut TestCluster, spec: ServiceSpec| {
        let at = cluster.now;
        cluster.refuse(Command::CreateService { id: service_id(9), spec, at })
    };
    let unknown = refuse(&mut cluster, attached("web", 1, &["front"]));
    assert!(
        unknown.contains("spec.task.network.networks[0].network: network front does not exist"),
        "{unknown}"
    );
    let taken = refuse(&mut cluster, with_alias(spec("web", 1), "db"));
    assert!(taken.contains("db is the name of a service on network default"), "{taken}");
    cluster.service(2, with_alias(spec("web", 1), "www"));
    let aliased = refuse(&mut cluster, spec("www", 1));
    assert!(aliased.contains("www is an alias of service web on network default"), "{aliased}");
    cluster.service(3, attached("www", 1, &["back"]));
    cluster.service(4, with_alias(spec("web2", 1), "www"));
}

#[test]
fn service_has_a_virtual_address_per_network() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.accept(create(&cluster, 1, "back"));
    cluster.service(1, spec("web", 1));
    cluster.service(2, attached("db", 1, &["back", "default"]));
    assert_eq!(virtual_addresses(&cluster, 1), ["10.224.0.1"]);
    assert_eq!(virtual_addresses(&cluster, 2).len(), 2);
    let mut list = spec("web", 1);
    list.endpoint_mode = EndpointMode::Dnsrr;
    cluster.update(1, list.clone());
    assert_eq!(virtual_addresses(&cluster, 1), [""; 0]);
    assert_eq!(cluster.state.service(&service_id(1)).unwrap().revision.number, 1, "no task is replaced");
    list.endpoint_mode = EndpointMode::Vip;
    cluster.update(1, list);
    assert_eq!(virtual_addresses(&cluster, 1), ["10.224.0.4"], "the first one is still withdrawn");
    cluster.state.check().unwrap();
    assert_eq!(warren_core::State::restore(cluster.state.export()).unwrap(), cluster.state);
}

/// A cluster with one node of five addresses and no further subnet.
fn small() -> TestCluster {
    let mut cluster = TestCluster {
        state: warren_core::State::new(),
        now: Timestamp(1),
        changes: Vec::new(),
        events: Vec::new(),
    };
    let ranges = vec!["10.0.0.0/24".parse().unwrap()];
    let (id, feature_level) = (ClusterId(Id(1)), warren_core::FEATURE_LEVEL);
    cluster.accept(Command::CreateCluster { id, ranges, feature_level, at: cluster.now });
    cluster.node(1, resources(1_000_000, 1 << 20));
    cluster
}

#[test]
fn no_virtual_address_is_a_typed_refusal() {
    let mut cluster = small();
    let (id, at) = (service_id(1), cluster.now);
    let refusal = cluster.refuse(Command::CreateService { id, spec: spec("web", 1), at });
    assert!(refusal.contains("no virtual address is free for service web"), "{refusal}");
    let mut list = spec("web", 1);
    list.endpoint_mode = EndpointMode::Dnsrr;
    cluster.service(1, list);
}

#[test]
fn withdrawn_address_is_assigned_again_after_all_nodes_forgot_it() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.service(1, spec("web", 1));
    cluster.settle();
    let address = cluster.task(1, 1).address.unwrap();
    cluster.accept(Command::RemoveService {
        id: service_id(1),
        version: None,
        force: false,
        at: cluster.now,
    });
    cluster.settle();
    cluster.clean_up();
    let withdrawal = cluster.state.oldest_withdrawal().unwrap();
    let index = cluster.state.applied().index;
    let later = Duration::from_secs(120);
    let unchanged = |cluster: &mut TestCluster, acknowledged| {
        let command = release(cluster, acknowledged);
        matches!(cluster.apply(&command), ApplyOutcome::Unchanged { .. })
    };
    assert!(unchanged(&mut cluster, index), "too early");
    cluster.advance_time(later);
    assert!(unchanged(&mut cluster, withdrawal.index - 1), "a node has not acknowledged it");
    cluster.accept(release(&cluster, index));
    assert_eq!(cluster.state.oldest_withdrawal(), None);
    assert_eq!(address, Ipv4Addr::new(10, 0, 0, 2));
    cluster.state.check().unwrap();
}

#[test]
fn full_node_gets_a_further_subnet() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.service(1, spec("web", 300));
    cluster.settle();
    cluster.settle();
    assert_eq!(cluster.state.task_counts(&service_id(1)).ready, 300);
    let node = cluster.state.node(&node_id(1)).unwrap();
    assert_eq!(
        node.subnets.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["10.0.0.0/24", "10.0.1.0/24"]
    );
    assert_eq!(cluster.state.tasks_on(&node_id(1)).count(), 300);
    cluster.state.check().unwrap();
}

#[test]
fn subnet_and_number_of_a_removed_node_are_withdrawn() {
    let mut cluster = TestCluster::with_nodes(2);
    let of = |cluster: &TestCluster, number| {
        let node = cluster.state.node(&node_id(number)).unwrap();
        (node.number, node.subnets[0].to_string())
    };
    assert_eq!(of(&cluster, 2), (2, "10.0.1.0/24".to_owned()));
    cluster.accept(Command::RemoveNode { id: node_id(2), force: true, at: cluster.now });
    cluster.node(3, resources(1000, 1024));
    assert_eq!(of(&cluster, 3), (3, "10.0.2.0/24".to_owned()));
    cluster.advance_time(Duration::from_secs(120));
    cluster.accept(release(&cluster, cluster.state.applied().index));
    cluster.node(4, resources(1000, 1024));
    assert_eq!(of(&cluster, 4), (4, "10.0.3.0/24".to_owned()), "the oldest ones are used again last");
    let withdrawn = cluster.state.oldest_withdrawal();
    assert_eq!(withdrawn, None);
    cluster.state.check().unwrap();
}
