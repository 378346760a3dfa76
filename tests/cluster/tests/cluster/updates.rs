//! Rolling updates and rollbacks of services with running tasks.

use tonic::Code;
use warren_client::{Client, Error, TaskFilter};
use warren_proto::{Problem, v1};
use warren_testkit::wait::eventually_async;
use warren_types::{FailureAction, ServiceSpec};

use crate::fixture::{ManagerFixture, WAIT_DEADLINE, new_id, rollout_completed, spec};
use crate::worker::{DIGEST, ScriptedWorker, report};

pub fn problem(error: Error) -> Problem {
    match error {
        Error::Refused { problem } => problem,
        other => panic!("not refused: {other}"),
    }
}

fn of_image(replicas: u32, image: &str) -> ServiceSpec {
    let mut spec = spec("web", replicas);
    spec.task.image = image.parse().unwrap();
    spec
}

async fn service(client: &Client) -> v1::Service {
    client.services().get("web").await.unwrap()
}

/// The worker executes its assignments until `reached`; the service never has fewer ready tasks than `least`.
async fn obeyed(
    client: &Client,
    worker: &mut ScriptedWorker,
    what: &str,
    least: u32,
    reached: impl Fn(&v1::Service) -> bool,
) -> v1::Service {
    let done = async {
        loop {
            worker.apply_assignment().await;
            let service = service(client).await;
            assert!(service.running >= least, "{what}: {} of {least} run", service.running);
            if reached(&service) {
                return service;
            }
        }
    };
    tokio::time::timeout(WAIT_DEADLINE, done).await.unwrap_or_else(|_| panic!("never came to be: {what}"))
}

fn updated(service: &v1::Service) -> bool {
    let rollout = service.rollout.clone().unwrap();
    service.running == rollout.total && rollout.updated == rollout.total
}

/// Images of the desired tasks, by slot.
async fn images(client: &Client) -> Vec<String> {
    let filter = TaskFilter { service: "web".into(), current: true, ..TaskFilter::default() };
    let mut tasks = client.tasks().list(filter).await.unwrap();
    tasks.retain(|task| task.desired() <= v1::DesiredTaskState::Running);
    tasks.sort_by_key(|task| task.slot);
    tasks.into_iter().map(|task| task.spec.unwrap().image).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_update_and_rollback() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let mut worker = ScriptedWorker::dial(&world).await;
    let services = client.services();
    services.create(new_id(), &of_image(2, "web:1")).await.unwrap();
    let first = obeyed(&client, &mut worker, "both run", 0, |service| service.running == 2).await;
    assert_eq!((first.desired_tasks, first.digest.as_str()), (2, DIGEST));

    let made = services.update("web", &of_image(2, "web:2"), Some(first.version), false).await.unwrap();
    assert_eq!((made.revision, made.digest.as_str()), (2, ""));
    assert_eq!(made.rollout.as_ref().unwrap().updated, 0);
    let again = services.update("web", &of_image(2, "web:2"), Some(first.version), false).await.unwrap();
    assert_eq!(again.version, made.version, "a retry");
    let moved = services.update("web", &of_image(2, "web:3"), Some(first.version), false).await.unwrap_err();
    assert_eq!(problem(moved).reason, "VERSION_CONFLICT");
    let is_updated = |service: &v1::Service| service.revision == 2 && updated(service);
    obeyed(&client, &mut worker, "both are replaced, one after the other", 2, is_updated).await;
    assert_eq!(images(&client).await, ["web:2", "web:2"]);
    let history = services.history("web").await.unwrap();
    // The last task of the old revision may still be stopping.
    let received: Vec<_> = history.iter().map(|r| (r.number, r.current, r.digest.as_str())).collect();
    assert_eq!((received, history[0].running), (vec![(2, true, DIGEST), (1, false, DIGEST)], 2));

    let back = services.rollback("web", None, None).await.unwrap();
    assert_eq!((back.revision, back.digest.as_str()), (3, DIGEST), "its image is known already");
    let is_back = |service: &v1::Service| service.revision == 3 && updated(service);
    obeyed(&client, &mut worker, "what was before runs again", 2, is_back).await;
    assert_eq!(images(&client).await, ["web:1", "web:1"]);
    assert_eq!(
        problem(services.rollback("web", Some(77), None).await.unwrap_err()).reason,
        "REVISION_NOT_FOUND"
    );

    let forced = services.update("web", &of_image(2, "web:1"), None, true).await.unwrap();
    assert_eq!(forced.revision, 4, "the same again is a revision when it is forced");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_update_is_rolled_back_with_reason() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let mut worker = ScriptedWorker::dial(&world).await;
    let services = client.services();
    services.create(new_id(), &of_image(1, "web:1")).await.unwrap();
    obeyed(&client, &mut worker, "it runs", 0, |service| service.running == 1).await;
    services.update("web", &of_image(1, "web:2"), None, false).await.unwrap();
    fail_standby(&mut worker, 2).await;
    let rolled_back = rollout_in_state(&client, v1::RolloutState::RolledBack).await;
    let why = &rolled_back.rollback_reason;
    assert!(
        why.contains("there is no program /serve") && why.contains("runs revision 1 again, as 3"),
        "{why}"
    );
    assert_eq!((rolled_back.failed_revision, rolled_back.restored_revision), (2, 1));
    let now = service(&client).await;
    assert_eq!((now.revision, now.running), (3, 1), "the old one serves on");

    let mut pausing = of_image(1, "web:4");
    pausing.update.on_failure = Some(FailureAction::Pause);
    services.update("web", &pausing, None, false).await.unwrap();
    fail_standby(&mut worker, 4).await;
    let paused = rollout_in_state(&client, v1::RolloutState::Paused).await;
    let why = paused.stop_reason;
    assert!(
        why.contains("there is no program /serve") && why.contains("warren service rollback web"),
        "{why}"
    );
    let resumed = services.resume("web", None).await.unwrap();
    assert_eq!(resumed.rollout.unwrap().state(), v1::RolloutState::Updating);
    assert_eq!(service(&client).await.running, 1);
}

/// The worker cannot run the task of the revision that it prepares beside the one that runs.
async fn fail_standby(worker: &mut ScriptedWorker, revision: u64) {
    let prepared = |task: &&v1::TaskAssignment| {
        task.revision == revision && task.desired() == v1::DesiredTaskState::Ready
    };
    worker.has("the task of the update", |tasks| tasks.values().any(|task| prepared(&task))).await;
    let newer = worker.tasks.values().find(prepared).unwrap().id.clone();
    let reason = "there is no program /serve".to_owned();
    let failed = v1::TaskReport { reason, ready: false, ..report(&newer, v1::TaskState::Rejected) };
    worker.report(vec![failed]).await;
}

async fn rollout_in_state(client: &Client, state: v1::RolloutState) -> v1::Rollout {
    eventually_async(WAIT_DEADLINE, &format!("the rollout to be {state:?}"), || async {
        let service = service(client).await;
        let rollout = service.rollout.clone().unwrap();
        if rollout.state() == state { Ok(rollout) } else { Err(format!("{service:?}")) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_update_is_refused_with_field() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let services = client.services();
    services.create(new_id(), &of_image(1, "web:1")).await.unwrap();
    let fields = |problem: &Problem| -> Vec<String> {
        problem.violations.0.iter().map(|violation| violation.path.clone()).collect()
    };
    let renamed = problem(services.update("web", &spec("shop", 1), None, false).await.unwrap_err());
    assert_eq!((renamed.code, fields(&renamed)), (Code::InvalidArgument, vec!["spec.name".to_owned()]));
    let mut small = of_image(1, "web:1");
    small.task.limits.memory = Some(warren_types::Bytes(1));
    let small = problem(services.update("web", &small, None, false).await.unwrap_err());
    assert_eq!(fields(&small), ["spec.task.limits.memory"]);
    let nothing = problem(services.rollback("web", None, None).await.unwrap_err());
    assert_eq!(nothing.reason, "NO_PREVIOUS_REVISION");
    assert!(services.history("shop").await.unwrap_err().is_not_found());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_reported_digest_applies_to_all_tasks() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let mut worker = ScriptedWorker::dial(&world).await;
    client.services().create(new_id(), &of_image(2, "web:1")).await.unwrap();
    worker.has("two tasks", |tasks| tasks.len() == 2).await;
    assert!(worker.tasks.values().all(|task| task.digest.is_empty()));
    let first = worker.tasks.keys().next().unwrap().clone();
    let image = |digest: &str| v1::TaskReport {
        image: digest.to_owned(),
        ..report(&first, v1::TaskState::Preparing)
    };
    worker.report(vec![image(DIGEST)]).await;
    worker.has("the digest", |tasks| tasks.values().all(|task| task.digest == DIGEST)).await;
    worker.report(vec![image(&DIGEST.replace("00", "11"))]).await;
    worker.sync().await;
    assert!(worker.tasks.values().all(|task| task.digest == DIGEST), "the first report of the digest stays");
    assert_eq!(client.tasks().get("web.2").await.unwrap().digest, DIGEST);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_a_task_is_started_again_is_shown_and_not_written() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let mut worker = ScriptedWorker::dial(&world).await;
    client.services().create(new_id(), &of_image(1, "web:1")).await.unwrap();
    obeyed(&client, &mut worker, "it runs", 0, |service| service.running == 1).await;
    rollout_completed(&client, "web").await;
    let id = worker.tasks.keys().next().unwrap().clone();
    let waits = |next_attempt, attempt| v1::TaskReport {
        attempt,
        next_attempt: Some(next_attempt),
        ..report(&id, v1::TaskState::Starting)
    };
    // Its end is stored.
    worker.report(vec![waits(5_000, 2)]).await;
    let writes = client.cluster().info().await.unwrap().log_writes;
    worker.report(vec![waits(9_000, 2)]).await;
    assert_eq!(client.tasks().get("web.1").await.unwrap().next_attempt, Some(9_000));
    assert_eq!(client.cluster().info().await.unwrap().log_writes, writes);
}
