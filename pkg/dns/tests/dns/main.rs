//! A server on sockets of the loopback, with clients and upstreams at other addresses of it.

#![allow(clippy::unwrap_used)]

mod forwarding;
mod local;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_server::proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_server::proto::rr::{Name, RData, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::time::timeout;
use warren_dns::{
    ClientDnsSettings, DnsClient, DnsServer, DnsSockets, NameTable, NetworkNames, NodeAddresses,
};
use warren_types::{
    Catalogue, CatalogueService, Endpoint, EndpointMode, Id, NetworkId, Protocol, ServicePort,
};

/// Longer than everything that a server may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// A client of the server.
const CLIENT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Another client.
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
/// The network of all clients.
const NETWORK: NetworkId = NetworkId(Id(1));

fn service(addresses: &[Ipv4Addr], virtual_address: Option<Ipv4Addr>) -> CatalogueService {
    let endpoint = |(slot, address): (u32, &Ipv4Addr)| Endpoint { slot, address: *address, ready: true };
    let mode = if virtual_address.is_some() { EndpointMode::Vip } else { EndpointMode::Dnsrr };
    CatalogueService {
        mode,
        virtual_address,
        ports: vec![ServicePort {
            port: 80,
            protocol: Protocol::Tcp,
            name: Some("http".parse().unwrap()),
            published: None,
            prefer_local: false,
            client_affinity: false,
        }],
        endpoints: (1..).zip(addresses).map(endpoint).collect(),
        ..CatalogueService::default()
    }
}

fn address(number: u16) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(10, 210, high, low)
}

/// `web` with a virtual address, `many` with 200 endpoints, `huge` with 4,200.
fn table(clients: &BTreeMap<Ipv4Addr, DnsClient>) -> NameTable {
    let addresses = |numbers: std::ops::Range<u16>| numbers.map(address).collect::<Vec<_>>();
    let services = [
        ("web", service(&addresses(2..5), Some(address(0xe001)))),
        ("many", service(&addresses(100..300), None)),
        ("huge", service(&addresses(1000..5200), None)),
    ];
    let catalogue = Catalogue {
        network: NETWORK,
        name: "default".parse().unwrap(),
        number: 1,
        internal: false,
        services: services.map(|(name, service)| (name.parse().unwrap(), service)).into(),
    };
    let ranges = vec!["10.210.0.0/16".parse().unwrap()];
    let names = Arc::new(NetworkNames::new(&catalogue));
    NameTable::new([names], clients, NodeAddresses { own: vec![], ranges })
}

fn client(servers: &[SocketAddr]) -> DnsClient {
    let dns = ClientDnsSettings { servers: servers.to_vec(), searches: vec![] };
    DnsClient { networks: vec![NETWORK], dns, ..DnsClient::default() }
}

fn clients() -> BTreeMap<Ipv4Addr, DnsClient> {
    [(CLIENT, client(&[])), (OTHER, client(&[]))].into()
}

fn start() -> DnsServer {
    let server = DnsServer::start(vec![DnsSockets::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap()]).unwrap();
    server.set_table(table(&clients()));
    server
}

fn query(name: &str, record: RecordType) -> Message {
    let mut message = Message::new(4711, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), record));
    message
}

fn with_edns(mut message: Message, payload: u16) -> Message {
    let mut edns = Edns::new();
    edns.set_max_payload(payload);
    message.set_edns(edns);
    message
}

/// The bytes of the answer to these bytes.
async fn exchange(server: &DnsServer, from: Ipv4Addr, bytes: &[u8]) -> Vec<u8> {
    let socket = UdpSocket::bind((from, 0)).await.unwrap();
    socket.send_to(bytes, server.addresses()[0]).await.unwrap();
    let mut buffer = vec![0; 65_536];
    let size = timeout(ANSWER_LIMIT, socket.recv(&mut buffer)).await.unwrap().unwrap();
    buffer.truncate(size);
    buffer
}

async fn ask(server: &DnsServer, from: Ipv4Addr, message: &Message) -> Message {
    let bytes = exchange(server, from, &message.to_vec().unwrap()).await;
    let answer = Message::from_vec(&bytes).unwrap();
    assert_eq!((answer.metadata.id, answer.metadata.message_type), (message.id, MessageType::Response));
    answer
}

/// The addresses that `name` has for the client, in order.
async fn addresses(server: &DnsServer, name: &str) -> Vec<Ipv4Addr> {
    addresses_in(&ask(server, CLIENT, &query(name, RecordType::A)).await)
}

fn addresses_in(message: &Message) -> Vec<Ipv4Addr> {
    let address = |data: &RData| if let RData::A(address) = data { Some(address.0) } else { None };
    let mut found: Vec<_> = message.answers.iter().filter_map(|record| address(&record.data)).collect();
    found.sort();
    found
}

async fn code(server: &DnsServer, from: Ipv4Addr, name: &str) -> ResponseCode {
    ask(server, from, &query(name, RecordType::A)).await.response_code
}

async fn connect(server: &DnsServer, from: Ipv4Addr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    socket.connect(server.addresses()[0]).await.unwrap()
}

async fn send(stream: &mut TcpStream, bytes: &[u8]) {
    let length = u16::try_from(bytes.len()).unwrap();
    stream.write_all(&[&length.to_be_bytes(), bytes].concat()).await.unwrap();
}

/// The next answer; `None` if the connection was closed.
async fn receive(stream: &mut TcpStream) -> Option<Message> {
    let size = timeout(ANSWER_LIMIT, stream.read_u16()).await.unwrap().ok()?;
    let mut buffer = vec![0; size.into()];
    timeout(ANSWER_LIMIT, stream.read_exact(&mut buffer)).await.unwrap().ok()?;
    Some(Message::from_vec(&buffer).unwrap())
}
