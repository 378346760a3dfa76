//! Where a task's image comes from, and what that says of the task.

use tokio::time::Instant;
use warren_image::{Digest, Error, LayerProgress, Progress, Reference, RegistryError, Stage};
use warren_runtime::fake::Operation;
use warren_types::{ContentKind, Desired, ImageDigest, PullPolicy, TaskState};

use super::*;
use crate::handlers::contents::courier::{Delivered, FetchError, Need};
use crate::samples::{digest, tag, task};

fn content(digit: char) -> Digest {
    Digest::parse(digest(digit).as_str()).unwrap()
}

fn pinned(digit: char) -> Reference {
    tag().pinned(&content(digit))
}

/// A task whose image nobody has settled yet.
fn unsettled(number: u64) -> TaskAssignment {
    TaskAssignment { digest: None, ..task(number) }
}

fn settled(digit: char, number: u64) -> TaskAssignment {
    TaskAssignment { digest: Some(digest(digit)), ..task(number) }
}

fn pulling(policy: PullPolicy, mut task: TaskAssignment) -> TaskAssignment {
    task.spec.pull = policy;
    task
}

/// One of two layers is here.
fn halfway() -> Progress {
    let layer = |stage, received| LayerProgress { digest: content('0'), size: 40 << 20, received, stage };
    Progress {
        layers: vec![layer(Stage::Unpacked, 40 << 20), layer(Stage::Fetching, 7 << 20)],
        trouble: None,
    }
}

impl Machine {
    /// A machine without the image, whose runtime can run any that comes.
    fn without_image() -> Self {
        let machine = Self::new();
        machine.images.loses_all();
        for digit in ['b', 'c'] {
            machine.runtime.add_image(&pinned(digit));
        }
        machine
    }

    /// What the only container was made of.
    async fn made_of(&self) -> String {
        self.runtime.list().await.unwrap()[0].image.clone()
    }
}

impl Agent {
    /// What the task's image is here, as soon as that is said.
    async fn image(&self, number: u64) -> ImageDigest {
        self.until(number, |report| report.image.is_some()).await.image.unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_waits_until_it_is_settled_what_its_image_is() {
    let machine = Machine::new();
    let agent = machine.immortal(wishing(vec![unsettled(1)]));
    assert_eq!(agent.image(1).await, digest('a'));
    eventually("prepared", || async { machine.network.tasks().len() == 1 }).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    let waits = agent.reporter.newest(&task_id(1)).unwrap();
    assert_eq!((waits.state, waits.ready), (TaskState::Preparing, false));
    assert!(waits.reason.contains("waits until managers have noted"), "{}", waits.reason);
    assert_eq!(machine.runtime.calls(Operation::EnsureCreated), 0);
    agent.want(vec![task(1)]);
    let ready = agent.ready(1).await;
    assert_eq!((ready.image, ready.reason.as_str()), (None, ""));
    assert_eq!(machine.made_of().await, image().to_string());
    assert!(machine.images.pulled().is_empty());
    assert_eq!(machine.images.used(), [image().record()]);
}

#[tokio::test(start_paused = true)]
async fn managers_that_forgot_what_they_had_settled_hear_it_from_who_runs_it() {
    let machine = Machine::new();
    let first = machine.immortal(wishing(vec![settled('a', 1)]));
    first.ready(1).await;
    first.kill().await;
    // The next agent has got no image, and the tag means another one by now.
    machine.images.has(&tag(), content('b'));
    let next = machine.immortal(wishing(vec![unsettled(1)]));
    assert_eq!(next.image(1).await, digest('a'));
    next.want(vec![settled('a', 1)]);
    next.until(1, |report| report.ready && report.image.is_none()).await;
    assert_eq!(
        (machine.runtime.calls(Operation::EnsureCreated), machine.made_of().await),
        (1, pinned('a').to_string())
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_that_has_another_image_of_the_name_pulls_what_was_settled() {
    let machine = Machine::without_image();
    machine.images.has(&tag(), content('a'));
    machine.images.gives(&pinned('b'), content('b'));
    let agent = machine.immortal(wishing(vec![unsettled(1)]));
    assert_eq!(agent.image(1).await, digest('a'));
    agent.want(vec![settled('b', 1)]);
    agent.ready(1).await;
    assert_eq!(machine.made_of().await, pinned('b').to_string());
    assert_eq!(machine.images.pulled(), [pinned('b').record()]);
}

#[tokio::test(start_paused = true)]
async fn a_pull_says_how_far_it_is_and_goes_on_when_it_is_settled_what_comes() {
    let machine = Machine::without_image();
    machine.images.sends(&tag(), halfway());
    let ready = |task| TaskAssignment { desired: Desired::Ready, ..task };
    let agent = machine.immortal(wishing(vec![ready(unsettled(1))]));
    let words = "pulling: 1 of 2 layers, 47 of 80 MiB";
    let told = agent.until(1, |report| report.reason == words).await;
    assert_eq!((told.state, told.image), (TaskState::Preparing, None));
    // Longer than any other action may take.
    tokio::time::sleep(Duration::from_secs(3600)).await;
    agent.want(vec![ready(settled('b', 1))]);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((machine.images.pulled().len(), machine.images.waiting()), (1, 1), "it is the same pull");
    machine.images.gives(&tag(), content('b'));
    agent.until(1, |report| report.state == TaskState::Ready).await;
    assert_eq!(machine.runtime.calls(Operation::Start), 0);
    agent.want(vec![settled('b', 1)]);
    agent.ready(1).await;
    assert_eq!((machine.images.pulled().len(), machine.made_of().await), (1, pinned('b').to_string()));
}

#[tokio::test(start_paused = true)]
async fn progress_is_not_told_more_often_than_once_a_second() {
    let machine = Machine::without_image();
    let agent = machine.immortal(wishing(vec![unsettled(1)]));
    let (begun, mut told) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(10) {
        let mut progress = halfway();
        progress.layers[1].received += u64::try_from(begun.elapsed().as_millis()).unwrap() << 10;
        machine.images.sends(&tag(), progress);
        let batch = timeout(Duration::from_millis(50), agent.reporter.next_batch()).await;
        let Ok(batch) = batch else { continue };
        told += batch.reports.iter().filter(|report| report.reason.starts_with("pulling")).count();
        agent.reporter.stored(batch.number);
    }
    assert!((5..=10).contains(&told), "{told} reports in 10 s");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_killed_while_it_pulls_leaves_the_next_one_nothing_but_to_pull() {
    let machine = Machine::without_image();
    machine.images.sends(&pinned('b'), halfway());
    let first = machine.immortal(wishing(vec![settled('b', 1)]));
    first.until(1, |report| report.reason.starts_with("pulling")).await;
    first.kill().await;
    eventually("given up", || async { machine.images.waiting() == 0 }).await;
    assert_eq!(machine.left().await, Vec::<String>::new());
    let next = machine.immortal(cached(vec![settled('b', 1)]));
    next.until(1, |report| report.reason.starts_with("pulling")).await;
    machine.images.gives(&pinned('b'), content('b'));
    assert_eq!(next.ready(1).await.attempt, 1);
}

#[tokio::test(start_paused = true)]
async fn removing_a_task_while_it_pulls_gives_up_its_own_part_alone() {
    let machine = Machine::without_image();
    machine.images.sends(&pinned('b'), halfway());
    let both = || vec![settled('b', 1), settled('b', 2)];
    let agent = machine.immortal(wishing(both()));
    for number in [1, 2] {
        agent.until(number, |report| report.reason.starts_with("pulling")).await;
    }
    let removing = TaskAssignment { desired: Desired::Remove, ..settled('b', 1) };
    let asked = Instant::now();
    agent.want(vec![removing, settled('b', 2)]);
    let last = agent.removed(1).await;
    assert_eq!((last.state, machine.images.waiting()), (TaskState::Shutdown, 1));
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    machine.images.gives(&pinned('b'), content('b'));
    agent.ready(2).await;
}

#[tokio::test(start_paused = true)]
async fn what_may_pass_is_tried_again_and_what_does_not_is_rejected() {
    let machine = Machine::without_image();
    let full = Error::DiskFull { action: "store a layer".into(), reason: "no space left on device".into() };
    machine.images.fails(&pinned('b'), full);
    let agent = machine.immortal(wishing(vec![settled('b', 1)]));
    let wanted = "getting the image: there is no room on the disk to store a layer";
    let waiting = agent.until(1, |report| report.reason.starts_with(wanted)).await;
    assert_eq!(waiting.state, TaskState::Preparing);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let tries = machine.images.pulled().len();
    assert!((6..20).contains(&tries), "{tries} tries in a minute");
    machine.images.gives(&pinned('b'), content('b'));
    agent.ready(1).await;

    let other = Error::Platform { what: "demo".into(), found: "linux/s390x".into() };
    machine.images.fails(&pinned('c'), other);
    agent.want(vec![settled('b', 1), settled('c', 2)]);
    let rejected = agent.until(2, |report| report.state == TaskState::Rejected).await;
    assert!(rejected.reason.contains("only for linux/s390x"), "{}", rejected.reason);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let tries = machine.images.pulled().iter().filter(|name| **name == pinned('c').record()).count();
    assert_eq!(tries, 1);
}

#[tokio::test(start_paused = true)]
async fn the_pull_policy_says_when_the_registry_is_asked() {
    let machine = Machine::without_image();
    machine.images.has(&tag(), content('b'));
    machine.images.gives(&tag(), content('c'));
    machine.images.gives(&pinned('a'), content('a'));
    let wanted = vec![
        pulling(PullPolicy::Missing, unsettled(1)),
        pulling(PullPolicy::Always, unsettled(2)),
        pulling(PullPolicy::Never, settled('a', 4)),
    ];
    let agent = machine.immortal(wishing(wanted));
    assert_eq!(agent.image(1).await, digest('b'));
    assert_eq!(agent.image(2).await, digest('c'), "what the tag means now");
    assert_eq!(machine.images.pulled(), [tag().record()]);
    let rejected = agent.until(4, |report| report.state == TaskState::Rejected).await;
    assert!(rejected.reason.contains("is not on this node, and task.pull is never"), "{}", rejected.reason);
    // The tag's image is another one by now; what is settled and here is not asked for again.
    agent.want(vec![
        pulling(PullPolicy::Always, settled('c', 2)),
        pulling(PullPolicy::Never, settled('c', 3)),
    ]);
    agent.ready(2).await;
    agent.ready(3).await;
    assert_eq!(machine.images.pulled().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_image_that_went_meanwhile_is_got_again() {
    let machine = Machine::new();
    machine.runtime.remove_image(&image());
    machine.images.gives(&image(), content('a'));
    let agent = machine.immortal(wishing(vec![task(1)]));
    let missing = agent.until(1, |report| report.reason.contains("is not on this node")).await;
    assert_eq!(missing.state, TaskState::Preparing);
    machine.images.loses_all();
    eventually("pulled", || async { machine.images.pulled() == [image().record()] }).await;
    machine.runtime.add_image(&image());
    agent.ready(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_wants_to_know_who_asks_is_told_what_managers_know() {
    let machine = Machine::without_image();
    let bytes = zeroize::Zeroizing::new(b"ann\nhush".to_vec());
    let (kind, name) = (ContentKind::Credential, "docker.io".parse().unwrap());
    machine.courier.answers(Ok(vec![Delivered { kind, name, number: 1, bytes }]));
    machine.images.gives(&tag(), content('b'));
    let agent = machine.immortal(wishing(vec![unsettled(1)]));
    assert_eq!(agent.image(1).await, digest('b'));
    assert_eq!(machine.courier.asked(), [Need::Credential(task_id(1))]);
    assert_eq!(machine.images.users(), [Some("ann".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_refuses_while_no_manager_can_be_asked_is_asked_again() {
    let machine = Machine::without_image();
    let (registry, image, said) = ("docker.io".to_owned(), "demo:1".to_owned(), "no".to_owned());
    machine.images.fails(&tag(), RegistryError::NeedsCredentials { registry, image, said }.into());
    machine.courier.answers(Err(FetchError::Away("there is no session with one".into())));
    let agent = machine.immortal(wishing(vec![unsettled(1)]));
    let waits = agent.until(1, |report| report.reason.contains("no manager could be asked")).await;
    assert_eq!(waits.state, TaskState::Preparing);
    // Managers know none: now it is final.
    machine.courier.answers(Ok(Vec::new()));
    let rejected = agent.until(1, |report| report.state == TaskState::Rejected).await;
    assert!(rejected.reason.contains("needs credentials"), "{}", rejected.reason);
}
