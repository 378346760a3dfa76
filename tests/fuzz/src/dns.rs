//! Arbitrary bytes as a query to the DNS server of a node.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, LazyLock};

use hickory_server::proto::op::{Message, MessageType};
use hickory_server::proto::rr::RData;
use warren_dns::{DnsClient, NameTable, NetworkNames, NodeAddresses, Reaction, ReplyKind, Transport, react};
use warren_types::{
    Catalogue, CatalogueService, Endpoint, EndpointMode, Id, NetworkId, Protocol, ServicePort,
};

/// The first byte selects one of these senders: three tasks, the node, and somebody else.
const SENDERS: [Ipv4Addr; 5] = [
    Ipv4Addr::new(10, 210, 1, 2),
    Ipv4Addr::new(10, 210, 1, 3),
    Ipv4Addr::new(10, 210, 1, 4),
    Ipv4Addr::new(10, 210, 1, 1),
    Ipv4Addr::new(192, 0, 2, 1),
];
/// The networks that each of them may see; the addresses of network N are of 10.N.0.0/16.
const VISIBLE: [&[u8]; 5] = [&[1], &[2, 1], &[3], &[1, 2, 3], &[]];
/// Datagrams are not larger, whatever the sender accepts.
const MAX_DATAGRAM: usize = 1232;

static TABLE: LazyLock<NameTable> = LazyLock::new(table);

fn table() -> NameTable {
    let clients: BTreeMap<Ipv4Addr, DnsClient> = SENDERS
        .into_iter()
        .zip(VISIBLE)
        .take(3)
        .map(|(address, networks)| {
            let networks = networks.iter().map(|number| NetworkId(Id(u128::from(*number)))).collect();
            (address, DnsClient { networks, ..DnsClient::default() })
        })
        .collect();
    let ranges = vec!["10.0.0.0/8".parse().expect("a valid range")];
    let addresses = NodeAddresses { own: vec![SENDERS[3]], ranges };
    NameTable::new((1..=3).map(|number| Arc::new(NetworkNames::new(&catalogue(number)))), &clients, addresses)
}

fn catalogue(number: u8) -> Catalogue {
    let mut hosts = 1..;
    let mut address = || Ipv4Addr::new(10, number, 0, hosts.next().unwrap_or(255));
    let only = format!("only-{number}");
    let services = ["a", "a-1", "b", &only].into_iter().enumerate().map(|(i, name)| {
        let service = CatalogueService {
            aliases: [format!("alias-{i}").parse().expect("a label")].into(),
            mode: EndpointMode::ALL[i % 2],
            virtual_address: Some(address()),
            ports: vec![ServicePort {
                port: 80,
                protocol: Protocol::Tcp,
                name: "http".parse().ok(),
                published: None,
                prefer_local: false,
                client_affinity: false,
            }],
            entry_nodes: None,
            endpoints: (1..=40)
                .map(|slot| Endpoint { slot, address: address(), ready: slot % 5 > 0 })
                .collect(),
        };
        (name.parse().expect("a name"), service)
    });
    Catalogue {
        network: NetworkId(Id(number.into())),
        name: format!("net-{number}").parse().expect("a name"),
        number: number.into(),
        internal: number == 3,
        services: services.collect(),
    }
}

/// A reply is one message to the same question, fits, and names no address that its receiver must not know. Names of
/// the cluster are not forwarded.
pub fn run(bytes: &[u8]) {
    reaction(bytes);
}

/// What an input leads to, for the test of the corpus; `None` if it is ignored.
pub fn reaction(bytes: &[u8]) -> Option<String> {
    let (sender, rest) = bytes.split_first()?;
    let (transport, query) = rest.split_first()?;
    let sender = usize::from(*sender) % SENDERS.len();
    let seed = u64::from(*transport);
    let transport = if transport % 2 == 0 { Transport::Udp } else { Transport::Tcp };
    let from = SocketAddr::from((SENDERS[sender], 4711));
    match react(&TABLE, query.to_vec(), from, transport, seed) {
        Reaction::Ignore => None,
        Reaction::Reply(reply, kind) => {
            assert_eq!(reply[..2], query[..2], "the id of another query");
            assert!(transport == Transport::Tcp || reply.len() <= MAX_DATAGRAM, "{} bytes", reply.len());
            let message = Message::from_vec(&reply).expect("a reply can be read");
            assert_eq!(message.metadata.message_type, MessageType::Response);
            check_addresses(&message, VISIBLE[sender]);
            assert!(kind != ReplyKind::Answered || !VISIBLE[sender].is_empty());
            Some(format!("{kind:?}"))
        }
        Reaction::Forward(_) => {
            let message = Message::from_vec(query).expect("a query can be read");
            let name = message.queries[0].name().to_lowercase();
            let last = name.iter().next_back().unwrap_or_default();
            assert!(name.num_labels() != 1 && last != b"warren", "{name} must not leave");
            assert!(!name.to_ascii().ends_with(".10.in-addr.arpa."), "{name} must not leave");
            assert!(sender < 2, "sender {sender} has no way out");
            Some("Forward".to_owned())
        }
    }
}

fn check_addresses(message: &Message, visible: &[u8]) {
    for record in message.answers.iter().chain(&message.additionals) {
        if let RData::A(address) = &record.data {
            let [ten, network, ..] = address.0.octets();
            assert!(ten == 10 && visible.contains(&network), "{} of another network", address.0);
        }
    }
}
