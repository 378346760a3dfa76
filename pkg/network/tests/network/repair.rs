//! External damage of every kind, and its repair by a reconciliation.

use std::net::Ipv4Addr;
use std::time::Instant;

use warren_network::{Error, NetworkBackend};

use crate::lab::{
    CLIENT, EchoServer, NODE, NetworkLab, NetworkNamespace, WAIT_DEADLINE, all, assert_same, key, link,
    published, run_on_node, without_indexes,
};

const ANY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

/// A node with one serving task, published on 8080, after a first reconciliation.
async fn publish_one_task(lab: &NetworkLab) -> EchoServer {
    let made = lab.network.ensure(&all([2], &published(None, 8080, &[(2, 80)]))).await.unwrap();
    assert!(made.failed.is_empty(), "{:?}", made.failed);
    serve(lab)
}

fn serve(lab: &NetworkLab) -> EchoServer {
    NetworkNamespace::open(&lab.run.path().join("netns").join(key(2).as_str())).serve(ANY, 80, "two")
}

#[test]
fn second_pass_changes_nothing() {
    run_on_node(|lab| async move {
        let _server = publish_one_task(&lab).await;
        let before = lab.inventory();
        for _ in 0..2 {
            let pass = lab.network.repair().await.unwrap();
            assert!(pass.repaired.is_empty() && pass.failed.is_empty(), "{pass:?}");
            assert_same(&lab.inventory(), &before, "after a second pass");
        }
        // A restarted agent on the same node finds everything in place, and the container keeps its
        // namespace.
        let restarted = crate::lab::linux_network(lab.run.path());
        let pass = restarted.ensure(&all([2], &published(None, 8081, &[]))).await.unwrap();
        assert!(!pass.repaired.iter().any(|what| what.contains("attached")), "{pass:?}");
        assert_eq!(lab.node.fetch(crate::lab::address(2), 80).unwrap(), "two 10.210.1.1");
    });
}

#[test]
fn damage_on_the_node_is_repaired() {
    run_on_node(|lab| async move {
        let _server = publish_one_task(&lab).await;
        let whole = lab.inventory();
        let (link, ns) = (link(2), lab.run.path().join("netns/web.2"));
        let inside = format!("nsenter --net={}", ns.display());
        for damage in [
            "iptables -t nat -F".to_owned(),
            "iptables -t filter -F; iptables -t filter -X".to_owned(),
            "iptables -t raw -F WARREN-RAW-C".to_owned(),
            "iptables -t nat -D PREROUTING -j WARREN-PRE".to_owned(),
            "iptables -t filter -D FORWARD -o wc+ -j WARREN-FWD".to_owned(),
            "iptables -t nat -I WARREN-PORTS 1 -j RETURN".to_owned(),
            "iptables -t nat -I POSTROUTING 1 -j WARREN-POST".to_owned(),
            "iptables -t filter -N WARREN-OLD; iptables -t filter -A INPUT -j WARREN-OLD".to_owned(),
            "iptables -F; iptables -t nat -F; iptables -t raw -F; iptables -X; iptables -t nat -X".to_owned(),
            "nft flush ruleset".to_owned(),
            "ip route del 10.210.1.2".to_owned(),
            "ip route del unreachable 10.210.0.0/16 metric 4096".to_owned(),
            "ip addr del 10.210.1.1/32 dev lo".to_owned(),
            "ip addr add 10.210.9.1/32 dev lo label lo:warren".to_owned(),
            "ip route add unreachable 10.209.0.0/16 proto 87".to_owned(),
            format!("ip neigh del 10.210.1.2 dev {link}"),
            format!("ip link set {link} down"),
            format!("echo 0 > /proc/sys/net/ipv4/conf/{link}/route_localnet"),
            "echo 0 > /proc/sys/net/ipv4/ip_forward".to_owned(),
            format!("ip link del {link}"),
            format!("{inside} ip addr flush dev eth0"),
            format!("{inside} ip route del default"),
            format!("{inside} ip link set eth0 down"),
            format!("{inside} ip neigh del 10.210.1.1 dev eth0"),
        ] {
            lab.node.command("sh", &["-c", &damage]);
            let pass = lab.network.repair().await.unwrap();
            assert!(!pass.repaired.is_empty() && pass.failed.is_empty(), "{damage}: {pass:?}");
            // Forwarding and route_localnet are not part of the inventory; reaching the task verifies them.
            assert_eq!(lab.client.fetch(NODE, 8080).unwrap(), format!("two {CLIENT}"), "{damage}");
            assert_eq!(lab.node.fetch(Ipv4Addr::LOCALHOST, 8080).unwrap(), "two 10.210.1.1", "{damage}");
            assert_same(&without_indexes(&lab.inventory()), &without_indexes(&whole), &damage);
            let again = lab.network.repair().await.unwrap();
            assert!(again.repaired.is_empty() && again.failed.is_empty(), "{damage}: {again:?}");
        }
    });
}

#[test]
fn lost_namespace_is_recreated() {
    run_on_node(|lab| async move {
        let server = publish_one_task(&lab).await;
        drop(server);
        let file = lab.run.path().join("netns/web.2");
        // Lazily: a process that another test starts may have the file open until its exec.
        lab.node.command("umount", &["--lazy", file.to_str().unwrap()]);
        let pass = lab.network.repair().await.unwrap();
        assert!(
            pass.failed.is_empty() && pass.repaired.iter().any(|what| what.contains("web.2")),
            "{pass:?}"
        );
        let _server = serve(&lab);
        assert_eq!(lab.client.fetch(NODE, 8080).unwrap(), format!("two {CLIENT}"));
    });
}

#[test]
fn publishing_works_on_damaged_chains() {
    run_on_node(|lab| async move {
        let _server = publish_one_task(&lab).await;
        lab.node.command("nft", &["flush", "ruleset"]);
        // The write that this causes drops a missing chain, and must detect that all the others are missing
        // too.
        lab.publish(None, 8080, &[]).await;
        lab.publish(None, 8080, &[(2, 80)]).await;
        lab.network.repair().await.unwrap();
        assert_eq!(lab.client.fetch(NODE, 8080).unwrap(), format!("two {CLIENT}"));
    });
}

#[test]
fn lost_port_is_reported_and_reserved_again() {
    run_on_node(|lab| async move {
        let foreign = lab.node.serve(NODE, 8080, "stranger");
        let desired = all([2], &published(None, 8080, &[(2, 80)]));
        let pass = lab.network.ensure(&desired).await.unwrap();
        let [Error::PortTaken { by: Some(by), .. }] = pass.failed.as_slice() else {
            panic!("{:?}", pass.failed)
        };
        assert_eq!(by.pid, std::process::id());
        // A port of another process is not translated, and everything else is created nevertheless.
        assert_eq!(lab.client.fetch(NODE, 8080).unwrap(), format!("stranger {CLIENT}"));
        let _server = serve(&lab);
        assert_eq!(lab.node.fetch(crate::lab::address(2), 80).unwrap(), "two 10.210.1.1");
        drop(foreign);
        lab.node.wait_closed(8080);
        // Once is enough unless a program just started by another test still has a copy of the socket.
        let limit = Instant::now() + WAIT_DEADLINE;
        loop {
            let pass = lab.network.repair().await.unwrap();
            if pass.failed.is_empty() {
                break;
            }
            assert!(Instant::now() < limit, "{:?}", pass.failed);
        }
        assert_eq!(lab.client.fetch(NODE, 8080).unwrap(), format!("two {CLIENT}"));
    });
}
