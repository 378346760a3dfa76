//! Certificates of nodes, and how a machine leaves the cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use tonic::{Code, Status};
use warren_client::Error;
use warren_core::Command;
use warren_proto::v1::manager_frame::Frame;
use warren_proto::v1::membership_client::MembershipClient;
use warren_proto::v1::sessions_client::SessionsClient;
use warren_proto::{Problem, v1};
use warren_security::{ConnectError, Credentials, Role};
use warren_testkit::wait::eventually_async;
use warren_types::{ClusterSettingsChange, PublicKeyHash, Timestamp};

use crate::dial::{accepts, assert_access_ended, until_accepted};
use crate::fixture::{CallerKind, ManagerFixture, WAIT_DEADLINE, new_id, spec};
use crate::joining::{JoiningMachine, joined, token};
use crate::worker::ScriptedWorker;

fn removed(status: &Status) {
    let problem = Problem::from(status);
    assert_eq!((problem.code, problem.reason.as_str()), (Code::FailedPrecondition, "NODE_REMOVED"));
}

async fn leave(world: &ManagerFixture, node: &Credentials, force: bool) -> u32 {
    let mut member = MembershipClient::new(world.channel_as(Some(node)).await);
    member.leave(v1::LeaveRequest { force }).await.unwrap().into_inner().tasks
}

/// What a node whose certificate is refused asks without it.
async fn check_node(
    world: &ManagerFixture,
    node: &Credentials,
    version: Option<v1::AssignmentVersion>,
) -> Result<(), Status> {
    let request = v1::CheckNodeRequest { node_id: node.identity().id().to_owned(), version };
    SessionsClient::new(world.channel_as(None).await).check_node(request).await.map(drop)
}

/// Another certificate for this request, which is sent without one.
async fn renew(world: &ManagerFixture, certificate_request: String) -> Result<String, Status> {
    let mut anonymous = MembershipClient::new(world.channel_as(None).await);
    Ok(anonymous.renew(v1::RenewRequest { certificate_request }).await?.into_inner().certificate)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_renews_its_certificate_under_its_own_name() {
    let world = ManagerFixture::new().await;
    let machine = JoiningMachine::new("n2");
    let before = machine.join(&world, &token(&world, None, None).await.secret).await.unwrap();
    let certificate = renew(&world, machine.request()).await.unwrap();
    let after = Credentials::new(certificate, machine.key.clone()).unwrap();
    assert_eq!(after.identity(), before.identity());
    assert_ne!(after.certificate_pem(), before.certificate_pem());
    ScriptedWorker::dial_as(&world, &after).await;
    let refused = Problem::from(&renew(&world, "none".to_owned()).await.unwrap_err());
    assert_eq!(refused.violations.0[0].path, "certificateRequest");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn valid_certificate_of_a_node_renews_its_own_key_only() {
    let world = ManagerFixture::new().await;
    let (machine, other) = (JoiningMachine::new("n2"), JoiningMachine::new("n3"));
    let node = machine.join(&world, &token(&world, None, None).await.secret).await.unwrap();
    other.join(&world, &token(&world, None, None).await.secret).await.unwrap();
    let mut member = MembershipClient::new(world.channel_as(Some(&node)).await);
    let request = |certificate_request| v1::RenewRequest { certificate_request };
    let answer = member.renew(request(machine.request())).await.unwrap().into_inner();
    let renewed = Credentials::new(answer.certificate, machine.key.clone()).unwrap();
    assert_eq!(renewed.identity(), node.identity());
    let refused = Problem::from(&member.renew(request(other.request())).await.unwrap_err());
    assert_eq!(refused.violations.0[0].path, "certificateRequest");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_of_nodes_have_the_lifetime_that_is_set() {
    let world = ManagerFixture::new().await;
    let hour = Duration::from_secs(3600);
    let change = ClusterSettingsChange { node_certificate_lifetime: Some(hour), ..Default::default() };
    world.admin().await.cluster().update(&change, None, None).await.unwrap();
    let machine = JoiningMachine::new("n2");
    let joined = machine.join(&world, &token(&world, None, None).await.secret).await.unwrap();
    let renewed = renew(&world, machine.request()).await.unwrap();
    let renewed = Credentials::new(renewed, machine.key.clone()).unwrap();
    assert_eq!([joined.lifetime(), renewed.lifetime()], [hour; 2]);
}

/// A stolen certificate must not become one for a key of the thief, nor an earlier key that of a node again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_is_not_renewed_for_another_key() {
    let world = ManagerFixture::new().await;
    let machine = JoiningMachine::new("n2");
    let node = machine.join(&world, &token(&world, None, None).await.secret).await.unwrap();
    let foreign = Problem::from(&renew(&world, JoiningMachine::new("n3").request()).await.unwrap_err());
    assert_eq!((foreign.code, foreign.reason.as_str()), (Code::FailedPrecondition, "NODE_UNKNOWN"));
    let (id, key) = (node.identity().id().parse().unwrap(), PublicKeyHash([1; 32]));
    let command = Command::SetNodeKey { id, key, at: Timestamp(1) };
    world.manager().store().propose(command).await.unwrap();
    let earlier = Problem::from(&renew(&world, machine.request()).await.unwrap_err());
    assert_eq!((earlier.code, earlier.reason.as_str()), (Code::PermissionDenied, "ANOTHER_KEY"));
    // Nor does it become the node with a token.
    let renamed = JoiningMachine { name: "n4".to_owned(), ..machine };
    let refused = renamed.join(&world, &token(&world, None, None).await.secret).await.unwrap_err();
    assert_eq!(Problem::from(&refused).reason, "ANOTHER_KEY");
    assert_eq!(world.admin().await.nodes().get("n2").await.unwrap().id, node.identity().id());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_certificate_of_a_node_is_refused_and_its_key_renews_it() {
    let world = ManagerFixture::new().await;
    let machine = JoiningMachine::new("n2");
    let node = machine.join(&world, &token(&world, None, None).await.secret).await.unwrap();
    let expired = world.issued_ago(&node, 2 * Role::Worker.validity());
    let (address, roots) = (world.manager().address(), world.manager().roots());
    let refused = accepts(address, &roots, &expired).await.unwrap_err();
    assert!(matches!(refused, ConnectError::Expired), "{refused}");
    check_node(&world, &expired, None).await.unwrap();
    let certificate = renew(&world, machine.request()).await.unwrap();
    let renewed = Credentials::new(certificate, machine.key.clone()).unwrap();
    ScriptedWorker::dial_as(&world, &renewed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_node_is_refused_by_every_call() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let machine = JoiningMachine::new("n2");
    let node = machine.join(&world, &token(&world, None, None).await.secret).await.unwrap();
    let mut worker = ScriptedWorker::dial_as(&world, &node).await;
    worker.sync().await;
    let seen = worker.version.expect("an assignment has a version");
    let mut member = MembershipClient::new(world.channel_as(Some(&node)).await);
    let missing = client.nodes().remove("n2", false).await.unwrap();
    assert_eq!(missing.id, node.identity().id());
    // It is told so before its connection is closed, by every call.
    removed(&worker.end().await);
    removed(&renew(&world, machine.request()).await.unwrap_err());
    match member.leave(v1::LeaveRequest { force: false }).await {
        Ok(left) => assert_eq!(left.into_inner().tasks, 0, "it was removed before"),
        Err(closed) => assert_access_ended(&closed),
    }
    let (address, roots) = (world.manager().address(), world.manager().roots());
    until_accepted(address, &roots, &node, false).await;
    removed(&check_node(&world, &node, Some(seen)).await.unwrap_err());
    assert!(client.nodes().remove("n2", false).await.unwrap_err().is_not_found());
    machine.join(&world, &token(&world, None, None).await.secret).await.unwrap();
    until_accepted(address, &roots, &node, true).await;
    check_node(&world, &node, Some(seen)).await.unwrap();
    ScriptedWorker::dial_as(&world, &node).await;
}

/// A manager that was restored from before the node joined must not make it stop its tasks: only a manager
/// that has seen all that the node has may report it as removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_ahead_of_manager_is_unknown() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let machine = JoiningMachine::new("n2");
    let node = machine.join(&world, &token(&world, None, None).await.secret).await.unwrap();
    let mut worker = ScriptedWorker::dial_as(&world, &node).await;
    worker.sync().await;
    let seen = worker.version.expect("an assignment has a version");
    client.nodes().remove("n2", false).await.unwrap();
    removed(&worker.end().await);
    let later = v1::AssignmentVersion { index: u64::MAX, ..seen };
    let other_life = v1::AssignmentVersion { incarnation: seen.incarnation + 1, ..seen };
    let earlier_life = v1::AssignmentVersion { incarnation: seen.incarnation - 1, ..seen };
    let unknown = (Code::FailedPrecondition, "NODE_UNKNOWN");
    // A manager of the later incarnation may know it.
    let elsewhere = (Code::Unavailable, "OTHER_INCARNATION");
    let cases = [
        (None, unknown),
        (Some(later), unknown),
        (Some(other_life), elsewhere),
        (Some(earlier_life), unknown),
    ];
    for (has, expected) in cases {
        let problem = Problem::from(&check_node(&world, &node, has).await.unwrap_err());
        assert_eq!((problem.code, problem.reason.as_str()), expected, "{has:?}");
    }
    let managers = client.managers().list().await.unwrap().managers;
    let is_superseded = managers.iter().any(|manager| manager.reason.contains("superseded"));
    assert!(!is_superseded, "anybody can claim it: {managers:?}");
    removed(&check_node(&world, &node, Some(seen)).await.unwrap_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_leaves_waits_for_its_tasks() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let node = joined(&world, "n2").await;
    let mut leaving = ScriptedWorker::dial_as(&world, &node).await;
    client.services().create(new_id(), &spec("web", 2)).await.unwrap();
    leaving.has("both tasks", |tasks| tasks.len() == 2).await;
    leaving.apply_assignment().await;
    let in_use = client.nodes().remove("n2", false).await.unwrap_err();
    assert!(matches!(&in_use, Error::Refused { problem } if problem.reason == "NODE_IN_USE"), "{in_use}");
    assert_eq!(leave(&world, &node, false).await, 2);
    // The replacement node comes only now.
    let mut staying = ScriptedWorker::dial(&world).await;
    let left = async {
        while leave(&world, &node, false).await > 0 {
            staying.apply_assignment().await;
            leaving.apply_assignment().await;
        }
    };
    tokio::time::timeout(WAIT_DEADLINE, left).await.expect("its tasks get replacements on other nodes");
    removed(&leaving.end().await);
    eventually_async(WAIT_DEADLINE, "both to run on n1", || async {
        let running = client.services().get("web").await.unwrap().running;
        if running == 2 { Ok(()) } else { Err(running.to_string()) }
    })
    .await;
    let names: Vec<String> = client.nodes().list().await.unwrap().into_iter().map(|node| node.name).collect();
    assert_eq!(names, ["n1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_of_manager_cannot_leave() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let refused = client.nodes().remove("n1", true).await.unwrap_err();
    assert!(
        matches!(&refused, Error::Refused { problem } if problem.reason == "NODE_IS_MANAGER"),
        "{refused}"
    );
    let mut member = MembershipClient::new(world.channel(CallerKind::Certified(Role::Worker)).await);
    let refused = member.leave(v1::LeaveRequest { force: true }).await.unwrap_err();
    assert_eq!(Problem::from(&refused).reason, "NODE_IS_MANAGER");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_report_background_tasks() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let node = joined(&world, "n2").await;
    let workers = [ScriptedWorker::dial(&world).await, ScriptedWorker::dial_as(&world, &node).await];
    for mut worker in workers.into_iter() {
        worker.heartbeat().await;
        worker.sync().await;
        let background_tasks = client.cluster().background_tasks().await.unwrap().background_tasks;
        let mut of: BTreeMap<String, Vec<String>> = BTreeMap::new();
        background_tasks
            .iter()
            .for_each(|task| of.entry(task.node.clone()).or_default().push(task.name.clone()));
        assert!(of[""].contains(&"planner".to_owned()), "{of:?}");
        let settings = worker.welcome.settings.clone().unwrap();
        let name = if settings.node_id == node.identity().id() { "n2" } else { "n1" };
        assert_eq!(of[name], ["worker.relist"]);
        // The end of a session drops its unwritten reports.
        drop(worker);
        eventually_async(WAIT_DEADLINE, "the removal of its background tasks", || async {
            let left = client.cluster().background_tasks().await.unwrap().background_tasks;
            if left.iter().all(|task| task.node != name) { Ok(()) } else { Err("they are shown".to_owned()) }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forced_removal_orphans_tasks() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let node = joined(&world, "n2").await;
    let mut worker = ScriptedWorker::dial_as(&world, &node).await;
    client.services().create(new_id(), &spec("web", 1)).await.unwrap();
    worker.has("the task", |tasks| tasks.len() == 1).await;
    worker.apply_assignment().await;
    client.nodes().remove("n2", true).await.unwrap();
    let mut other = ScriptedWorker::dial(&world).await;
    other.has("its replacement", |tasks| tasks.len() == 1).await;
    loop {
        match worker.try_receive().await {
            Ok(Some(Frame::Diff(_) | Frame::Assignment(_) | Frame::Current(_) | Frame::Network(_))) => {}
            Ok(other) => panic!("not the end: {other:?}"),
            Err(status) => return removed(&status),
        }
    }
}
