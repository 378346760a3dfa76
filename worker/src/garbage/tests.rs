use warren_control::{Shutdown, SystemClock};
use warren_image::Digest;
use warren_runtime::fake::Fake;
use warren_runtime::{ContainerId, ContainerSpec, Owner};
use warren_types::Bytes;

use super::*;
use crate::handlers::images::fake::FakeImages;
use crate::samples::{image, images, tag, task, task_id};

const DAY: u64 = 86_400_000;

struct Node {
    shelf: Arc<Shelf>,
    images: FakeImages,
    wishes: watch::Sender<Wishes>,
    now: u64,
}

fn node() -> Node {
    let (images, clock) = (images(), Arc::new(SystemClock::new()));
    let tasks = [(task_id(1), Arc::new(task(1)))].into();
    let wishes = watch::Sender::new(Wishes { tasks, confirmed: true, ..Wishes::default() });
    let now = clock.unix_millis();
    let (source, runtime) = (Arc::new(images.clone()), Arc::new(Fake::new()));
    let shelf = Arc::new(Shelf { source, runtime, wishes: wishes.subscribe(), clock });
    Node { shelf, images, wishes, now }
}

impl Node {
    /// An image that was used so long ago.
    async fn has(&self, name: &str, days: u64) {
        let reference = Reference::parse(name).unwrap();
        self.images.has(&reference, Digest::of(name.as_bytes()));
        self.images.touch(&reference, Timestamp(self.now - days * DAY)).await.unwrap();
    }

    async fn names(&self) -> Vec<String> {
        let listed = self.shelf.source.list().await.unwrap();
        listed.into_iter().map(|image| image.reference.replace("docker.io/library/", "")).collect()
    }
}

fn disk(percent: u64) -> Option<Disk> {
    Some(Disk { used: Bytes(percent << 20), total: Bytes(100 << 20) })
}

#[tokio::test]
async fn images_go_that_nobody_has_for_long() {
    let node = node();
    node.has("old:1", 8).await;
    node.has("recent:1", 6).await;
    for _ in 0..2 {
        node.shelf.collect(disk(50)).await.unwrap();
        assert_eq!(node.names().await, ["demo:1", "recent:1"]);
    }
    assert!(node.images.used().contains(&tag().record()), "it is in use, and that is noted");
}

#[tokio::test]
async fn images_go_when_the_disk_is_nearly_full_as_far_as_needed() {
    let node = node();
    for days in 1..=6 {
        node.has(&format!("old:{days}"), days).await;
    }
    node.has("new:1", 0).await;
    node.shelf.collect(disk(84)).await.unwrap();
    assert_eq!(node.names().await.len(), 8);
    // Each is a percent of this disk: those go that were used least recently, down to below the low mark.
    node.shelf.collect(disk(85)).await.unwrap();
    assert_eq!(node.names().await, ["demo:1", "new:1"]);
    node.shelf.collect(disk(99)).await.unwrap();
    assert_eq!(node.names().await, ["demo:1", "new:1"], "one is in use, the other came just now");
}

#[tokio::test]
async fn nothing_goes_before_a_manager_was_heard_or_while_containers_are_not_known() {
    let node = node();
    node.has("old:1", 90).await;
    node.wishes.send_modify(|wishes| wishes.confirmed = false);
    node.shelf.collect(disk(99)).await.unwrap();
    assert_eq!(node.names().await, ["demo:1", "old:1"]);
}

#[tokio::test]
async fn containers_keep_their_images_also_when_nobody_wants_them() {
    let node = node();
    let runtime = Fake::new();
    runtime.add_image(&image());
    let owner = Owner { task: "left".into(), attempt: 1, spec_hash: "hash".into() };
    let spec = ContainerSpec::new(ContainerId::parse("left").unwrap(), owner, image());
    runtime.ensure_created(&spec).await.unwrap();
    node.wishes.send_modify(|wishes| wishes.tasks.clear());
    let shelf = Shelf {
        source: Arc::clone(&node.shelf.source),
        runtime: Arc::new(runtime.clone()),
        wishes: node.wishes.subscribe(),
        clock: Arc::clone(&node.shelf.clock),
    };
    shelf.collect(disk(99)).await.unwrap();
    assert_eq!(node.names().await, ["demo:1"]);
    runtime.remove(&spec.id).await.unwrap();
    let policy = PrunePolicy { max_age: Some(Duration::ZERO), grace: Duration::ZERO, ..POLICY };
    let none = warren_image::Disk { used: 0, total: 0 };
    let pruned = shelf.prune(&policy, none).await.unwrap();
    assert_eq!((pruned.gone.len(), node.names().await.len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_fills_has_images_looked_through_soon_but_not_all_the_time() {
    let shutdown = Shutdown::new();
    let loops = Loops::new(shutdown.clone(), Arc::new(SystemClock::new()), Arc::new(|| 0));
    let meter = Arc::new(Meter::new("/".into()));
    let pressure = start(node().shelf, meter, &loops, shutdown.token());
    let runs = || loops.snapshot().iter().map(|status| status.runs).sum::<u64>();
    let mut seen = Vec::new();
    for percent in [84, 85, 90, 90] {
        pressure.note(disk(percent));
        tokio::time::sleep(Duration::from_secs(1)).await;
        seen.push(runs());
    }
    assert_eq!(seen, [1, 2, 2, 2]);
    tokio::time::sleep(PRESSED_AGAIN).await;
    pressure.note(None);
    pressure.note(disk(90));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((runs(), loops.snapshot()[0].name), (3, "worker.images"));
    shutdown.stop(Duration::from_secs(5)).await.unwrap();
}
