use warren_control::{Shutdown, SystemClock};
use warren_image::Digest;
use warren_runtime::fake::FakeRuntime;
use warren_runtime::{ContainerId, ContainerOwner, ContainerSpec};
use warren_types::Bytes;

use super::*;
use crate::fixtures::{image, images, tag, task, task_id};
use crate::handlers::images::fake::FakeImages;

const DAY: u64 = 86_400_000;

struct Node {
    image_gc: Arc<ImageGc>,
    images: FakeImages,
    desired_state: watch::Sender<DesiredState>,
    now: u64,
}

fn node() -> Node {
    let (images, clock) = (images(), Arc::new(SystemClock::new()));
    let tasks = [(task_id(1), Arc::new(task(1)))].into();
    let desired_state =
        watch::Sender::new(DesiredState { tasks, is_confirmed: true, ..DesiredState::default() });
    let now = clock.unix_millis();
    let (source, runtime) = (Arc::new(images.clone()), Arc::new(FakeRuntime::new()));
    let image_gc = Arc::new(ImageGc { source, runtime, desired_state: desired_state.subscribe(), clock });
    Node { image_gc, images, desired_state, now }
}

impl Node {
    /// An image that was used so long ago.
    async fn add_image(&self, name: &str, days: u64) {
        let reference = Reference::parse(name).unwrap();
        self.images.add(&reference, Digest::of(name.as_bytes()));
        self.images.mark_used(&reference, Timestamp(self.now - days * DAY)).await.unwrap();
    }

    async fn names(&self) -> Vec<String> {
        let listed = self.image_gc.source.list().await.unwrap();
        listed.into_iter().map(|image| image.reference.replace("docker.io/library/", "")).collect()
    }
}

fn disk(percent: u64) -> Option<DiskUsage> {
    Some(DiskUsage { used: Bytes(percent << 20), total: Bytes(100 << 20) })
}

#[tokio::test]
async fn image_unused_for_max_age_is_removed() {
    let node = node();
    node.add_image("old:1", 8).await;
    node.add_image("recent:1", 6).await;
    for _ in 0..2 {
        node.image_gc.collect(disk(50)).await.unwrap();
        assert_eq!(node.names().await, ["demo:1", "recent:1"]);
    }
    assert!(node.images.used().contains(&tag().record_name()), "it is in use, and that is noted");
}

#[tokio::test]
async fn full_disk_removes_only_as_many_images_as_needed() {
    let node = node();
    for days in 1..=6 {
        node.add_image(&format!("old:{days}"), days).await;
    }
    node.add_image("new:1", 0).await;
    node.image_gc.collect(disk(84)).await.unwrap();
    assert_eq!(node.names().await.len(), 8);
    // Each is a percent of this disk: the least recently used are removed, down to below the low mark.
    node.image_gc.collect(disk(85)).await.unwrap();
    assert_eq!(node.names().await, ["demo:1", "new:1"]);
    node.image_gc.collect(disk(99)).await.unwrap();
    assert_eq!(node.names().await, ["demo:1", "new:1"], "one is in use, the other came just now");
}

#[tokio::test]
async fn nothing_is_removed_before_desired_state_and_containers_are_known() {
    let node = node();
    node.add_image("old:1", 90).await;
    node.desired_state.send_modify(|desired_state| desired_state.is_confirmed = false);
    node.image_gc.collect(disk(99)).await.unwrap();
    assert_eq!(node.names().await, ["demo:1", "old:1"]);
}

#[tokio::test]
async fn image_of_existing_container_is_kept() {
    let node = node();
    let runtime = FakeRuntime::new();
    runtime.add_image(&image());
    let owner = ContainerOwner { task: "left".into(), attempt: 1, spec_hash: "hash".into() };
    let spec = ContainerSpec::new(ContainerId::parse("left").unwrap(), owner, image());
    runtime.ensure_created(&spec).await.unwrap();
    node.desired_state.send_modify(|desired_state| desired_state.tasks.clear());
    let image_gc = ImageGc {
        source: Arc::clone(&node.image_gc.source),
        runtime: Arc::new(runtime.clone()),
        desired_state: node.desired_state.subscribe(),
        clock: Arc::clone(&node.image_gc.clock),
    };
    image_gc.collect(disk(99)).await.unwrap();
    assert_eq!(node.names().await, ["demo:1"]);
    runtime.remove(&spec.id).await.unwrap();
    let policy = PrunePolicy { max_age: Some(Duration::ZERO), grace: Duration::ZERO, ..POLICY };
    let none = warren_image::FilesystemUsage { used: 0, total: 0 };
    let pruned = image_gc.prune(&policy, none).await.unwrap();
    assert_eq!((pruned.removed.len(), node.names().await.len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn disk_pressure_triggers_collection_with_cooldown() {
    let shutdown = Shutdown::new();
    let background_tasks =
        BackgroundTasks::new(shutdown.clone(), Arc::new(SystemClock::new()), Arc::new(|| 0));
    let meter = Arc::new(NodeMeter::new("/".into()));
    let pressure = start(node().image_gc, meter, &background_tasks, shutdown.token());
    let runs = || background_tasks.snapshot().iter().map(|status| status.runs).sum::<u64>();
    let mut seen = Vec::new();
    for percent in [84, 85, 90, 90] {
        pressure.observe(disk(percent));
        tokio::time::sleep(Duration::from_secs(1)).await;
        seen.push(runs());
    }
    assert_eq!(seen, [1, 2, 2, 2]);
    tokio::time::sleep(PRESSURE_COOLDOWN).await;
    pressure.observe(None);
    pressure.observe(disk(90));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((runs(), background_tasks.snapshot()[0].name), (3, "worker.image-gc"));
    shutdown.stop(Duration::from_secs(5)).await.unwrap();
}
