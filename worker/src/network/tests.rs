//! Names of a node that answers from its view.

use std::collections::BTreeSet;

use tokio::net::UdpSocket;
use warren_network::fake::FakeNetwork;
use warren_network::{DEFAULT_MTU, NodeNetworkSettings};

use super::*;
use crate::fixtures::{
    add_service, catalogue, eventually, loopback_dns, network_view, settings, task, task_id,
};

struct TestNode {
    network: Arc<FakeNetwork>,
    networks: TaskNetworks,
    view: watch::Sender<NetworkView>,
}

impl TestNode {
    async fn start(resolv_conf: &std::path::Path) -> Self {
        let network = Arc::new(FakeNetwork::new("/run/none"));
        let node = settings();
        let settings = NodeNetworkSettings::new(node.ranges.clone(), node.subnets[0], DEFAULT_MTU).unwrap();
        network.ensure_node(&settings).await.unwrap();
        let view = watch::Sender::new(NetworkView::default());
        let desired_state = DesiredState { settings: Some(node.clone()), ..DesiredState::default() };
        let (_, desired_state) = watch::channel(desired_state);
        let dns = NodeDns::new(loopback_dns(), resolv_conf);
        let networks = TaskNetworks::new(network.clone(), view.subscribe(), desired_state, dns);
        networks.ensure_dns(&node).await.unwrap();
        Self { network, networks, view }
    }

    /// The addresses of a name for the node itself, which sees every network.
    async fn resolve(&self, name: &str) -> Vec<Ipv4Addr> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            query.push(u8::try_from(label.len()).unwrap());
            query.extend(label.as_bytes());
        }
        query.extend([0, 0, 1, 0, 1]);
        socket.send_to(&query, self.networks.dns().addresses()[0]).await.unwrap();
        let mut answer = [0; 512];
        let size = timeout(Duration::from_secs(20), socket.recv(&mut answer)).await.unwrap().unwrap();
        let count = usize::from(answer[7]);
        if count == 0 {
            return Vec::new();
        }
        // Each record ends with its address.
        let records = &answer[query.len()..size];
        let ends =
            records.chunks_exact(records.len() / count).map(|record| record.last_chunk::<4>().unwrap());
        ends.map(|address| Ipv4Addr::from(*address)).collect()
    }

    fn members(&self) -> BTreeSet<u32> {
        let key = task_key(task_id(1)).unwrap();
        self.network.attachment(&key).map(|attachment| attachment.networks).unwrap_or_default()
    }
}

fn connected(network: &str) -> ConnectedTask {
    ConnectedTask { networks: vec![network.parse().unwrap()], ..ConnectedTask::of(&task(1)).unwrap() }
}

#[tokio::test]
async fn names_follow_the_view() {
    let node = TestNode::start("/none".as_ref()).await;
    assert!(node.resolve("web").await.is_empty());
    node.view.send_replace(network_view(1));
    node.networks.update_names();
    assert_eq!(node.resolve("web").await, [Ipv4Addr::new(10, 210, 224, 1)]);
    assert_eq!(node.resolve("tasks.web.warren").await, [task(1).address], "the other one is not ready");
    let mut tenant = catalogue("tenant", 7);
    add_service(&mut tenant, "db", 2, &[]);
    node.view.send_modify(|view| drop(view.catalogues.insert(tenant.network, Arc::new(tenant))));
    node.networks.update_names();
    for (name, last) in [("web", 1), ("db", 2)] {
        assert_eq!(node.resolve(name).await, [Ipv4Addr::new(10, 210, 224, last)]);
    }
    node.view.send_replace(NetworkView::default());
    node.networks.update_names();
    assert!(node.resolve("web").await.is_empty());
    for _ in 0..2 {
        node.networks.dns().stop().await;
    }
    node.networks.ensure_dns(&settings()).await.unwrap();
    assert!(node.resolve("web").await.is_empty(), "it answers again");
}

#[tokio::test(start_paused = true)]
async fn task_gets_its_networks_when_they_become_known() {
    let node = TestNode::start("/none".as_ref()).await;
    let since = tokio::time::Instant::now();
    for _ in 0..2 {
        node.networks.attach(task_id(1), &connected("tenant"), None).await.unwrap();
        assert_eq!(node.members(), BTreeSet::new());
    }
    assert_eq!(since.elapsed(), 2 * VIEW_TIMEOUT);
    assert!(node.networks.outdated().is_empty());
    node.view.send_modify(|view| {
        let tenant = catalogue("tenant", 7);
        view.catalogues.insert(tenant.network, Arc::new(tenant));
    });
    assert_eq!(node.networks.outdated(), [(task_id(1), connected("tenant"))]);
    for _ in 0..2 {
        node.networks.attach_again().await.unwrap();
        assert_eq!((node.members(), node.networks.outdated()), (BTreeSet::from([7]), vec![]));
    }
    node.networks.attach(task_id(1), &connected("tenant"), None).await.unwrap();
    assert_eq!(since.elapsed(), 2 * VIEW_TIMEOUT, "no wait for what is known");
    for _ in 0..2 {
        node.networks.detach(task_id(1)).await.unwrap();
        assert!(node.network.tasks().is_empty());
    }
    node.view.send_replace(NetworkView::default());
    assert!(node.networks.outdated().is_empty(), "it is forgotten");
}

#[tokio::test]
async fn occupied_address_is_an_error_until_it_is_free() {
    let taken = warren_dns::DnsSockets::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = taken.udp.local_addr().unwrap();
    let dns = NodeDns::new(Arc::new(move |_| warren_dns::DnsSockets::bind(address)), "/none");
    let error = dns.ensure(Ipv4Addr::LOCALHOST).unwrap_err();
    assert!(error.to_string().contains("names the process"), "{error}");
    drop(taken);
    // A child that another test has just started may still have the sockets.
    eventually("the address is free", async || dns.ensure(Ipv4Addr::LOCALHOST).unwrap_or(false)).await;
    assert!(!dns.ensure(Ipv4Addr::LOCALHOST).unwrap(), "it runs");
}

#[tokio::test]
async fn upstreams_follow_the_file_of_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("resolv.conf");
    let node = TestNode::start(&file).await;
    for (text, expected) in [("nameserver 192.0.2.53\n", "192.0.2.53:53"), ("nameserver ::1\n", "[::1]:53")] {
        std::fs::write(&file, text).unwrap();
        node.networks.ensure_dns(&settings()).await.unwrap();
        assert_eq!(node.networks.dns().upstreams(), [expected.parse().unwrap()]);
    }
    std::fs::remove_file(&file).unwrap();
    node.networks.ensure_dns(&settings()).await.unwrap();
    assert!(node.networks.dns().upstreams().is_empty());
}
