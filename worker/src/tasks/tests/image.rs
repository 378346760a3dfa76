//! The source of a task's image, and its effect on the task.

use tokio::time::Instant;
use warren_image::{Digest, Error, ImagePullProgress, LayerProgress, LayerStage, Reference, RegistryError};
use warren_runtime::fake::RuntimeOperation;
use warren_types::{DesiredTaskState, ImageDigest, PullPolicy, TaskState};

use super::*;
use crate::fixtures::{digest, tag, task};
use crate::handlers::images::registry_login;
use crate::handlers::secret_fetcher::{FetchPurpose, ImagePuller, SecretFetchError};

fn image_digest(digit: char) -> Digest {
    Digest::parse(digest(digit).as_str()).unwrap()
}

fn pinned(digit: char) -> Reference {
    tag().with_digest(&image_digest(digit))
}

/// A task whose image is not resolved yet.
fn unresolved(number: u64) -> TaskAssignment {
    TaskAssignment { digest: None, ..task(number) }
}

fn resolved(digit: char, number: u64) -> TaskAssignment {
    TaskAssignment { digest: Some(digest(digit)), ..task(number) }
}

fn pulling(policy: PullPolicy, mut task: TaskAssignment) -> TaskAssignment {
    task.spec.pull = policy;
    task
}

/// One of two layers is there.
fn halfway() -> ImagePullProgress {
    let layer =
        |stage, received| LayerProgress { digest: image_digest('0'), size: 40 << 20, received, stage };
    ImagePullProgress {
        layers: vec![layer(LayerStage::Unpacked, 40 << 20), layer(LayerStage::Fetching, 7 << 20)],
        retry_reason: None,
    }
}

impl Machine {
    /// A machine without the image, whose runtime can run any image.
    fn without_image() -> Self {
        let machine = Self::new();
        machine.images.remove_all();
        for digit in ['b', 'c'] {
            machine.runtime.add_image(&pinned(digit));
        }
        machine
    }

    /// The image of the only container.
    async fn container_image(&self) -> String {
        self.runtime.list().await.unwrap()[0].image.clone()
    }
}

impl Agent {
    /// The digest of the task's image on this node, as soon as it is reported.
    async fn image(&self, number: u64) -> ImageDigest {
        self.wait_for_report(number, |report| report.image.is_some()).await.image.unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn task_waits_until_image_is_resolved() {
    let machine = Machine::new();
    let agent = machine.agent_without_crash(assigned(vec![unresolved(1)]));
    assert_eq!(agent.image(1).await, digest('a'));
    eventually("prepared", || async { machine.network.tasks().len() == 1 }).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    let waits = agent.reporter.latest(&task_id(1)).unwrap();
    assert_eq!((waits.state, waits.ready), (TaskState::Preparing, false));
    assert!(waits.reason.contains("waiting for the manager to pin the image digest"), "{}", waits.reason);
    assert_eq!(machine.runtime.call_count(RuntimeOperation::EnsureCreated), 0);
    agent.assign(vec![task(1)]);
    let ready = agent.wait_ready(1).await;
    assert_eq!((ready.image, ready.reason.as_str()), (None, ""));
    assert_eq!(machine.container_image().await, image().to_string());
    assert!(machine.images.pulled().is_empty());
    assert_eq!(machine.images.used(), [image().record_name()]);
}

#[tokio::test(start_paused = true)]
async fn running_task_reports_its_digest_to_manager_without_it() {
    let machine = Machine::new();
    let first = machine.agent_without_crash(assigned(vec![resolved('a', 1)]));
    first.wait_ready(1).await;
    first.kill().await;
    // The next agent has no image, and the tag has moved meanwhile.
    machine.images.add(&tag(), image_digest('b'));
    let next = machine.agent_without_crash(assigned(vec![unresolved(1)]));
    assert_eq!(next.image(1).await, digest('a'));
    next.assign(vec![resolved('a', 1)]);
    next.wait_for_report(1, |report| report.ready && report.image.is_none()).await;
    assert_eq!(
        (machine.runtime.call_count(RuntimeOperation::EnsureCreated), machine.container_image().await),
        (1, pinned('a').to_string())
    );
}

#[tokio::test(start_paused = true)]
async fn cache_from_before_the_digest_restarts_the_container() {
    let machine = Machine::new();
    let first = machine.agent_without_crash(assigned(vec![resolved('a', 1)]));
    first.wait_ready(1).await;
    first.kill().await;
    // The tag has moved meanwhile.
    machine.images.add(&tag(), image_digest('b'));
    let next = machine.agent_without_crash(cached(vec![unresolved(1)]));
    next.wait_for_report(1, |report| report.state == TaskState::Running).await;
    assert!(machine.runtime.end_process(&container(1), 1, false));
    next.wait_for_report(1, |report| report.attempt == 2 && report.ready).await;
    assert_eq!(machine.container_image().await, pinned('a').to_string());
}

#[tokio::test(start_paused = true)]
async fn node_with_other_image_of_name_pulls_resolved_digest() {
    let machine = Machine::without_image();
    machine.images.add(&tag(), image_digest('a'));
    machine.images.serve(&pinned('b'), image_digest('b'));
    let agent = machine.agent_without_crash(assigned(vec![unresolved(1)]));
    assert_eq!(agent.image(1).await, digest('a'));
    agent.assign(vec![resolved('b', 1)]);
    agent.wait_ready(1).await;
    assert_eq!(machine.container_image().await, pinned('b').to_string());
    assert_eq!(machine.images.pulled(), [pinned('b').record_name()]);
}

/// Whether a task that lacks an image names the node that has it.
fn has_hint(report: &warren_types::TaskReport) -> bool {
    report.reason.contains("node-a has it: `warren image copy") && report.reason.contains("--to node-b`")
}

#[tokio::test(start_paused = true)]
async fn image_that_arrives_ends_the_pull_of_a_waiting_task() {
    let mut machine = Machine::without_image();
    machine.image_holders = ImageHolders { nodes: vec!["node-a".into()], this_node: "node-b".into() };
    let retry_reason = Some("registry docker.io cannot be reached".to_owned());
    machine.images.stall_at(&tag(), ImagePullProgress { retry_reason, ..ImagePullProgress::default() });
    let agent = machine.agent_without_crash(assigned(vec![unresolved(1)]));
    agent.wait_for_report(1, has_hint).await;
    // Another image changes nothing.
    machine.image_arrivals.notify();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(machine.images.waiter_count(), 1);
    machine.images.add(&tag(), image_digest('b'));
    let arrived = tokio::time::Instant::now();
    machine.image_arrivals.notify();
    assert_eq!(agent.image(1).await, digest('b'));
    assert!(arrived.elapsed() < Duration::from_secs(1), "{:?}", arrived.elapsed());
    assert_eq!(machine.images.waiter_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn image_that_arrives_ends_the_delay_after_a_failed_pull() {
    let mut machine = Machine::without_image();
    machine.image_holders = ImageHolders { nodes: vec!["node-a".into()], this_node: "node-b".into() };
    machine.images.fail(&tag(), unavailable());
    let agent = machine.agent_without_crash(assigned(vec![unresolved(1)]));
    agent.wait_for_report(1, has_hint).await;
    // The delay doubles.
    tokio::time::sleep(Duration::from_secs(120)).await;
    machine.images.add(&tag(), image_digest('b'));
    let arrived = tokio::time::Instant::now();
    machine.image_arrivals.notify();
    assert_eq!(agent.image(1).await, digest('b'));
    assert!(arrived.elapsed() < Duration::from_secs(1), "{:?}", arrived.elapsed());
}

fn unavailable() -> warren_image::Error {
    warren_image::Error::Unavailable { action: "pull".into(), reason: "no connection".into() }
}

#[tokio::test(start_paused = true)]
async fn pull_reports_progress_and_continues_after_resolution() {
    let machine = Machine::without_image();
    machine.images.stall_at(&tag(), halfway());
    let ready = |task| TaskAssignment { desired: DesiredTaskState::Ready, ..task };
    let agent = machine.agent_without_crash(assigned(vec![ready(unresolved(1))]));
    let words = "pulling image: 1 of 2 layers, 47 of 80 MiB";
    let reported = agent.wait_for_report(1, |report| report.reason == words).await;
    assert_eq!((reported.state, reported.image), (TaskState::Preparing, None));
    // Longer than the timeout of other actions.
    tokio::time::sleep(Duration::from_secs(3600)).await;
    agent.assign(vec![ready(resolved('b', 1))]);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((machine.images.pulled().len(), machine.images.waiter_count()), (1, 1), "it is the same pull");
    machine.images.serve(&tag(), image_digest('b'));
    agent.wait_for_report(1, |report| report.state == TaskState::Ready).await;
    assert_eq!(machine.runtime.call_count(RuntimeOperation::Start), 0);
    agent.assign(vec![resolved('b', 1)]);
    agent.wait_ready(1).await;
    assert_eq!(
        (machine.images.pulled().len(), machine.container_image().await),
        (1, pinned('b').to_string())
    );
}

#[tokio::test(start_paused = true)]
async fn progress_is_reported_at_most_once_per_second() {
    let machine = Machine::without_image();
    let agent = machine.agent_without_crash(assigned(vec![unresolved(1)]));
    let (begun, mut reported) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(10) {
        let mut progress = halfway();
        progress.layers[1].received += u64::try_from(begun.elapsed().as_millis()).unwrap() << 10;
        machine.images.stall_at(&tag(), progress);
        let batch = timeout(Duration::from_millis(50), agent.reporter.next_batch()).await;
        let Ok(batch) = batch else { continue };
        reported += batch.reports.iter().filter(|report| report.reason.starts_with("pulling")).count();
        agent.reporter.acknowledge(batch.number);
    }
    assert!((5..=10).contains(&reported), "{reported} reports in 10 s");
}

#[tokio::test(start_paused = true)]
async fn killed_agent_leaves_pull_to_next_one() {
    let machine = Machine::without_image();
    machine.images.stall_at(&pinned('b'), halfway());
    let first = machine.agent_without_crash(assigned(vec![resolved('b', 1)]));
    first.wait_for_report(1, |report| report.reason.starts_with("pulling")).await;
    first.kill().await;
    eventually("given up", || async { machine.images.waiter_count() == 0 }).await;
    assert_eq!(machine.leftovers().await, Vec::<String>::new());
    let next = machine.agent_without_crash(cached(vec![resolved('b', 1)]));
    next.wait_for_report(1, |report| report.reason.starts_with("pulling")).await;
    machine.images.serve(&pinned('b'), image_digest('b'));
    assert_eq!(next.wait_ready(1).await.attempt, 1);
}

#[tokio::test(start_paused = true)]
async fn removed_task_cancels_only_its_own_pull() {
    let machine = Machine::without_image();
    machine.images.stall_at(&pinned('b'), halfway());
    let both = || vec![resolved('b', 1), resolved('b', 2)];
    let agent = machine.agent_without_crash(assigned(both()));
    for number in [1, 2] {
        agent.wait_for_report(number, |report| report.reason.starts_with("pulling")).await;
    }
    let removing = TaskAssignment { desired: DesiredTaskState::Remove, ..resolved('b', 1) };
    let asked = Instant::now();
    agent.assign(vec![removing, resolved('b', 2)]);
    let last = agent.wait_removed(1).await;
    assert_eq!((last.state, machine.images.waiter_count()), (TaskState::Shutdown, 1));
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    machine.images.serve(&pinned('b'), image_digest('b'));
    agent.wait_ready(2).await;
}

#[tokio::test(start_paused = true)]
async fn transient_pull_error_is_retried_and_permanent_is_rejected() {
    let machine = Machine::without_image();
    let full = Error::DiskFull { action: "store a layer".into(), reason: "no space left on device".into() };
    machine.images.fail(&pinned('b'), full);
    let agent = machine.agent_without_crash(assigned(vec![resolved('b', 1)]));
    let expected = "pulling image: no space left to store a layer";
    let waiting = agent.wait_for_report(1, |report| report.reason.starts_with(expected)).await;
    assert_eq!(waiting.state, TaskState::Preparing);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let tries = machine.images.pulled().len();
    assert!((6..20).contains(&tries), "{tries} tries in a minute");
    machine.images.serve(&pinned('b'), image_digest('b'));
    agent.wait_ready(1).await;

    let other = Error::NoMatchingPlatform { what: "demo".into(), found: "linux/s390x".into() };
    machine.images.fail(&pinned('c'), other);
    agent.assign(vec![resolved('b', 1), resolved('c', 2)]);
    let rejected = agent.wait_for_report(2, |report| report.state == TaskState::Rejected).await;
    assert!(rejected.reason.contains("only for linux/s390x"), "{}", rejected.reason);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let tries = machine.images.pulled().iter().filter(|name| **name == pinned('c').record_name()).count();
    assert_eq!(tries, 1);
}

#[tokio::test(start_paused = true)]
async fn pull_policy_is_honoured() {
    let machine = Machine::without_image();
    machine.images.add(&tag(), image_digest('b'));
    machine.images.serve(&tag(), image_digest('c'));
    machine.images.serve(&pinned('a'), image_digest('a'));
    let expected = vec![
        pulling(PullPolicy::Missing, unresolved(1)),
        pulling(PullPolicy::Always, unresolved(2)),
        pulling(PullPolicy::Never, resolved('a', 4)),
    ];
    let agent = machine.agent_without_crash(assigned(expected));
    assert_eq!(agent.image(1).await, digest('b'));
    assert_eq!(agent.image(2).await, digest('c'), "what the tag means now");
    assert_eq!(machine.images.pulled(), [tag().record_name()]);
    let rejected = agent.wait_for_report(4, |report| report.state == TaskState::Rejected).await;
    assert!(rejected.reason.contains("is not on this node, and task.pull is never"), "{}", rejected.reason);
    // The tag has moved; a resolved image on the node is not pulled again.
    agent.assign(vec![
        pulling(PullPolicy::Always, resolved('c', 2)),
        pulling(PullPolicy::Never, resolved('c', 3)),
    ]);
    agent.wait_ready(2).await;
    agent.wait_ready(3).await;
    assert_eq!(machine.images.pulled().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn vanished_image_is_pulled_again() {
    let machine = Machine::new();
    machine.runtime.remove_image(&image());
    machine.images.serve(&image(), image_digest('a'));
    let agent = machine.agent_without_crash(assigned(vec![task(1)]));
    let missing = agent.wait_for_report(1, |report| report.reason.contains("is not on this node")).await;
    assert_eq!(missing.state, TaskState::Preparing);
    machine.images.remove_all();
    eventually("pulled", || async { machine.images.pulled() == [image().record_name()] }).await;
    machine.runtime.add_image(&image());
    agent.wait_ready(1).await;
}

#[tokio::test(start_paused = true)]
async fn pull_uses_credential_from_manager() {
    let machine = Machine::without_image();
    machine.secret_fetcher.set_answer(Ok(vec![registry_login::tests::login("docker.io", "hush")]));
    machine.images.serve(&tag(), image_digest('b'));
    let agent = machine.agent_without_crash(assigned(vec![unresolved(1)]));
    assert_eq!(agent.image(1).await, digest('b'));
    let asked = FetchPurpose::RegistryAccess { puller: ImagePuller::Task(task_id(1)), is_renewal: false };
    assert_eq!(machine.secret_fetcher.requests(), [asked]);
    assert_eq!(machine.images.registry_users(), [Some("ann".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn refused_access_is_the_reason_of_the_task() {
    let machine = Machine::without_image();
    machine.images.serve(&tag(), image_digest('b'));
    let refuse = |is_transient: bool| {
        let reason = "managers get no token for registry docker.io".to_owned();
        machine.secret_fetcher.set_answer(Err(SecretFetchError::NoRegistryAccess { reason, is_transient }));
    };
    refuse(true);
    let agent = machine.agent_without_crash(assigned(vec![unresolved(1)]));
    let words = "pulling image: managers get no token for registry docker.io";
    let waits = agent.wait_for_report(1, |report| report.reason.starts_with(words)).await;
    assert_eq!(waits.state, TaskState::Preparing);
    refuse(false);
    let rejected = agent.wait_for_report(1, |report| report.state == TaskState::Rejected).await;
    assert!(rejected.reason.starts_with(words), "{}", rejected.reason);
    assert!(machine.images.pulled().is_empty());
}

#[tokio::test(start_paused = true)]
async fn refused_pull_without_manager_is_retried() {
    let machine = Machine::without_image();
    let (registry, image, message) = ("docker.io".to_owned(), "demo:1".to_owned(), "no".to_owned());
    machine.images.fail(&tag(), RegistryError::NeedsCredentials { registry, image, message }.into());
    machine.secret_fetcher.set_answer(Err(SecretFetchError::NoManager("not connected to a manager".into())));
    let agent = machine.agent_without_crash(assigned(vec![unresolved(1)]));
    let waits = agent.wait_for_report(1, |report| report.reason.contains("could not be fetched")).await;
    assert_eq!(waits.state, TaskState::Preparing);
    // Managers have none: now it is final.
    machine.secret_fetcher.set_answer(Ok(Vec::new()));
    let rejected = agent.wait_for_report(1, |report| report.state == TaskState::Rejected).await;
    assert!(rejected.reason.contains("needs credentials"), "{}", rejected.reason);
}
