use std::thread;

use nix::sched::{CloneFlags, unshare};

use super::*;

const NEW: u16 = 1 << 8;
const REQUEST_CREATE_ACK: u16 = 0x405;
const TIMEOUT: u16 = 7;
const TUPLE_ZONE: u16 = 3;

/// The entry of a UDP flow from `from` to `to` that is translated to `reply_from` and `reply_to`, in a zone.
fn entry(port: u16, [from, to, reply_from, reply_to]: [Ipv4Addr; 4], zone: u16) -> Vec<u8> {
    let tuple = |kind, source: Ipv4Addr, destination: Ipv4Addr, [source_port, destination_port]: [u16; 2]| {
        let ip = [attribute(V4_SOURCE, &source.octets()), attribute(V4_DESTINATION, &destination.octets())]
            .concat();
        let proto = [
            attribute(1, &[17]),
            attribute(2, &source_port.to_be_bytes()),
            attribute(3, &destination_port.to_be_bytes()),
        ];
        let mut all =
            [attribute(TUPLE_IP | NESTED, &ip), attribute(TUPLE_PROTO | NESTED, &proto.concat())].concat();
        if kind == TUPLE_ORIG && zone > 0 {
            all.extend(attribute(TUPLE_ZONE, &zone.to_be_bytes()));
        }
        attribute(kind | NESTED, &all)
    };
    [
        tuple(TUPLE_ORIG, from, to, [port, 53]),
        tuple(TUPLE_REPLY, reply_from, reply_to, [53, port]),
        attribute(TIMEOUT, &100_u32.to_be_bytes()),
    ]
    .concat()
}

fn wire() -> ConntrackSocket {
    ConntrackSocket { socket: netlink::open(NETLINK_NETFILTER).unwrap(), sequence: 0 }
}

fn count(wire: &mut ConntrackSocket) -> usize {
    wire.send(GET, REQUEST_DUMP, 0, &[]).unwrap();
    wire.receive_all().unwrap().len()
}

/// Runs the test in its own network namespace, which ends with its thread.
fn in_new_namespace(test: impl FnOnce() + Send) {
    thread::scope(|scope| {
        scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            test();
        });
    });
}

/// Adds entries with the task at every kind of end, and some without it.
fn fill(wire: &mut ConntrackSocket) -> Ipv4Addr {
    let (task, other, node, outside) =
        ([10, 1, 0, 2].into(), [10, 1, 0, 3].into(), [192, 0, 2, 1].into(), [192, 0, 2, 9].into());
    let conversations = [
        [task, outside, outside, node],  // masqueraded
        [outside, node, task, outside],  // published
        [other, task, task, other],      // task to task
        [task, node, task, node],        // to itself
        [outside, task, task, outside],  // through an entry node
        [other, outside, outside, node], // the rest is of others
        [outside, node, node, outside],
    ];
    for (port, ends) in (1000..).zip(conversations) {
        let zone = if port == 1004 { 7 } else { 0 };
        wire.send(NEW, REQUEST_CREATE_ACK, 0, &entry(port, ends, zone)).unwrap();
        wire.receive_all().unwrap();
    }
    assert_eq!(count(wire), conversations.len());
    task
}

#[test]
fn entries_of_an_address_are_deleted_and_no_others() {
    in_new_namespace(|| {
        let mut wire = wire();
        let task = fill(&mut wire);
        remove(task).unwrap();
        assert_eq!(count(&mut wire), 2);
        remove(task).unwrap();
        assert_eq!(count(&mut wire), 2, "the second time is harmless");
    });
}

#[test]
fn fallback_for_older_kernels_deletes_the_same() {
    in_new_namespace(|| {
        let mut wire = wire();
        let task = fill(&mut wire);
        let stale = StaleEntries { addresses: BTreeSet::from([task]), ..StaleEntries::default() };
        wire.delete_one_by_one(&stale, &BTreeSet::new()).unwrap();
        assert_eq!(count(&mut wire), 2);
        wire.delete_one_by_one(&stale, &BTreeSet::new()).unwrap();
        assert_eq!(count(&mut wire), 2, "the second time is harmless");
    });
}

/// Two flows to a virtual address with different backends, one to another address, and two to port 53 of
/// the node, of which one is translated.
fn fill_flows(wire: &mut ConntrackSocket) -> [Ipv4Addr; 4] {
    let (virtually, first, second, node) =
        ([10, 1, 7, 7].into(), [10, 1, 0, 2].into(), [10, 1, 0, 3].into(), [192, 0, 2, 1].into());
    let (client, outside) = ([10, 1, 0, 9].into(), [192, 0, 2, 9].into());
    let flows = [
        [client, virtually, first, client],
        [client, virtually, second, client],
        [client, first, first, client],
        [outside, node, first, outside],
        [outside, node, node, outside],
    ];
    for (port, ends) in (1000..).zip(flows) {
        wire.send(NEW, REQUEST_CREATE_ACK, 0, &entry(port, ends, 0)).unwrap();
        wire.receive_all().unwrap();
    }
    assert_eq!(count(wire), flows.len());
    [virtually, first, second, node]
}

#[test]
fn flows_to_a_withdrawn_backend_are_deleted_both_ways() {
    for by_filter in [true, false] {
        in_new_namespace(|| {
            let mut wire = wire();
            let [virtually, first, ..] = fill_flows(&mut wire);
            let withdrawn = BTreeSet::from([(virtually, first)]);
            let stale = StaleEntries { withdrawn, ..StaleEntries::default() };
            let open = match by_filter {
                true => wire.delete_filtered(&stale).unwrap(),
                false => wire.delete_one_by_one(&stale, &BTreeSet::new()).unwrap(),
            };
            assert_eq!(open, [], "there is no TCP");
            assert_eq!(count(&mut wire), 4, "by filter: {by_filter}");
            // The flow to the backend itself, and that by the port, are others.
            remove(first).unwrap();
            assert_eq!(count(&mut wire), 2);
        });
    }
}

#[test]
fn flows_of_a_port_that_lead_elsewhere_are_deleted() {
    in_new_namespace(|| {
        let mut wire = wire();
        let [_, first, second, node] = fill_flows(&mut wire);
        let stale = |port, backends: &[Ipv4Addr]| {
            let backends = backends.iter().copied().collect();
            let at = HostPort::new(Some(node), NonZeroU16::new(port).unwrap(), TransportProtocol::Udp);
            StaleEntries { ports: BTreeMap::from([(at, backends)]), ..StaleEntries::default() }
        };
        remove_stale(&stale(54, &[])).unwrap();
        assert_eq!(count(&mut wire), 5, "another port");
        remove_stale(&stale(53, &[first])).unwrap();
        assert_eq!(count(&mut wire), 4, "the flow that is not translated");
        remove_stale(&stale(53, &[second])).unwrap();
        assert_eq!(count(&mut wire), 3);
    });
}
