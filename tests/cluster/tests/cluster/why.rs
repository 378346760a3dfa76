//! Why objects are as they are, with what workers report beside the replicated state.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use warren_client::Error;
use warren_proto::v1;
use warren_proto::v1::worker_frame::Frame as Say;
use warren_testkit::wait::eventually_async;
use warren_types::UserRole;

use crate::fixture::{ManagerFixture, WAIT_DEADLINE, new_id, spec};
use crate::joining::joined;
use crate::worker::{ScriptedWorker, report};

/// The codes of a cause and of what it follows from.
fn codes(cause: &v1::Cause) -> Vec<String> {
    let inner = cause.causes.iter().flat_map(codes);
    std::iter::once(cause.code.clone()).chain(inner).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn causes_contain_progress_and_checks_of_workers() {
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    client.services().create(new_id(), &spec("web", 1)).await.unwrap();
    let unplaced = eventually_async(WAIT_DEADLINE, "the refusal", || async {
        let answer = client.cluster().why("", "web").await.map_err(|error| error.to_string())?;
        let cause = answer.cause.unwrap();
        if codes(&cause) == ["no-ready-task", "not-placed"] { Ok(cause) } else { Err(format!("{cause:?}")) }
    })
    .await;
    assert_eq!(unplaced.causes[0].evidence, ["0 of 1 nodes fit: 1 has joined but not connected yet"]);
    assert_eq!(unplaced.severity(), v1::CauseSeverity::Problem);
    let mut worker = ScriptedWorker::dial(&world).await;
    worker.has("a task", |tasks| tasks.len() == 1).await;
    let id = worker.tasks.keys().next().unwrap().clone();
    let reason = "pulling image: registry r.example has no image web:1; push it first".to_owned();
    let failed = v1::TaskReport { reason: reason.clone(), ..report(&id, v1::TaskState::Preparing) };
    worker.report(vec![failed]).await;
    let cause = eventually_async(WAIT_DEADLINE, "the failed pull", || async {
        let answer = client.cluster().why("service", "web").await.map_err(|error| error.to_string())?;
        let cause = answer.cause.unwrap();
        if codes(&cause).iter().any(|code| code == "image-pull-failed") {
            Ok(cause)
        } else {
            Err(format!("{cause:?}"))
        }
    })
    .await;
    assert_eq!(cause.causes[0].evidence, [reason]);
    worker.report(vec![report(&id, v1::TaskState::Running)]).await;
    eventually_async(WAIT_DEADLINE, "a healthy service", || async {
        let answer = client.cluster().why("service", "web").await.map_err(|error| error.to_string())?;
        let cause = answer.cause.unwrap();
        if cause.severity() == v1::CauseSeverity::Ok { Ok(()) } else { Err(format!("{cause:?}")) }
    })
    .await;
    let Err(Error::Refused { problem }) = client.cluster().why("", "nothing").await else { panic!() };
    assert_eq!((problem.code, problem.reason.as_str()), (tonic::Code::NotFound, "NOT_FOUND"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_that_fails_again_and_again_is_told_of_its_node() {
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    let node = joined(&world, "n2").await;
    let worker = ScriptedWorker::dial_as(&world, &node).await;
    let at = |time: SystemTime| u64::try_from(time.duration_since(UNIX_EPOCH).unwrap().as_millis()).ok();
    let usage = v1::NodeUsage {
        certificate_issued_at: at(node.issued_at()),
        certificate_expires_at: at(node.expires_at()),
        ..Default::default()
    };
    // A failure may pass.
    for (failures, expected) in [(3, &["node-ready", "renewal-failing"][..]), (1, &["node-ready"][..])] {
        let renewal = v1::BackgroundTask {
            name: "worker.certificate".to_owned(),
            last_error: "the disk is full".to_owned(),
            consecutive_failures: failures,
            ..Default::default()
        };
        let (usage, background_tasks) = (Some(usage.clone()), vec![renewal]);
        worker.send(Say::Heartbeat(v1::Heartbeat { usage, background_tasks, ..Default::default() })).await;
        eventually_async(WAIT_DEADLINE, "the renewal", || async {
            let answer = client.cluster().why("node", "n2").await.map_err(|error| error.to_string())?;
            let cause = answer.cause.unwrap();
            if codes(&cause) == expected { Ok(()) } else { Err(format!("{cause:?}")) }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_explained() {
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    let worker = ScriptedWorker::dial(&world).await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let day = Duration::from_secs(24 * 60 * 60);
    let millis = |at: Duration| Some(u64::try_from(at.as_millis()).unwrap());
    let usage = Some(v1::NodeUsage {
        certificate_issued_at: millis(now - day * 80),
        certificate_expires_at: millis(now + day * 10),
        ..Default::default()
    });
    worker.send(Say::Heartbeat(v1::Heartbeat { usage, ..Default::default() })).await;
    let cause = eventually_async(WAIT_DEADLINE, "the renewal that is overdue", || async {
        let answer = client.cluster().why("certificate", "n1").await.map_err(|error| error.to_string())?;
        let cause = answer.cause.unwrap();
        // The manager tells of its own, and the worker of that of the node.
        match codes(&cause) == ["certificate-valid", "renewal-overdue"] {
            true => Ok(cause),
            false => Err(format!("{cause:?}")),
        }
    })
    .await;
    assert_eq!(cause.severity(), v1::CauseSeverity::Problem);
    let node = client.cluster().why("node", "n1").await.unwrap().cause.unwrap();
    assert_eq!(codes(&node), ["node-ready", "renewal-overdue"]);
    let ann = world.user("ann", UserRole::Viewer).await;
    let user = client.cluster().why("certificate", "ann").await.unwrap();
    assert_eq!((user.kind.as_str(), user.name.as_str()), ("certificate", "ann"));
    assert_eq!(codes(&user.cause.unwrap()), ["keys-listed", "key-listed"]);
    let viewer = world.client_as(&ann).await;
    assert!(matches!(viewer.cluster().why("certificate", "ann").await, Err(Error::Denied { .. })));
    viewer.cluster().why("certificate", "node/n1").await.unwrap();
}
