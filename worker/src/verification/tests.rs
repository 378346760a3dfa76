use std::collections::BTreeSet;

use warren_runtime::fake::FakeRuntime;

use super::*;
use crate::fixtures::{self, network_view};
use NodeCheckOutcome::{Failed, Passed, Warning};

/// Nodes that answer.
struct FakePath(Mutex<BTreeSet<Ipv4Addr>>);

impl PacketPath for FakePath {
    fn send(&self, _: Ipv4Addr, to: Ipv4Addr) -> Result<(), String> {
        let answers = self.0.lock().unwrap().contains(&to);
        answers.then_some(()).ok_or_else(|| "no answer".to_owned())
    }
}

fn peer(number: u8) -> Peer {
    Peer { name: format!("w{number}"), gateway: Ipv4Addr::new(10, 210, number, 1) }
}

fn verifier(dir: &std::path::Path) -> (NodeVerifier, Arc<FakePath>) {
    let packets = Arc::new(FakePath(Mutex::default()));
    let view = watch::channel(network_view(1)).1;
    let verifier = fixtures::verifier(dir, &FakeRuntime::new(), view);
    (NodeVerifier { packets: packets.clone(), ..verifier }, packets)
}

#[test]
fn data_plane_fails_when_most_nodes_do_not_answer() {
    let missing = |count: u8| (1..=count).map(|n| (peer(n), "no answer".to_owned())).collect::<Vec<_>>();
    for (all, count, expected) in
        [(0, 0, Passed), (1, 0, Passed), (1, 1, Failed), (2, 1, Warning), (3, 1, Warning), (3, 2, Failed)]
    {
        let (outcome, message) = judge_peers(all, &missing(count));
        assert_eq!(outcome, expected, "{count} of {all}: {message}");
        assert_eq!(message.contains("w1 (10.210.1.1)"), count > 0, "{message}");
    }
    let (_, message) = judge_peers(16, &missing(12));
    assert!(message.contains("w8 (10.210.8.1) and 4 more: no answer"), "{message}");
}

#[tokio::test]
async fn missing_node_is_named_by_a_condition_until_it_answers() {
    let dir = tempfile::tempdir().unwrap();
    let (verifier, packets) = verifier(dir.path());
    let peers = vec![peer(0), peer(1)];
    packets.0.lock().unwrap().insert(peer(0).gateway);
    let (outcome, _) = verifier.check_data_plane(peers.clone()).await;
    assert_eq!(outcome, Warning);
    let message = verifier.conditions.message(NodeCondition::PeersUnreachable).unwrap();
    assert!(message.contains("w1 (10.210.1.1)") && !message.contains("w0"), "{message}");
    packets.0.lock().unwrap().insert(peer(1).gateway);
    let known = verifier.unreachable().clone();
    verifier.probe_peers(known).await;
    assert_eq!(verifier.conditions.message(NodeCondition::PeersUnreachable), None);
    // It is in no view: it has left the cluster.
    verifier.probe_peers(vec![peer(200)]).await;
    assert_eq!(verifier.conditions.message(NodeCondition::PeersUnreachable), None);
}

#[tokio::test]
async fn conditions_of_the_node_fail_its_checks() {
    let dir = tempfile::tempdir().unwrap();
    let (verifier, _) = verifier(dir.path());
    assert_eq!(verifier.check_clock().0, Passed);
    verifier.conditions.observe_clock(5000);
    let (outcome, message) = verifier.check_clock();
    assert!(outcome == Failed && message.contains("5.0 s ahead"), "{message}");
    assert_eq!(verifier.check_disk().await, passed(""));
    assert!(!dir.path().join("verification").exists());
    verifier.conditions.set(NodeCondition::DiskPressure, Some("it is full".into()));
    assert_eq!(verifier.check_disk().await, failed("it is full"));
    verifier.conditions.set(NodeCondition::DiskPressure, None);
    drop(dir);
    assert_eq!(verifier.check_disk().await.0, Failed);
    verifier.conditions.set(NodeCondition::NetworkUnavailable, Some("no network".into()));
    assert_eq!(verifier.check_data_plane(Vec::new()).await, failed("no network"));
}

#[tokio::test]
async fn each_check_has_one_result() {
    let dir = tempfile::tempdir().unwrap();
    let (verifier, _) = verifier(dir.path());
    let wire = v1::VerifyNode {
        timeout_ms: 20_000,
        checks: vec!["bad=command:echo no; exit 1".into(), "good=command:true".into()],
        ..v1::VerifyNode::default()
    };
    let (results, mut received) = mpsc::channel(16);
    verifier.run(wire.clone().try_into().unwrap(), &results).await;
    drop(results);
    let mut found = Vec::new();
    while let Some(result) = received.recv().await {
        found.push((result.name, result.outcome, result.message));
    }
    let names: Vec<&str> = found.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["dns", "manager-api", "data-plane", "registry", "clock", "disk", "bad", "good"]);
    assert_eq!(found[6], ("bad".to_owned(), Failed, "exited with code 1: no".to_owned()));
    assert_eq!(found[7].1, Passed);
    let wrong = v1::VerifyNode { checks: vec!["bad".into()], ..wire };
    assert!(VerificationRequest::try_from(wrong).is_err());
}
