use std::net::Ipv4Addr;

use warren_network::fake::FakeNetwork;
use warren_network::{DEFAULT_MTU, NodeNetworkSettings, PortHolder, TransportProtocol};
use warren_types::Id;

use super::*;
use crate::fixtures::{port, task, task_id};

async fn new_shares() -> (Arc<FakeNetwork>, HostPortShares) {
    let network = Arc::new(FakeNetwork::new("/run/none"));
    let ranges = vec!["10.210.0.0/16".parse().unwrap()];
    let node = NodeNetworkSettings::new(ranges, "10.210.0.0/24".parse().unwrap(), DEFAULT_MTU).unwrap();
    network.ensure_node(&node).await.unwrap();
    let ports = HostPortShares::new(network.clone());
    (network, ports)
}

fn at(port: u16) -> HostPort {
    HostPort::new(None, port.try_into().unwrap(), TransportProtocol::Tcp)
}

fn publishing(number: u64) -> TaskAssignment {
    TaskAssignment { ports: vec![port(8080)], ..task(number) }
}

fn backend(number: u8) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 210, 0, 1 + number), 80)
}

#[tokio::test]
async fn port_is_free_after_last_share_is_released() {
    let (network, ports) = new_shares().await;
    for _ in 0..2 {
        ports.reserve(&publishing(1)).await.unwrap();
        assert_eq!(network.ports(), [(at(8080), BTreeSet::new())].into());
    }
    for _ in 0..2 {
        ports.route(&publishing(1)).await.unwrap();
        ports.route(&publishing(2)).await.unwrap();
    }
    assert_eq!(network.ports()[&at(8080)], BTreeSet::from([backend(1), backend(2)]));
    ports.reserve(&publishing(1)).await.unwrap();
    assert_eq!(network.ports()[&at(8080)], BTreeSet::from([backend(2)]));
    ports.release(&task_id(2)).await.unwrap();
    assert_eq!(network.ports(), [(at(8080), BTreeSet::new())].into());
    for _ in 0..2 {
        ports.release(&task_id(1)).await.unwrap();
        assert!(network.ports().is_empty());
    }
    ports.route(&publishing(3)).await.unwrap();
    assert_eq!(network.ports()[&at(8080)], BTreeSet::from([backend(3)]));
}

#[tokio::test]
async fn port_of_another_process_is_not_taken() {
    let (network, ports) = new_shares().await;
    network.occupy(at(8080), PortHolder { pid: 1, name: "nginx".into() });
    let refused = ports.reserve(&publishing(1)).await.unwrap_err();
    assert!(refused.to_string().contains("nginx"), "{refused}");
    assert!(matches!(refused, HostPortError::Network(warren_network::Error::PortTaken { .. })));
    network.vacate(at(8080));
    ports.release(&task_id(1)).await.unwrap();
    assert!(network.ports().is_empty());
    ports.route(&publishing(1)).await.unwrap();
}

#[tokio::test]
async fn port_changes_service_only_when_free() {
    let (_network, ports) = new_shares().await;
    ports.reserve(&publishing(1)).await.unwrap();
    let mut other = publishing(1);
    other.id.service = ServiceId(Id(8));
    let refused = ports.reserve(&other).await.unwrap_err();
    assert!(matches!(refused, HostPortError::OwnedByOtherService { .. }), "{refused}");
    ports.release(&task_id(1)).await.unwrap();
    ports.reserve(&other).await.unwrap();
}

#[tokio::test]
async fn concurrent_changes_are_all_applied() {
    let (network, ports) = new_shares().await;
    let ports = Arc::new(ports);
    let serve = |number| {
        let ports = Arc::clone(&ports);
        tokio::spawn(async move { ports.route(&publishing(number)).await })
    };
    for served in (1..=50).map(serve).collect::<Vec<_>>() {
        served.await.unwrap().unwrap();
    }
    assert_eq!(network.ports()[&at(8080)].len(), 50);
}

#[tokio::test]
async fn adopted_share_counts_before_publish() {
    let (network, ports) = new_shares().await;
    let backends = ports.adopt(&[Arc::new(publishing(1)), Arc::new(publishing(2))]);
    assert_eq!(backends, [(at(8080), BTreeSet::from([backend(1), backend(2)]))].into());
    ports.route(&publishing(1)).await.unwrap();
    assert_eq!(network.ports()[&at(8080)].len(), 2, "the other one is not dropped meanwhile");
}
