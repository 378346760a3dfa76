use std::net::Ipv4Addr;

use warren_network::fake::FakeNetwork;
use warren_network::{DEFAULT_MTU, NodeSettings, PortHolder};
use warren_types::Id;

use super::*;
use crate::samples::{port, task, task_id};

async fn board() -> (Arc<FakeNetwork>, Ports) {
    let network = Arc::new(FakeNetwork::new("/run/none"));
    let ranges = vec!["10.210.0.0/16".parse().unwrap()];
    let node = NodeSettings::new(ranges, "10.210.0.0/24".parse().unwrap(), DEFAULT_MTU).unwrap();
    network.ensure_node(&node).await.unwrap();
    let ports = Ports::new(network.clone());
    (network, ports)
}

fn at(port: u16) -> HostPort {
    HostPort::new(None, port.try_into().unwrap())
}

fn publishing(number: u64) -> TaskAssignment {
    TaskAssignment { ports: vec![port(8080)], ..task(number) }
}

fn backend(number: u8) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 210, 0, 1 + number), 80)
}

#[tokio::test]
async fn shares_come_and_go_and_the_last_one_frees_the_port() {
    let (network, ports) = board().await;
    for _ in 0..2 {
        ports.hold(&publishing(1)).await.unwrap();
        assert_eq!(network.ports(), [(at(8080), BTreeSet::new())].into());
    }
    for _ in 0..2 {
        ports.serve(&publishing(1)).await.unwrap();
        ports.serve(&publishing(2)).await.unwrap();
    }
    assert_eq!(network.ports()[&at(8080)], BTreeSet::from([backend(1), backend(2)]));
    ports.hold(&publishing(1)).await.unwrap();
    assert_eq!(network.ports()[&at(8080)], BTreeSet::from([backend(2)]));
    ports.release(&task_id(2)).await.unwrap();
    assert_eq!(network.ports(), [(at(8080), BTreeSet::new())].into());
    for _ in 0..2 {
        ports.release(&task_id(1)).await.unwrap();
        assert!(network.ports().is_empty());
    }
    ports.serve(&publishing(3)).await.unwrap();
    assert_eq!(network.ports()[&at(8080)], BTreeSet::from([backend(3)]));
}

#[tokio::test]
async fn a_port_that_another_process_has_is_left_to_it() {
    let (network, ports) = board().await;
    network.occupy(at(8080), PortHolder { pid: 1, name: "nginx".into() });
    let refused = ports.hold(&publishing(1)).await.unwrap_err();
    assert!(refused.to_string().contains("nginx"), "{refused}");
    assert!(matches!(refused, PortsError::Network(warren_network::Error::PortTaken { .. })));
    network.vacate(at(8080));
    ports.release(&task_id(1)).await.unwrap();
    assert!(network.ports().is_empty());
    ports.serve(&publishing(1)).await.unwrap();
}

#[tokio::test]
async fn a_port_passes_to_another_service_only_when_it_is_free() {
    let (_network, ports) = board().await;
    ports.hold(&publishing(1)).await.unwrap();
    let mut other = publishing(1);
    other.id.service = ServiceId(Id(8));
    let refused = ports.hold(&other).await.unwrap_err();
    assert!(matches!(refused, PortsError::OfAnotherService { .. }), "{refused}");
    ports.release(&task_id(1)).await.unwrap();
    ports.hold(&other).await.unwrap();
}

#[tokio::test]
async fn many_changes_at_once_all_count() {
    let (network, ports) = board().await;
    let ports = Arc::new(ports);
    let serve = |number| {
        let ports = Arc::clone(&ports);
        tokio::spawn(async move { ports.serve(&publishing(number)).await })
    };
    for served in (1..=50).map(serve).collect::<Vec<_>>() {
        served.await.unwrap().unwrap();
    }
    assert_eq!(network.ports()[&at(8080)].len(), 50);
}

#[tokio::test]
async fn an_adopted_share_counts_before_it_is_served_again() {
    let (network, ports) = board().await;
    let backends = ports.adopt(&[Arc::new(publishing(1)), Arc::new(publishing(2))]);
    assert_eq!(backends, [(at(8080), BTreeSet::from([backend(1), backend(2)]))].into());
    ports.serve(&publishing(1)).await.unwrap();
    assert_eq!(network.ports()[&at(8080)].len(), 2, "the other one is not dropped meanwhile");
}
