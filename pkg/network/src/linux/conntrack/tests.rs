use std::thread;

use nix::sched::{CloneFlags, unshare};

use super::*;

const NEW: u16 = 1 << 8;
const REQUEST_CREATE_ACK: u16 = 0x405;
const TIMEOUT: u16 = 7;
const TUPLE_PROTO: u16 = 2;

/// The entry of a UDP flow from `from` to `to` that is translated to `reply_from` and `reply_to`.
fn entry(port: u16, [from, to, reply_from, reply_to]: [Ipv4Addr; 4]) -> Vec<u8> {
    let tuple = |kind, source: Ipv4Addr, destination: Ipv4Addr, [source_port, destination_port]: [u16; 2]| {
        let ip = [attribute(V4_SOURCE, &source.octets()), attribute(V4_DESTINATION, &destination.octets())]
            .concat();
        let proto = [
            attribute(1, &[17]),
            attribute(2, &source_port.to_be_bytes()),
            attribute(3, &destination_port.to_be_bytes()),
        ];
        let both = [attribute(TUPLE_IP | NESTED, &ip), attribute(TUPLE_PROTO | NESTED, &proto.concat())];
        attribute(kind | NESTED, &both.concat())
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
        [other, outside, outside, node], // the rest is of others
        [outside, node, node, outside],
    ];
    for (port, ends) in (1000..).zip(conversations) {
        wire.send(NEW, REQUEST_CREATE_ACK, 0, &entry(port, ends)).unwrap();
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
        wire.delete_one_by_one(task).unwrap();
        assert_eq!(count(&mut wire), 2);
        wire.delete_one_by_one(task).unwrap();
        assert_eq!(count(&mut wire), 2, "the second time is harmless");
    });
}
