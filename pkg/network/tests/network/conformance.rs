//! The conformance suite of network backends.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use warren_network::fake::FakeNetwork;
use warren_network::{Attachment, Error, NetworkBackend, NodeNetworkSettings, PeerNode, PortHolder};

use crate::lab::cluster::peers;
use crate::lab::{NetworkNamespace, address, all, host_port, key, published, run_on_node, settings, task};

/// The suite. `occupy` binds TCP port 8088 as another process; dropping its result releases the port.
async fn suite(network: &dyn NetworkBackend, occupy: impl Fn() -> Box<dyn Send>) {
    network.check().await.unwrap();
    operations_need_a_node(network).await;
    network.ensure_node(&settings()).await.unwrap();
    network.ensure_node(&settings()).await.unwrap();
    tasks(network).await;
    ports(network, &occupy).await;
    cluster(network, &occupy).await;
    reconciliation(network).await;
    network.remove_node().await.unwrap();
    network.remove_node().await.unwrap();
    operations_need_a_node(network).await;
}

async fn operations_need_a_node(network: &dyn NetworkBackend) {
    assert!(matches!(network.ensure_task(&task(2)).await, Err(Error::NodeNotConfigured)));
    assert!(matches!(network.ensure_port(&published(None, 8080, &[])).await, Err(Error::NodeNotConfigured)));
    assert!(matches!(network.repair().await, Err(Error::NodeNotConfigured)));
    assert!(matches!(network.ensure_cluster(&Arc::default()).await, Err(Error::NodeNotConfigured)));
    network.remove_task(&key(2)).await.unwrap();
    network.remove_port(host_port(None, 8080)).await.unwrap();
}

async fn tasks(network: &dyn NetworkBackend) {
    let first = network.ensure_task(&task(2)).await.unwrap();
    assert_eq!(network.ensure_task(&task(2)).await.unwrap(), first, "the second time is the same");
    assert!(first.ends_with("netns/web.2"), "{first:?}");
    assert_ne!(network.ensure_task(&task(3)).await.unwrap(), first);
    let mut outside = task(4);
    outside.attachment.address = [10, 210, 2, 4].into();
    assert!(matches!(network.ensure_task(&outside).await, Err(Error::AddressOutsideSubnet { .. })));
    let mut twice = task(4);
    twice.attachment.address = address(2);
    let Err(Error::AddressTaken { by, .. }) = network.ensure_task(&twice).await else {
        panic!("taken address")
    };
    assert_eq!(by, key(2));
    network.remove_task(&key(2)).await.unwrap();
    network.remove_task(&key(2)).await.unwrap();
    network.ensure_task(&twice).await.unwrap();
    network.remove_task(&key(4)).await.unwrap();
    network.remove_task(&key(3)).await.unwrap();
}

async fn ports(network: &dyn NetworkBackend, occupy: &impl Fn() -> Box<dyn Send>) {
    let port = published(None, 8088, &[(2, 80)]);
    let foreign = occupy();
    for _ in 0..2 {
        let taken = network.ensure_port(&port).await.unwrap_err();
        assert!(matches!(&taken, Error::PortTaken { by: Some(_), .. }), "{taken}");
        assert!(taken.to_string().contains("8088/tcp"), "{taken}");
    }
    drop(foreign);
    network.ensure_port(&port).await.unwrap();
    network.ensure_port(&port).await.unwrap();
    network.ensure_port(&published(None, 8088, &[])).await.unwrap();
    network.remove_port(port.host_port).await.unwrap();
    network.remove_port(port.host_port).await.unwrap();
    drop(occupy());
}

async fn cluster(network: &dyn NetworkBackend, occupy: &impl Fn() -> Box<dyn Send>) {
    network.ensure_task(&task(2)).await.unwrap();
    let mut known = peers([2, 3]);
    known.networks.insert(1, crate::lab::cluster::network(&[(1, 2), (2, 2)]));
    known.services.insert([10, 210, 224, 1].into(), [address(2)].into());
    for _ in 0..2 {
        let made = network.ensure_cluster(&Arc::new(known.clone())).await.unwrap();
        assert!(made.failed.is_empty(), "{:?}", made.failed);
    }
    // A port of another process does not stop the others, and is published once it is free.
    let foreign = occupy();
    for port in [8088, 8089] {
        known.ingress.insert(host_port(None, port), [SocketAddrV4::new(address(2), 80)].into());
    }
    let made = network.ensure_cluster(&Arc::new(known.clone())).await.unwrap();
    assert!(matches!(made.failed.as_slice(), [Error::PortTaken { by: Some(_), .. }]), "{:?}", made.failed);
    drop(foreign);
    let pass = network.repair().await.unwrap();
    assert!(pass.failed.is_empty(), "{:?}", pass.failed);
    network.ensure_port(&published(None, 8088, &[])).await.unwrap();
    network.remove_port(host_port(None, 8088)).await.unwrap();
    known.ingress.clear();
    network.ensure_cluster(&Arc::new(known.clone())).await.unwrap();
    drop(occupy());
    // A peer that cannot be reached does not stop the others.
    let without_blocks = |peer| (9, PeerNode { blocks: Vec::new(), ..peer });
    known.peers.extend(peers([4]).peers.into_values().map(without_blocks));
    let made = network.ensure_cluster(&Arc::new(known)).await.unwrap();
    assert!(matches!(made.failed.as_slice(), [Error::InvalidPeer { number: 9, .. }]), "{:?}", made.failed);
    network.remove_task(&key(2)).await.unwrap();
}

async fn reconciliation(network: &dyn NetworkBackend) {
    let port = published(None, 8080, &[(2, 80), (3, 80)]);
    network.ensure_task(&task(9)).await.unwrap();
    let desired = all([2, 3], &port);
    let made = network.ensure(&desired).await.unwrap();
    assert!(made.failed.is_empty(), "{:?}", made.failed);
    assert!(
        made.repaired.iter().any(|what| what.contains("web.9")),
        "the task that is not desired is removed"
    );
    assert!(made.repaired.iter().any(|what| what.contains("web.2")), "the missing one is made");
    for pass in [network.ensure(&desired).await.unwrap(), network.repair().await.unwrap()] {
        assert!(pass.failed.is_empty() && pass.repaired.is_empty(), "{pass:?}");
    }
    // Tasks with conflicts do not stop the others.
    let mut clash = desired.clone();
    clash.tasks.insert(key(7), Attachment::new(address(3)));
    clash.tasks.insert(key(8), Attachment::new([10, 210, 2, 8].into()));
    let pass = network.ensure(&clash).await.unwrap();
    let [Error::AddressTaken { .. }, Error::AddressOutsideSubnet { .. }] = pass.failed.as_slice() else {
        panic!("{:?}", pass.failed)
    };
    assert!(pass.repaired.is_empty(), "{:?}", pass.repaired);
    // Later requests count as well.
    network.ensure_task(&task(4)).await.unwrap();
    network.remove_task(&key(2)).await.unwrap();
    network.ensure_port(&published(None, 8081, &[(4, 80)])).await.unwrap();
    let pass = network.repair().await.unwrap();
    assert!(pass.failed.is_empty() && pass.repaired.is_empty(), "{pass:?}");
    // Another subnet makes the addresses invalid for new tasks, but keeps existing tasks until they are
    // replaced.
    let moved =
        NodeNetworkSettings::new(settings().cluster().to_vec(), "10.210.7.0/24".parse().unwrap(), 1400)
            .unwrap();
    network.ensure_node(&moved).await.unwrap();
    assert!(matches!(network.ensure_task(&task(5)).await, Err(Error::AddressOutsideSubnet { .. })));
}

#[tokio::test]
async fn fake_driver_passes_conformance() {
    let network = Arc::new(FakeNetwork::new("/run/fake"));
    let at = host_port(None, 8088);
    struct ForeignListener(Arc<FakeNetwork>, warren_network::HostPort);
    impl Drop for ForeignListener {
        fn drop(&mut self) {
            self.0.vacate(self.1);
        }
    }
    let foreign = Arc::clone(&network);
    suite(&*network, || {
        foreign.occupy(at, PortHolder { pid: 1, name: "init".to_owned() });
        Box::new(ForeignListener(Arc::clone(&foreign), at))
    })
    .await;
    assert!(network.tasks().is_empty() && network.ports().is_empty());
}

#[tokio::test]
async fn fake_repairs_damage() {
    let network = FakeNetwork::new("/run/fake");
    network.ensure(&all([2], &published(None, 8080, &[(2, 80)]))).await.unwrap();
    network.detach_silently(&key(2));
    assert!(network.tasks().is_empty());
    assert_eq!(network.repair().await.unwrap().repaired.len(), 1);
    assert_eq!(network.tasks()[&key(2)], address(2));
    assert_eq!(network.ports().len(), 1);
}

/// A listener on the node, closed when it is dropped.
struct Listener(Option<std::net::TcpListener>, NetworkNamespace);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.take();
        self.1.wait_closed(8088);
    }
}

#[test]
fn linux_conforms() {
    run_on_node(|lab| async move {
        let occupy = || -> Box<dyn Send> {
            let listener = lab.node.listen(Ipv4Addr::UNSPECIFIED, 8088);
            Box::new(Listener(Some(listener), lab.node.clone()))
        };
        suite(&lab.network, occupy).await;
    });
}
