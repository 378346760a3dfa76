use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use warren_types::strategies::catalogues;
use warren_types::{Catalogue, CatalogueService, EndpointMode, Id, NetworkId, Protocol, ServiceName};

use super::*;
use crate::table::{ClientDnsSettings, DnsClient, NetworkNames, NodeAddresses};

fn address(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

/// `1=10.0.0.1 2=10.0.0.2!` are two endpoints, the second of which is not ready.
fn service(text: &str) -> CatalogueService {
    let mut service = CatalogueService { mode: EndpointMode::Dnsrr, ..CatalogueService::default() };
    for word in text.split_whitespace() {
        match word.split_once('=').unwrap() {
            ("vip", "none") => service.mode = EndpointMode::Vip,
            ("vip", text) => {
                (service.mode, service.virtual_address) = (EndpointMode::Vip, Some(address(text)));
            }
            ("alias", name) => {
                service.aliases.insert(name.parse().unwrap());
            }
            ("port", text) => {
                let (port, name) = text.split_once('/').unwrap_or((text, ""));
                let name = Some(name).filter(|name| !name.is_empty()).map(|name| name.parse().unwrap());
                service.ports.push(ServicePort {
                    port: port.parse().unwrap(),
                    protocol: Protocol::Tcp,
                    name,
                    published: None,
                    prefer_local: false,
                    client_affinity: false,
                });
            }
            (slot, text) => {
                let (text, ready) = text.strip_suffix('!').map_or((text, true), |text| (text, false));
                let (slot, address) = (slot.parse().unwrap(), address(text));
                service.endpoints.push(Endpoint { slot, address, ready });
            }
        }
    }
    service
}

fn network(number: u32, internal: bool, services: &[(&str, &str)]) -> Arc<NetworkNames> {
    let services = services.iter().map(|(name, text)| (name.parse().unwrap(), service(text))).collect();
    let name = format!("net-{number}").parse().unwrap();
    let network = NetworkId(Id(number.into()));
    let catalogue = Catalogue { network, name, number, internal, services };
    assert_eq!(catalogue.validate().to_string(), "");
    Arc::new(NetworkNames::new(&catalogue))
}

const LONG: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

fn table() -> NameTable {
    let default = network(
        1,
        false,
        &[
            (
                "web",
                "vip=10.210.224.1 alias=www alias=site port=80/http port=8080 1=10.210.1.2 2=10.210.2.2 3=10.210.1.3!",
            ),
            ("db", "alias=app port=5432/postgres 1=10.210.1.4 2=10.210.2.4"),
            ("idle", "vip=10.210.224.2 port=80"),
            ("down", "port=80 1=10.210.1.5!"),
            ("kafka", "port=9092 1=10.210.1.6 2=10.210.1.7"),
            ("kafka-1", "vip=10.210.224.3"),
            ("new", "vip=none 1=10.210.1.8"),
            ("swap", "1=10.210.1.20! 1=10.210.1.21 2=10.210.1.22"),
            ("shop_web", "vip=10.210.224.4 alias=cart"),
            (LONG, "port=80 1=10.210.1.23"),
        ],
    );
    let shop = network(
        2,
        false,
        &[
            ("web", "vip=10.210.225.1 alias=front 1=10.210.1.2 2=10.210.2.2 3=10.210.1.3!"),
            ("cart", "vip=10.210.225.2 alias=www 1=10.210.1.30"),
            ("blue", "vip=10.210.225.3 alias=app 1=10.210.1.31"),
            ("green", "alias=app 1=10.210.1.32"),
            ("idle-2", "vip=10.210.225.4"),
        ],
    );
    let secret = network(3, true, &[("vault", "vip=10.210.226.1 alias=db port=8200 1=10.210.1.9")]);
    let client = |networks: &[u128], server: &str| DnsClient {
        networks: networks.iter().map(|number| NetworkId(Id(*number))).collect(),
        dns: ClientDnsSettings { servers: server.parse().into_iter().collect(), searches: vec![] },
        ..DnsClient::default()
    };
    let clients = BTreeMap::from([
        (address("10.210.1.2"), client(&[1], "")),
        (address("10.210.1.30"), client(&[2, 1], "192.0.2.53:53")),
        (address("10.210.1.31"), client(&[1, 2], "")),
        (address("10.210.1.9"), client(&[3], "192.0.2.53:53")),
        (address("10.210.1.10"), client(&[3, 1], "")),
        (address("10.210.1.11"), client(&[1, 9], "")),
        (address("10.210.1.12"), client(&[3, 9], "")),
        (address("10.210.1.13"), DnsClient { has_way_out: true, ..client(&[9], "") }),
    ]);
    let ranges = vec!["10.210.0.0/16".parse().unwrap()];
    NameTable::new(
        [secret, default, shop],
        &clients,
        NodeAddresses { own: vec![address("10.210.1.1")], ranges },
    )
}

fn shown(resolution: Resolution<'_>) -> String {
    let sorted = |mut texts: Vec<String>| {
        texts.sort();
        texts.join(" ")
    };
    match resolution {
        Resolution::Addresses { addresses, ttl } => {
            let addresses = addresses.iter().map(Ipv4Addr::to_string).collect();
            format!("{} for {ttl} s", sorted(addresses))
        }
        Resolution::Services(targets) => {
            let target = |found: &ServiceTarget| {
                format!("{}:{}={}", found.target.0.join("."), found.port, found.address)
            };
            sorted(targets.iter().map(target).collect())
        }
        Resolution::Names(names) => sorted(names.iter().map(|name| name.0.join(".")).collect()),
        Resolution::Forward(servers) => {
            let servers: Vec<String> = servers.iter().map(SocketAddr::to_string).collect();
            format!("forward {}", servers.join(" ")).trim_end().to_owned()
        }
        Resolution::NoData(zone) => format!("no data in {zone:?}"),
        Resolution::NoName(zone) => format!("no name in {zone:?}"),
        other => format!("{other:?}").to_lowercase(),
    }
}

fn ask(table: &NameTable, from: &str, kind: QuestionKind, name: &str) -> String {
    let labels: Vec<&[u8]> =
        name.split('.').filter(|label| !label.is_empty()).map(|label| label.as_bytes()).collect();
    shown(resolve(table, from.parse().unwrap(), &Question { labels: &labels, kind }, 7))
}

fn check(from: &str, kind: QuestionKind, rows: &[(&str, &str)]) {
    let table = table();
    for (name, expected) in rows {
        assert_eq!(ask(&table, from, kind, name), *expected, "{kind:?} {name} from {from}");
    }
}

const ONE: &str = "10.210.1.2";

#[test]
fn names_of_services_resolve() {
    let rows = [
        ("web", "10.210.224.1 for 5 s"),
        ("web.warren", "10.210.224.1 for 5 s"),
        ("www", "10.210.224.1 for 5 s"),
        ("site.warren", "10.210.224.1 for 5 s"),
        ("shop_web", "10.210.224.4 for 5 s"),
        ("db", "10.210.1.4 10.210.2.4 for 1 s"),
        ("app", "10.210.1.4 10.210.2.4 for 1 s"),
        ("new", "10.210.1.8 for 1 s"),
        ("idle", "10.210.224.2 for 5 s"),
        ("down", "no data in Root"),
        ("down.warren", "no data in Cluster"),
        ("tasks.web", "10.210.1.2 10.210.2.2 for 1 s"),
        ("tasks.www.warren", "10.210.1.2 10.210.2.2 for 1 s"),
        ("tasks.idle", "no data in Root"),
        ("web-1", "10.210.1.2 for 1 s"),
        ("web-2.warren", "10.210.2.2 for 1 s"),
        ("web-3", "no data in Root"),
        ("web-4", "no name in Root"),
        ("web-01", "no name in Root"),
        ("www-1", "no name in Root"),
        ("swap-1", "10.210.1.21 for 1 s"),
        ("1.tasks.web", "10.210.1.2 for 1 s"),
        ("01.tasks.web.warren", "no name in Cluster"),
        ("kafka-1", "10.210.224.3 for 5 s"),
        ("1.tasks.kafka.warren", "10.210.1.6 for 1 s"),
        ("kafka-2", "10.210.1.7 for 1 s"),
    ];
    check(ONE, QuestionKind::Address, &rows);
}

#[test]
fn unknown_name_of_the_cluster_is_absent_and_any_other_is_forwarded() {
    let rows = [
        ("nope", "no name in Root"),
        ("nope.warren", "no name in Cluster"),
        ("a.b.c.d.warren", "no name in Cluster"),
        ("warren", "no data in Root"),
        ("warren.warren", "no data in Cluster"),
        ("tasks", "no data in Root"),
        ("tasks.warren", "no data in Cluster"),
        ("localhost", "no name in Root"),
        ("vault", "no name in Root"),
        ("vault.warren", "no name in Cluster"),
        ("web.example.com", "forward"),
        ("web.com", "forward"),
        ("tasks.org", "forward"),
        ("warren.example.com", "forward"),
        ("_tcp.org", "forward"),
        ("1.tasks.org", "forward"),
        ("", "forward"),
    ];
    check(ONE, QuestionKind::Address, &rows);
    check(ONE, QuestionKind::Other, &[("nope", "no name in Root"), ("example.com", "forward")]);
}

#[test]
fn other_records_of_a_name_are_no_data() {
    let rows = [
        ("web", "no data in Root"),
        ("tasks.web", "no data in Root"),
        ("web-1.warren", "no data in Cluster"),
        ("_tcp.web", "no data in Root"),
        ("_http._tcp.web", "no data in Root"),
    ];
    for kind in [QuestionKind::Other, QuestionKind::Pointer] {
        check(ONE, kind, &rows);
    }
    check(ONE, QuestionKind::Service, &rows[..4]);
    check(ONE, QuestionKind::Address, &rows[3..]);
    check(
        ONE,
        QuestionKind::Any,
        &[("web", "minimal"), ("example.com", "minimal"), ("nope", "no name in Root")],
    );
    check(ONE, QuestionKind::Transfer, &[("warren", "refused"), ("example.com", "refused")]);
}

#[test]
fn ports_have_service_records() {
    let web = "web-1.warren:80=10.210.1.2 web-2.warren:80=10.210.2.2";
    let rows = [
        ("_http._tcp.web", web),
        ("_80._tcp.web.warren", web),
        ("_http._tcp.www", web),
        ("_8080._tcp.web", "web-1.warren:8080=10.210.1.2 web-2.warren:8080=10.210.2.2"),
        // The name of another service cannot lead to an endpoint.
        ("_9092._tcp.kafka", "1.tasks.kafka.warren:9092=10.210.1.6 kafka-2.warren:9092=10.210.1.7"),
        ("_80._tcp.idle", "no data in Root"),
        ("_80._tcp.down.warren", "no data in Cluster"),
        ("_81._tcp.web", "forward"),
        ("_81._tcp.web.warren", "no name in Cluster"),
        ("_http._udp.web.warren", "no name in Cluster"),
        ("http._tcp.web.warren", "no name in Cluster"),
        ("_ldap._tcp.example", "forward"),
    ];
    check(ONE, QuestionKind::Service, &rows);
    let (name, expected) = (format!("_80._tcp.{LONG}"), format!("1.tasks.{LONG}.warren:80=10.210.1.23"));
    check(ONE, QuestionKind::Service, &[(&name, &expected)]);
}

#[test]
fn addresses_of_own_networks_have_names() {
    let rows = [
        ("2.1.210.10.in-addr.arpa", "web-1.warren"),
        ("3.1.210.10.in-addr.arpa", "web-3.warren"),
        ("1.224.210.10.in-addr.arpa", "web.warren"),
        ("6.1.210.10.in-addr.arpa", "1.tasks.kafka.warren"),
        // Of another network, of a gateway, and of nobody.
        ("9.1.210.10.in-addr.arpa", "no name in Reverse"),
        ("1.226.210.10.in-addr.arpa", "no name in Reverse"),
        ("1.1.210.10.in-addr.arpa", "no name in Reverse"),
        ("99.99.210.10.in-addr.arpa", "no name in Reverse"),
        ("1.210.10.in-addr.arpa", "no data in Reverse"),
        ("210.10.in-addr.arpa", "no data in Reverse"),
        ("x.1.210.10.in-addr.arpa", "no name in Reverse"),
        ("1.2.1.210.10.in-addr.arpa", "no name in Reverse"),
        ("02.1.210.10.in-addr.arpa", "no name in Reverse"),
        ("10.in-addr.arpa", "forward"),
        ("in-addr.arpa", "forward"),
        ("1.2.0.192.in-addr.arpa", "forward"),
        ("1.1.211.10.in-addr.arpa", "forward"),
        ("1.0.0.0.ip6.arpa", "forward"),
    ];
    check(ONE, QuestionKind::Pointer, &rows);
    check(ONE, QuestionKind::Any, &[("2.1.210.10.in-addr.arpa", "minimal")]);
    check(ONE, QuestionKind::Address, &[("2.1.210.10.in-addr.arpa", "no data in Reverse")]);
}

#[test]
fn first_network_wins_and_a_service_wins_over_an_alias() {
    let shop_first = [
        ("web", "10.210.225.1 for 5 s"),
        ("cart", "10.210.225.2 for 5 s"),
        ("www", "10.210.225.2 for 5 s"),
        ("front", "10.210.225.1 for 5 s"),
        ("site", "10.210.224.1 for 5 s"),
        ("db", "10.210.1.4 10.210.2.4 for 1 s"),
        // Two services have the alias.
        ("app", "10.210.1.32 10.210.225.3 for 1 s"),
        ("tasks.app", "10.210.1.31 10.210.1.32 for 1 s"),
        ("idle-2", "10.210.225.4 for 5 s"),
        ("example.com", "forward 192.0.2.53:53"),
    ];
    check("10.210.1.30", QuestionKind::Address, &shop_first);
    let default_first = [
        ("web", "10.210.224.1 for 5 s"),
        // The service of the second network, not the alias on the first.
        ("cart", "10.210.225.2 for 5 s"),
        ("www", "10.210.224.1 for 5 s"),
        ("app", "10.210.1.4 10.210.2.4 for 1 s"),
    ];
    check("10.210.1.31", QuestionKind::Address, &default_first);
    let both = [("2.1.210.10.in-addr.arpa", "web-1.warren"), ("2.225.210.10.in-addr.arpa", "cart.warren")];
    check("10.210.1.31", QuestionKind::Pointer, &both);
}

#[test]
fn task_of_internal_networks_has_no_way_out() {
    let rows = [
        ("vault", "10.210.226.1 for 5 s"),
        ("db", "10.210.226.1 for 5 s"),
        ("web", "no name in Root"),
        ("example.com", "no name in Root"),
        ("1.2.0.192.in-addr.arpa", "no name in Reverse"),
    ];
    check("10.210.1.9", QuestionKind::Address, &rows);
    let with_other = [("vault", "10.210.226.1 for 5 s"), ("example.com", "forward")];
    check("10.210.1.10", QuestionKind::Address, &with_other);
}

#[test]
fn name_is_not_absent_while_a_catalogue_is_unknown() {
    let rows = [("web", "10.210.224.1 for 5 s"), ("vault", "unavailable"), ("example.com", "forward")];
    check("10.210.1.11", QuestionKind::Address, &rows);
    check("10.210.1.11", QuestionKind::Pointer, &[("9.1.210.10.in-addr.arpa", "unavailable")]);
    let rows = [("vault", "10.210.226.1 for 5 s"), ("web", "unavailable"), ("example.com", "unavailable")];
    check("10.210.1.12", QuestionKind::Address, &rows);
    let rows = [("web", "unavailable"), ("example.com", "forward")];
    check("10.210.1.13", QuestionKind::Address, &rows);
}

#[test]
fn node_sees_all_networks_and_strangers_see_nothing() {
    let rows = [
        ("web", "10.210.224.1 for 5 s"),
        ("cart", "10.210.225.2 for 5 s"),
        ("vault", "10.210.226.1 for 5 s"),
        ("nope", "no name in Root"),
        ("example.com", "refused"),
    ];
    for node in ["127.0.0.1", "127.0.0.53", "10.210.1.1", "::ffff:127.0.0.1"] {
        check(node, QuestionKind::Address, &rows);
    }
    for stranger in ["192.0.2.1", "10.210.2.2", "10.210.1.99", "::1", "2001:db8::1"] {
        check(stranger, QuestionKind::Address, &[("web", "refused"), ("example.com", "refused")]);
    }
}

#[test]
fn label_with_a_dot_or_strange_bytes_is_no_other_name() {
    let table = table();
    let ask = |labels: &[&[u8]]| {
        shown(resolve(&table, ONE.parse().unwrap(), &Question { labels, kind: QuestionKind::Address }, 0))
    };
    assert_eq!(ask(&[b"example.com"]), "no name in Root");
    assert_eq!(ask(&[b"web.warren"]), "no name in Root");
    assert_eq!(ask(&[b"\xff\xfe"]), "no name in Root");
    assert_eq!(ask(&[b"\xff", b"warren"]), "no name in Cluster");
    assert_eq!(ask(&[b"web", b"\xff"]), "forward");
}

#[test]
fn order_of_addresses_depends_on_the_seed_alone() {
    let table = table();
    let question = Question { labels: &[b"db"], kind: QuestionKind::Address };
    let first = |seed| match resolve(&table, ONE.parse().unwrap(), &question, seed) {
        Resolution::Addresses { addresses, .. } => addresses[0],
        other => panic!("{other:?}"),
    };
    let firsts: Vec<Ipv4Addr> = (0..1000).map(first).collect();
    assert_eq!(firsts, (0..1000).map(first).collect::<Vec<_>>());
    let share = firsts.iter().filter(|found| **found == address("10.210.1.4")).count();
    assert!((400..600).contains(&share), "{share} of 1000");
}

fn questions() -> impl Strategy<Value = (Vec<Vec<u8>>, QuestionKind)> {
    let kinds = [
        QuestionKind::Address,
        QuestionKind::Service,
        QuestionKind::Pointer,
        QuestionKind::Any,
        QuestionKind::Transfer,
        QuestionKind::Other,
    ];
    let name = prop_oneof![
        4 => "[a-e](-[0-4])?(\\.warren)?",
        2 => "([0-4]\\.)?tasks\\.[a-e](-[1-3])?(\\.warren)?",
        2 => "_([1-9]|[a-z]{1,2})\\._tcp\\.[a-e](-[1-3])?(\\.warren)?",
        2 => "([0-9]|1[0-9])\\.0\\.[1-3]\\.10\\.in-addr\\.arpa",
    ];
    (name, proptest::sample::select(kinds.to_vec())).prop_map(|(name, kind)| {
        (
            name.split('.')
                .filter(|label| !label.is_empty())
                .map(|label| label.as_bytes().to_vec())
                .collect(),
            kind,
        )
    })
}

proptest! {
    /// Also: nothing of an endpoint that is not ready, and a service of its network is never absent.
    #[test]
    fn no_answer_names_an_address_or_service_outside_of_the_networks_of_the_client(
        (one, two, three) in (catalogues(1), catalogues(2), catalogues(3)),
        attached in proptest::sample::subsequence(vec![1u128, 2, 3], 0..=3).prop_shuffle(),
        asked in proptest::collection::vec((questions(), any::<u64>()), 1..20),
    ) {
        let all = [one, two, three];
        let from = address("10.9.0.1");
        let networks: Vec<NetworkId> = attached.iter().map(|number| NetworkId(Id(*number))).collect();
        let clients = [(from, DnsClient { networks: networks.clone(), ..DnsClient::default() })].into();
        let ranges = vec!["10.0.0.0/8".parse().unwrap()];
        let names = all.iter().map(|catalogue| Arc::new(NetworkNames::new(catalogue)));
        let table = NameTable::new(names, &clients, NodeAddresses { own: vec![], ranges });
        let own: Vec<_> = all.iter().filter(|catalogue| networks.contains(&catalogue.network)).collect();
        let services = || own.iter().flat_map(|catalogue| &catalogue.services);
        let endpoints = || services().flat_map(|(_, service)| &service.endpoints);
        let ready: BTreeSet<_> = endpoints().filter(|endpoint| endpoint.ready).map(|found| found.address).collect();
        let virtual_addresses: BTreeSet<_> = services().filter_map(|(_, service)| service.virtual_address).collect();
        for ((labels, kind), seed) in asked {
            let labels: Vec<&[u8]> = labels.iter().map(Vec::as_slice).collect();
            let found = resolve(&table, from.into(), &Question { labels: &labels, kind }, seed);
            match &found {
                Resolution::Addresses { addresses, .. } => {
                    prop_assert!(!addresses.is_empty());
                    for address in addresses {
                        prop_assert!(ready.contains(address) || virtual_addresses.contains(address), "{address}");
                    }
                }
                Resolution::Services(targets) => {
                    for target in targets {
                        prop_assert!(ready.contains(&target.address), "{target:?}");
                        // The name of the target leads there, and only there. The same name on two networks is one
                        // service in a cluster, but not here.
                        let of_target = |name: &&ServiceName| match &target.target.0[..] {
                            [_, tasks, service, _] if tasks == "tasks" => service == name.as_str(),
                            [instance, ..] => split_instance_name(instance).unwrap().0 == name.as_str(),
                            [] => false,
                        };
                        if services().map(|(name, _)| name).filter(of_target).count() > 1 {
                            continue;
                        }
                        let labels: Vec<&[u8]> = target.target.0.iter().map(|label| label.as_bytes()).collect();
                        let question = Question { labels: &labels, kind: QuestionKind::Address };
                        let Resolution::Addresses { addresses, .. } = resolve(&table, from.into(), &question, 0) else {
                            panic!("{target:?} does not resolve");
                        };
                        prop_assert_eq!(&addresses[..], &[target.address]);
                    }
                }
                Resolution::Names(names) => {
                    for name in names {
                        let service = match &name.0[..] {
                            [_, tasks, service, _] if tasks == "tasks" => service.as_str(),
                            [name, _] => match services().any(|(service, _)| service.as_str() == name) {
                                true => name,
                                false => split_instance_name(name).unwrap().0,
                            },
                            other => panic!("{other:?}"),
                        };
                        prop_assert!(services().any(|(name, _)| name.as_str() == service), "{service}");
                    }
                }
                Resolution::Forward(_) => {
                    prop_assert!(labels.len() != 1 && labels.last() != Some(&&b"warren"[..]));
                }
                _ => {}
            }
            if let [name] = labels[..] && services().any(|(service, _)| service.as_str().as_bytes() == name) {
                prop_assert!(!matches!(found, Resolution::NoName(_) | Resolution::Unavailable), "{found:?}");
            }
        }
    }
}
