//! Networks of random services, and what nodes are told of them.

use std::collections::BTreeMap;

use proptest::prelude::*;
use warren_core::session::{NetworkHistory, SentNetwork};
use warren_core::{Command, State, StateChange};
use warren_types::*;

use super::{term, time};
use crate::test_cluster::*;

/// The networks, the endpoint mode and the mode of ports of a service with that many replicas.
pub fn add_networks(spec: &mut ServiceSpec, replicas: u32) {
    if replicas % 2 == 1 {
        spec.ports.iter_mut().for_each(|port| port.mode = PublishMode::Ingress);
    }
    if replicas == 3 && !spec.ports.is_empty() {
        spec.publish_on = vec!["node.labels.zone == 1".parse().unwrap()];
    }
    if replicas == 5 {
        spec.endpoint_mode = EndpointMode::Dnsrr;
    }
    let names: &[&str] = match replicas {
        1 if spec.ports.is_empty() => return spec.task.network = TaskNetworkMode::Host,
        4 if spec.ports.is_empty() => return spec.task.network = TaskNetworkMode::None,
        2 => &["back"],
        3 => &["back", "default"],
        5 => &["front"],
        _ => return,
    };
    let attachment = |name: &&str| NetworkAttachment {
        network: name.parse().unwrap(),
        aliases: (replicas == 3).then(|| "alias".parse().unwrap()).into_iter().collect(),
    };
    spec.task.network = TaskNetworkMode::Networks(names.iter().map(attachment).collect());
}

pub fn command() -> impl Strategy<Value = Command> {
    let id = || (1..3u128).prop_map(|number| NetworkId(Id(number)));
    prop_oneof![
        3 => (id(), prop::sample::select(vec!["back", "front"]), any::<bool>(), time()).prop_map(
            |(id, name, internal, at)| {
                let (name, labels) = (name.parse().unwrap(), BTreeMap::new());
                Command::CreateNetwork { id, name, labels, internal, at }
            }
        ),
        1 => (id(), time()).prop_map(|(id, at)| Command::RemoveNetwork { id, at }),
        1 => (term(), 0..100u64, time())
            .prop_map(|(term, acknowledged, at)| Command::ReleaseAddresses { term, acknowledged, at }),
    ]
}

/// A manager and the sessions of its nodes, which lag behind the state.
pub struct Sessions {
    history: NetworkHistory,
    seen: usize,
    nodes: BTreeMap<NodeId, (SentNetwork, NetworkView)>,
}

impl Sessions {
    pub fn new(cluster: &TestCluster) -> Self {
        let seen = cluster.changes.len();
        Self { history: NetworkHistory::new(&cluster.state), seen, nodes: BTreeMap::new() }
    }

    /// The manager looks at all changes but the newest `lag` entries, or at everything, and sends to the nodes.
    pub fn publish(&mut self, cluster: &TestCluster, lag: usize, is_overrun: bool) {
        let until = cluster.changes.len().saturating_sub(lag).max(self.seen);
        let entries = &cluster.changes[std::mem::replace(&mut self.seen, until)..until];
        let index = entries.last().map_or(0, |(index, _)| *index);
        let changes = entries.iter().flat_map(|(_, changes)| changes);
        self.history.update(&cluster.state, (!is_overrun).then_some((index, changes)));
        for number in 1..5 {
            self.send(&cluster.state, node_id(number));
        }
    }

    fn send(&mut self, state: &State, node: NodeId) {
        let (sent, view) = self.nodes.entry(node).or_default();
        let Some(parts) = sent.next_update(&self.history, state, &node) else { return };
        view.apply(self.history.network_update(&parts)).unwrap();
        assert!(sent.acknowledge(view.version));
        let acknowledged = sent.acknowledged();
        assert!(acknowledged <= self.history.version().index, "{acknowledged} was not compared yet");
    }

    /// The sessions of all nodes are opened again, with this manager or with another one that started now.
    pub fn reconnect(&mut self, state: &State, with_new_manager: bool) {
        if with_new_manager {
            self.history = NetworkHistory::new(state);
        }
        for (sent, view) in self.nodes.values_mut() {
            let networks: Vec<NetworkId> = view.catalogues.keys().copied().collect();
            *sent = SentNetwork::new(&self.history, view.version, &networks);
            sent.acknowledge(view.version);
        }
    }

    /// Once everything was sent, each node has what a new manager would send.
    pub fn check(&mut self, cluster: &TestCluster) {
        self.publish(cluster, 0, false);
        let fresh = NetworkHistory::new(&cluster.state);
        for (node, (sent, view)) in &self.nodes {
            let mut expected = NetworkView::default();
            let parts = SentNetwork::default().next_update(&fresh, &cluster.state, node).unwrap();
            expected.apply(fresh.network_update(&parts)).unwrap();
            assert_eq!(view.peers, expected.peers, "{node}");
            assert_eq!(view.catalogues, expected.catalogues, "{node}");
            assert_eq!(sent.acknowledged(), self.history.version().index, "{node}");
        }
    }
}

/// Whether an entry changes nothing that nodes are told.
#[test]
fn other_changes_are_not_sent() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.service(1, spec("web", 2));
    cluster.settle();
    let mut sessions = Sessions::new(&cluster);
    sessions.publish(&cluster, 0, false);
    let changes = [StateChange::Token(TokenId(Id(1))), StateChange::Addresses];
    let index = cluster.state.applied().index;
    let told = sessions.history.update(&cluster.state, Some((index, changes.iter())));
    assert_eq!(told, Default::default());
    let (sent, _) = sessions.nodes.get_mut(&node_id(1)).unwrap();
    assert_eq!(sent.next_update(&sessions.history, &cluster.state, &node_id(1)), None);
}

/// The view of a node as lines.
fn listing(view: &NetworkView) -> String {
    let mut text = String::new();
    for catalogue in view.catalogues.values() {
        for (name, service) in &catalogue.services {
            let endpoints = service
                .endpoints
                .iter()
                .map(|it| format!("{}={}{}", it.slot, it.address, ["-", "+"][usize::from(it.ready)]));
            text += &format!("{} {name} {}\n", catalogue.name, endpoints.collect::<Vec<_>>().join(" "));
        }
    }
    text
}

#[test]
fn update_contains_only_what_changed() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.service(1, spec("web", 2));
    cluster.service(2, spec("db", 1));
    cluster.settle();
    let mut sessions = Sessions::new(&cluster);
    sessions.publish(&cluster, 0, false);
    let view = sessions.nodes[&node_id(1)].1.clone();
    assert_eq!(view.peers.len(), 2);
    assert_eq!(listing(&view).lines().count(), 2, "{}", listing(&view));
    assert!(
        listing(&view).contains("default web 1=10.") && !listing(&view).contains('-'),
        "{}",
        listing(&view)
    );
    let scale = Command::ScaleService { id: service_id(2), version: None, replicas: 0, at: cluster.now };
    cluster.accept(scale);
    cluster.reconcile(2);
    let entries = &cluster.changes[sessions.seen..];
    let index = entries.last().unwrap().0;
    sessions.history.update(&cluster.state, Some((index, entries.iter().flat_map(|(_, it)| it))));
    let (sent, _) = sessions.nodes.get_mut(&node_id(1)).unwrap();
    let parts = sent.next_update(&sessions.history, &cluster.state, &node_id(1)).unwrap();
    let update = sessions.history.network_update(&parts);
    assert_eq!((update.base, update.version.index), (Some(view.version), index));
    assert!(update.peers == Default::default() && update.removed.is_empty());
    let [change] = &update.catalogues[..] else { panic!("{update:?}") };
    let services: Vec<_> = change.services.iter().map(|(name, change)| (name.as_str(), change)).collect();
    let [("db", change)] = services[..] else { panic!("{services:?}") };
    assert!(change.settings.is_none() && change.removed_endpoints.is_empty(), "{change:?}");
    assert_eq!(
        change.endpoints.iter().map(|it| it.ready).collect::<Vec<_>>(),
        [false],
        "its task is to stop"
    );
}

#[test]
fn every_node_gets_the_ports_in_ingress_mode() {
    let mut cluster = TestCluster::with_nodes(2);
    let ingress = |container_port| {
        let mut spec = publishing("web", 1, 8080);
        spec.ports[0].mode = PublishMode::Ingress;
        spec.ports[0].container_port = container_port;
        spec
    };
    let mut sessions = Sessions::new(&cluster);
    cluster.service(1, ingress(80));
    cluster.settle();
    sessions.publish(&cluster, 0, false);
    let shown = |sessions: &Sessions, number| {
        let (_, view) = &sessions.nodes[&node_id(number)];
        let catalogue = view.catalogues.get(&INGRESS_NETWORK)?;
        let service = &catalogue.services[&"web".parse::<ServiceName>().unwrap()];
        let ports = service.ports.iter().map(|port| (port.published.unwrap().get(), port.port));
        let ready = service.endpoints.iter().map(|endpoint| endpoint.ready);
        Some((ports.collect::<Vec<_>>(), ready.collect::<Vec<_>>(), view.peers.len()))
    };
    for number in 1..=2 {
        assert_eq!(shown(&sessions, number), Some((vec![(8080, 80)], vec![true], 2)));
    }
    // The task of the former revision listens elsewhere.
    cluster.update(1, ingress(81));
    sessions.publish(&cluster, 0, false);
    assert_eq!(shown(&sessions, 1), Some((vec![(8080, 81)], vec![false], 2)));
}

#[test]
fn options_of_ports_reach_nodes_and_leave_tasks_alone() {
    let mut cluster = TestCluster::with_nodes(1);
    let ingress = |prefer_local, client_affinity| {
        let mut spec = publishing("web", 1, 8080);
        let port = spec.ports[0];
        spec.ports[0] = PublishedPort { mode: PublishMode::Ingress, prefer_local, client_affinity, ..port };
        spec
    };
    let mut sessions = Sessions::new(&cluster);
    cluster.service(1, ingress(false, false));
    cluster.settle();
    for (prefer_local, client_affinity) in [(true, false), (false, true), (true, true), (false, false)] {
        cluster.update(1, ingress(prefer_local, client_affinity));
        cluster.settle();
        sessions.publish(&cluster, 0, false);
        let (_, view) = &sessions.nodes[&node_id(1)];
        let service = &view.catalogues[&INGRESS_NETWORK].services[&"web".parse::<ServiceName>().unwrap()];
        let ports = service.ports.iter().map(|port| (port.prefer_local, port.client_affinity));
        assert_eq!(ports.collect::<Vec<_>>(), [(prefer_local, client_affinity)]);
        assert!(service.endpoints[0].ready);
        assert_eq!(cluster.live(1), [(1, 1)]);
    }
}

#[test]
fn entry_nodes_follow_labels_and_numbers_of_nodes() {
    let mut cluster = TestCluster::with_nodes(3);
    let selected = |tests: &[&str]| {
        let mut spec = publishing("web", 1, 8080);
        spec.ports[0].mode = PublishMode::Ingress;
        spec.publish_on = tests.iter().map(|test| test.parse().unwrap()).collect();
        spec.placement.constraints = vec![format!("node.id == {}", node_id(1)).parse().unwrap()];
        spec
    };
    let mut sessions = Sessions::new(&cluster);
    let other_than_third = format!("node.id != {}", node_id(3));
    cluster.service(1, selected(&["node.labels.edge == true", &other_than_third]));
    cluster.settle();
    let shown = |sessions: &mut Sessions, cluster: &TestCluster| {
        sessions.publish(cluster, 0, false);
        let entry_nodes = |number| {
            let (_, view) = &sessions.nodes[&node_id(number)];
            let service = &view.catalogues[&INGRESS_NETWORK].services[&"web".parse::<ServiceName>().unwrap()];
            assert_eq!(service.endpoints.len(), 1, "also nodes that open no port know the endpoints");
            service.entry_nodes.clone().map(Vec::from_iter)
        };
        assert_eq!(entry_nodes(1), entry_nodes(2));
        entry_nodes(1)
    };
    let number = |cluster: &TestCluster, node| cluster.state.node(&node_id(node)).unwrap().number;
    assert_eq!(shown(&mut sessions, &cluster), Some(vec![]));
    let revision = cluster.state.service(&service_id(1)).unwrap().revision.number;
    for node in 1..=3 {
        cluster.label(node, "edge", Some("true"));
    }
    let both = vec![number(&cluster, 1), number(&cluster, 2)];
    assert_eq!(shown(&mut sessions, &cluster), Some(both));
    cluster.label(1, "edge", Some("false"));
    assert_eq!(shown(&mut sessions, &cluster), Some(vec![number(&cluster, 2)]));
    cluster.label(1, "edge", Some("true"));
    cluster.remove_node(2);
    assert_eq!(shown(&mut sessions, &cluster), Some(vec![number(&cluster, 1)]));
    // Tasks are left alone.
    let live = cluster.live(1);
    cluster.update(1, selected(&[]));
    cluster.settle();
    assert_eq!(shown(&mut sessions, &cluster), None);
    assert_eq!(cluster.live(1), live);
    assert_eq!(cluster.state.service(&service_id(1)).unwrap().revision.number, revision);
    // A port belongs to one service, also where other nodes open it.
    let other = ServiceSpec { name: "api".parse().unwrap(), ..selected(&["node.labels.edge == false"]) };
    let create = Command::CreateService { id: service_id(2), spec: other, at: cluster.now };
    let refused = cluster.refuse(create);
    assert!(refused.contains("already published by service web; a port belongs to one service"), "{refused}");
}
