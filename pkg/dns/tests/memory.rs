//! The memory of the names of a large cluster.

#![allow(clippy::unwrap_used)]
#![allow(unsafe_code, reason = "an allocator is an unsafe trait; this one only counts and passes on")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use warren_dns::{DnsClient, NameTable, NetworkNames, NodeAddresses};
use warren_types::{Catalogue, CatalogueService, Endpoint, Id, NetworkId, Protocol, ServicePort};

static IN_USE: AtomicUsize = AtomicUsize::new(0);

struct CountingAllocator;

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

const SERVICES: u32 = 5_000;
const ENDPOINTS: u32 = 3;
const CLIENTS: u32 = 200;

fn catalogue() -> Catalogue {
    let mut next = u32::from(Ipv4Addr::new(10, 210, 0, 1))..;
    let mut address = || Ipv4Addr::from(next.next().unwrap());
    let mut service = |number: u32| {
        let service = CatalogueService {
            aliases: [format!("alias-{number}").parse().unwrap()].into(),
            virtual_address: Some(address()),
            ports: vec![ServicePort {
                port: 80,
                protocol: Protocol::Tcp,
                name: Some("http".parse().unwrap()),
                published: None,
                prefer_local: false,
                client_affinity: false,
            }],
            endpoints: (1..=ENDPOINTS)
                .map(|slot| Endpoint { slot, address: address(), ready: true })
                .collect(),
            ..CatalogueService::default()
        };
        (format!("service-{number}").parse().unwrap(), service)
    };
    Catalogue {
        network: NetworkId(Id(1)),
        name: "default".parse().unwrap(),
        number: 1,
        internal: false,
        services: (0..SERVICES).map(&mut service).collect(),
    }
}

#[test]
fn five_thousand_services_take_less_than_ten_megabytes() {
    let before = IN_USE.load(Ordering::Relaxed);
    let catalogue = catalogue();
    let with_catalogue = IN_USE.load(Ordering::Relaxed);
    let names = Arc::new(NetworkNames::new(&catalogue));
    let client = |number: u32| {
        let client = DnsClient { networks: vec![catalogue.network], ..DnsClient::default() };
        (Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 211, 0, 1)) + number), client)
    };
    let clients = (0..CLIENTS).map(client).collect();
    let table = NameTable::new([names], &clients, NodeAddresses::default());
    let after = IN_USE.load(Ordering::Relaxed);
    println!("catalogue {} bytes, table {} bytes", with_catalogue - before, after - with_catalogue);
    assert!(after - before < 10_000_000, "{} bytes", after - before);
    drop((table, catalogue));
}
