//! Writable layers of real containers: their size, their limit, and their removal.

use warren_runtime::testing::PrivateContainerd;
use warren_runtime::{LayerUsage, ProcessState, Runtime, Signal};
use warren_testkit::scratch::ScratchDir;
use warren_testkit::small_disk::SmallDisk;
use warren_types::Bytes;

use crate::world::{RuntimeFixture, end, eventually, process, run, spec, stopped};

const FILE: u64 = 8 << 20;
/// A file of that size, and one more.
const WRITE: &str = "busybox dd if=/dev/zero of=/x bs=65536 count=128 2>/dev/null; busybox wc -c </x";

#[tokio::test(flavor = "multi_thread")]
async fn layer_is_measured_and_emptied_before_its_process_is_deleted() {
    let world = RuntimeFixture::start().await;
    let runtime = &world.runtime;
    let usage = |spec: &warren_runtime::ContainerSpec| {
        let id = spec.id.clone();
        async move { runtime.layer_usage(&id).await.unwrap().unwrap_or_default() }
    };
    let writer = spec("writer", &["sh", "-c", &format!("{WRITE}; sleep 100000")]);
    run(runtime, &writer).await;
    eventually("it has written", || async { usage(&writer).await.bytes >= Bytes(FILE) }).await;
    let root = runtime.layer_root().await.unwrap().expect("there is a layer");
    assert!(root.starts_with(world.containerd.dir()) && root.ends_with("snapshots"), "{root:?}");
    let idle = spec("idle", &["sleep", "100000"]);
    run(runtime, &idle).await;
    let LayerUsage { bytes, inodes, .. } = usage(&idle).await;
    assert!(bytes < Bytes(1 << 20) && inodes < 32, "{bytes} {inodes}");

    runtime.signal(&writer.id, Signal::KILL).await.unwrap();
    stopped(runtime, &writer.id).await;
    for _twice in 0..2 {
        runtime.remove_layer(&writer.id).await.unwrap();
        assert!(usage(&writer).await.bytes < Bytes(1 << 20), "its files are gone, and the process is not");
        assert!(matches!(process(runtime, &writer.id).await, ProcessState::Stopped(_)));
    }
    runtime.delete_process(&writer.id).await.unwrap();
    runtime.remove_layer(&writer.id).await.unwrap();
    assert_eq!(runtime.layer_usage(&writer.id).await.unwrap(), None);
    // The next process gets another layer.
    run(runtime, &writer).await;
    eventually("it has written again", || async { usage(&writer).await.bytes >= Bytes(FILE) }).await;
    end(runtime, &writer).await;
    end(runtime, &idle).await;
    world.assert_clean().await;
}

/// The kernel refuses where it has project quotas for ext4; elsewhere the limit is only measured.
#[tokio::test(flavor = "multi_thread")]
async fn limit_is_a_quota_where_the_kernel_has_them() {
    let scratch = ScratchDir::new();
    let (disk, has_quotas) = SmallDisk::with_quotas(scratch.path(), 128);
    let root = disk.path().join("containerd");
    let containerd = PrivateContainerd::start_with(|options, _| options.root = root).await;
    let world = RuntimeFixture::start_on(containerd, |_, _| {}).await;
    let write = |limit: Option<u64>| world.output(move |spec| spec.storage_limit = limit.map(Bytes), WRITE);
    let written = |printed: String| printed.trim().parse::<u64>().unwrap();
    assert_eq!(written(write(None).await), FILE);
    let limited = written(write(Some(4 << 20)).await);
    let refused = (2 << 20..4 << 20).contains(&limited);
    assert_eq!(refused, has_quotas, "{limited} bytes");
    // The quota ends with its layer, so the next one has that of its own limit.
    assert_eq!(written(write(Some(64 << 20)).await), FILE);
    world.assert_clean().await;
}
