//! Another tool or an administrator damages the node's network configuration: the node repairs it.

use std::time::Duration;

use warren_testkit::leaks;
use warren_testkit::tool;

use crate::e2e::fixture::{NodeFixture, WEB, still_inventory};
use crate::e2e::traffic::{CLIENT_LOCATIONS, ClientLocation};

/// The node checks its network every half minute.
const REPAIR: Duration = Duration::from_secs(90);

/// Shell lines that each damage something.
const DAMAGE: [&str; 7] = [
    "iptables -t nat -F WARREN-PORTS",
    "iptables -t filter -F WARREN-FWD",
    "iptables -t nat -D OUTPUT -j WARREN-OUT",
    "iptables -t raw -D PREROUTING -j WARREN-RAW",
    "ip route delete $(ip -o -4 route | grep -o '^[0-9.]* dev wc[0-9a-v]*' | head -n 1)",
    "ip address delete $(ip -o -4 address show dev lo label 'lo:warren' | awk '{ print $4 }') dev lo",
    "ip link delete $(ip -o link | grep -o 'wc[0-9a-v]*' | tail -n 1)",
];

#[track_caller]
fn damage(world: &NodeFixture) {
    for line in DAMAGE {
        let mut shell = world.node.host().command("sh");
        shell.args(["-c", line]);
        if let Err(error) = tool::stdout(shell, tool::DEADLINE) {
            panic!("{error}");
        }
    }
}

#[test]
fn a_damaged_network_is_repaired() {
    let world = NodeFixture::new();
    world.ok(&format!("service create web --image {WEB} --replicas 2 --publish 8088:80"));
    for way in CLIENT_LOCATIONS {
        world.assert_answered_by(way, 8088, &["web-1", "web-2"]);
    }
    let before = still_inventory(&world.node);
    // The node may repair something before the request is sent.
    let is_harmful = (0..3).any(|_| {
        damage(&world);
        let answered = world.answering_host(ClientLocation::Outside, 8088);
        leaks::assert_returns_to(&before, REPAIR, || world.node.inventory());
        answered.is_err()
    });
    assert!(is_harmful, "requests were answered in spite of the damage");
    for way in CLIENT_LOCATIONS {
        world.assert_answered_by(way, 8088, &["web-1", "web-2"]);
    }
    let service = world.wait_serving("web", 2);
    assert!(service.iter().all(|task| task.attempt == 1), "no container has to pay for it: {service:#?}");
}
