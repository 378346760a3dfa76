use std::num::NonZeroU16;
use std::sync::Arc;

use warren_types::{INGRESS_NETWORK_NAME, INGRESS_NETWORK_NUMBER, NetworkAttachment, TaskNetworkMode};

use super::*;
use crate::fixtures::{add_service, catalogue, network_view, settings, task, wireguard};

fn ip(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 210, 0, last)
}

/// Task 1 in these networks.
fn connected(networks: &[&str]) -> ConnectedTask {
    let attachment =
        |name: &&str| NetworkAttachment { network: name.parse().unwrap(), aliases: BTreeSet::new() };
    let mut task = task(1);
    task.spec.network = TaskNetworkMode::Networks(networks.iter().map(attachment).collect());
    ConnectedTask::of(&task).unwrap()
}

/// The default network and `tenant` with the number 7.
fn view() -> NetworkView {
    let mut view = network_view(1);
    let mut tenant = catalogue("tenant", 7);
    tenant.internal = true;
    add_service(&mut tenant, "db", 2, &[(ip(2), true), (ip(9), true), (ip(8), false)]);
    add_service(&mut tenant, "rr", 3, &[(ip(7), true)]);
    tenant.services.get_mut("rr").unwrap().mode = EndpointMode::Dnsrr;
    add_service(&mut tenant, "idle", 4, &[]);
    view.catalogues.insert(tenant.network, Arc::new(tenant));
    view
}

#[test]
fn task_is_member_of_networks_that_are_known() {
    for (networks, view, expected, is_known) in [
        (&["default"][..], NetworkView::default(), &[1][..], true),
        (&["default"], view(), &[1], true),
        (&["tenant"], NetworkView::default(), &[], false),
        (&["tenant"], view(), &[7], true),
        (&["tenant", "default"], view(), &[1, 7], true),
        (&["default", "other"], view(), &[1], false),
    ] {
        let task = connected(networks);
        let numbers: Vec<u32> = task.attachment(&view).networks.into_iter().collect();
        assert_eq!((&numbers[..], task.is_known(&view)), (expected, is_known), "{networks:?}");
    }
    for mode in [TaskNetworkMode::Host, TaskNetworkMode::None] {
        let mut task = task(1);
        task.spec.network = mode;
        assert_eq!(ConnectedTask::of(&task), None);
    }
}

#[test]
fn client_has_its_networks_in_the_order_of_the_spec() {
    let mut task = connected(&["tenant", "other", "default"]);
    task.dns = DnsSettings { servers: vec![[192, 0, 2, 53].into()], searches: vec!["example.org".into()] };
    let id = |number| NetworkId(Id(number));
    let client = task.client(&view());
    assert_eq!(client.networks, [id(7), UNKNOWN_NETWORK, id(1)]);
    assert!(!client.has_way_out, "the catalogues say that");
    assert!(task.client(&NetworkView::default()).has_way_out);
    assert!(!connected(&["tenant"]).client(&NetworkView::default()).has_way_out);
    assert_eq!(client.dns.servers, ["192.0.2.53:53".parse().unwrap()]);
    assert_eq!(client.dns.searches, ["example.org"]);
    let text = task_resolv_conf(ip(1), &task.dns);
    assert!(text.contains("search warren example.org\nnameserver 10.210.0.1\n"), "{text}");
}

#[test]
fn cluster_has_the_other_nodes_all_members_and_ready_backends() {
    let cluster = cluster_network(&view(), 1);
    assert_eq!(cluster.peers.keys().collect::<Vec<_>>(), [&2], "this node is left out");
    let peer = &cluster.peers[&2];
    assert_eq!((peer.blocks.len(), peer.underlay), (1, Ipv4Addr::new(198, 51, 100, 2)));
    assert_eq!(peer.key, Some(WireGuardPublicKey([2; 32])));
    let members = |number| cluster.networks[&number].members.iter().copied().collect::<Vec<_>>();
    assert_eq!(members(1), [ip(2), ip(3)], "also those that are not ready");
    assert_eq!(members(7), [ip(2), ip(7), ip(8), ip(9)]);
    assert_eq!([1, 7].map(|number| cluster.networks[&number].internal), [false, true]);
    let services = cluster.services.iter().map(|(address, backends)| {
        (address.octets()[3], backends.iter().map(|backend| backend.octets()[3]).collect::<Vec<_>>())
    });
    let expected = [(1, vec![2]), (2, vec![2, 9]), (4, vec![])];
    assert_eq!(services.collect::<Vec<_>>(), expected, "rr has no virtual address in use");
    assert_eq!(cluster_network(&NetworkView::default(), 1), ClusterNetwork::default());
}

#[test]
fn node_has_its_blocks_and_its_end_of_the_overlay() {
    let mut settings = settings();
    settings.subnets.push("10.210.9.0/24".parse().unwrap());
    let (address, mtu) = (Ipv4Addr::new(198, 51, 100, 1), 1400);
    let node_with = |settings: &NodeSettings, address, options: &NetworkOptions| {
        let device = Some("eth0".to_owned());
        let own = OwnNode { address, device, private_key: wireguard().private_key, options };
        node_settings(settings, own, mtu)
    };
    let options = NetworkOptions {
        vxlan_port: 8472,
        vxlan_id: 7,
        allowed_ports: ["9100".parse().unwrap()].into(),
        ..NetworkOptions::default()
    };
    let node = node_with(&settings, Some(address), &options).unwrap();
    assert_eq!(node.allowed_ports(), &options.allowed_ports);
    assert_eq!((node.blocks(), node.mtu()), (&settings.subnets[..], mtu));
    let overlay = node.overlay().unwrap();
    assert_eq!((overlay.number(), overlay.address()), (1, address));
    assert_eq!((overlay.port(), overlay.vni()), (8472, 7));
    assert_eq!(Some(node.gateway()), gateway(&settings));
    assert!(node_with(&settings, None, &options).unwrap().overlay().is_none());
    assert_eq!(node.wireguard(), None);
    settings.data_plane = DataPlane::Wireguard;
    let encrypted = node_with(&settings, Some(address), &options).unwrap();
    assert_eq!(encrypted.wireguard(), Some(&wireguard()));
    let same_port = NetworkOptions { wireguard_port: 8472, ..options.clone() };
    assert!(matches!(node_with(&settings, Some(address), &same_port), Err(Error::InvalidOverlay { .. })));
    settings.data_plane = DataPlane::Routes;
    let direct = node_with(&settings, Some(address), &same_port).unwrap();
    assert_eq!(direct.direct_routes(), Some(&DirectRoutes::new(1, address, "eth0").unwrap()));
    assert_eq!((direct.overlay(), direct.wireguard()), (None, None));
    assert_eq!(node_with(&settings, None, &options).unwrap().direct_routes(), None);
    settings.number = 0;
    assert!(node_with(&settings, Some(address), &options).unwrap().overlay().is_none());
    settings.subnets.clear();
    assert!(node_with(&settings, None, &options).is_err());
    assert_eq!(gateway(&settings), None);
}

#[test]
fn task_links_have_what_a_tunnel_leaves() {
    use DataPlane::{Routes, Vxlan, Wireguard};
    for (data_plane, available, expected) in [
        (Vxlan, None, Some(1450)),
        (Wireguard, None, Some(1390)),
        (Routes, None, Some(1500)),
        (Vxlan, Some(1400), Some(1350)),
        (Wireguard, Some(1400), Some(1290)),
        (Routes, Some(1400), Some(1400)),
        (Vxlan, Some(9000), Some(1450)),
        (Routes, Some(9000), Some(9000)),
        (Wireguard, Some(680), None),
        (Vxlan, Some(600), None),
        (Routes, Some(600), Some(600)),
    ] {
        let underlay = available.map(|mtu| Underlay { device: "eth0".to_owned(), mtu });
        let found = task_mtu(data_plane, underlay.as_ref());
        assert_eq!(found.as_ref().ok(), expected.as_ref(), "{data_plane} {available:?}: {found:?}");
    }
}

#[test]
fn host_file_is_kept_but_for_what_settings_replace() {
    let host = "nameserver 127.0.0.53\noptions edns0\nsearch lan";
    let settings = |servers: &[[u8; 4]], searches: &[&str]| DnsSettings {
        servers: servers.iter().map(|server| Ipv4Addr::from(*server)).collect(),
        searches: searches.iter().map(|search| (*search).to_owned()).collect(),
    };
    for (servers, searches, expected) in [
        (&[][..], &[][..], "nameserver 127.0.0.53\noptions edns0\nsearch lan\n"),
        (&[[192, 0, 2, 1]], &[], "options edns0\nsearch lan\nnameserver 192.0.2.1\n"),
        (&[], &["a", "b"], "nameserver 127.0.0.53\noptions edns0\nsearch a b\n"),
    ] {
        assert_eq!(host_resolv_conf(host, &settings(servers, searches)), expected);
    }
}

#[test]
fn ports_in_ingress_mode_lead_to_ready_tasks_with_their_options() {
    let mut ingress = catalogue(INGRESS_NETWORK_NAME, INGRESS_NETWORK_NUMBER);
    ingress.network = INGRESS_NETWORK;
    add_service(&mut ingress, "web", 2, &[(ip(2), true), (ip(9), false)]);
    let port = |published, prefer_local, client_affinity| ServicePort {
        port: 80,
        protocol: warren_types::Protocol::Tcp,
        name: None,
        published: NonZeroU16::new(published),
        prefer_local,
        client_affinity,
    };
    ingress.services.get_mut("web").unwrap().ports =
        vec![port(8080, false, false), port(8081, true, false), port(8082, true, true)];
    let mut view = network_view(1);
    view.catalogues.insert(INGRESS_NETWORK, Arc::new(ingress));
    let cluster = cluster_network(&view, 1);
    let at = |number| HostPort::new(None, NonZeroU16::new(number).unwrap(), TransportProtocol::Tcp);
    let backends: BTreeSet<SocketAddrV4> = [SocketAddrV4::new(ip(2), 80)].into();
    assert_eq!(cluster.ingress, [8080, 8081, 8082].map(|number| (at(number), backends.clone())).into());
    let with = |client_affinity| Balancing { prefer_local: true, client_affinity };
    assert_eq!(cluster.balancing, [(at(8081), with(false)), (at(8082), with(true))].into());
    // Other nodes open them; all know the tasks.
    for (entry_nodes, is_entry) in [(&[][..], false), (&[2], false), (&[1, 2], true)] {
        let catalogue = Arc::make_mut(view.catalogues.get_mut(&INGRESS_NETWORK).unwrap());
        catalogue.services.get_mut("web").unwrap().entry_nodes = Some(entry_nodes.iter().copied().collect());
        let found = cluster_network(&view, 1);
        let expected = if is_entry {
            cluster.clone()
        } else {
            ClusterNetwork { ingress: BTreeMap::new(), balancing: BTreeMap::new(), ..cluster.clone() }
        };
        assert_eq!(found, expected, "{entry_nodes:?}");
    }
}
