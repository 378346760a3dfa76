//! Volumes on a real containerd. Needs root, containerd, runc and a static busybox.

use std::fs;

use warren_image::ImportOptions;
use warren_image::build::ImageBuilder;
use warren_runtime::containerd::ContainerdRuntime;
use warren_runtime::testing::PrivateContainerd;
use warren_runtime::{
    ContainerId, ContainerMount, ContainerMountSource, ContainerOwner, ContainerSpec, MountPropagation,
    ProcessState, Signal,
};
use warren_volume::LocalVolumeDriver;

use super::tests::{subpath_mount, volume, with};
use super::*;
use crate::fixtures::{eventually, settings};
use crate::tasks::templates::template_values;

async fn runtime(containerd: &PrivateContainerd) -> ContainerdRuntime {
    let runtime = ContainerdRuntime::new(containerd.settings()).unwrap();
    let image = ImageBuilder::new("demo:1")
        .file("bin/busybox", 0o755, fs::read("/bin/busybox").unwrap())
        .dir("var/lib/db", 0o750)
        .file("var/lib/db/first", 0o640, "from the image")
        .link("data", "/var/lib/db")
        .link("var/lib/db/passwd", "/etc/passwd");
    let spool_dir = containerd.dir().to_owned();
    let options = ImportOptions { spool_dir, max_bytes: 64 << 20, name: None };
    runtime.images().import(&image.oci_archive().unwrap()[..], options).await.unwrap();
    runtime
}

#[tokio::test(flavor = "multi_thread")]
async fn container_sees_volumes_and_subpaths() {
    let containerd = PrivateContainerd::start().await;
    let runtime = runtime(&containerd).await;
    let (root, pins) = (containerd.dir().join("volumes"), containerd.dir().join("pins"));
    let (_wishes, expected) = watch::channel(DesiredState { is_confirmed: true, ..DesiredState::default() });
    let volumes = TaskVolumes::new(
        Arc::new(LocalVolumeDriver::new(&root)),
        SubpathMounts::new(&pins),
        Arc::new(runtime.clone()),
        expected,
    );
    let mut task = with([volume("data", "/data"), subpath_mount("parts", "/part", "slots/{{.Task.Slot}}")]);
    // The image was not resolved yet.
    task.digest = None;
    let sources = volumes.ensure(&task, &template_values(&task, &settings())).await.unwrap();
    assert_eq!(fs::read_to_string(root.join("data/first")).unwrap(), "from the image");
    assert_eq!(fs::read_link(root.join("data/passwd")).unwrap(), Path::new("/etc/passwd"));

    let id = ContainerId::parse("volumes").unwrap();
    let owner = ContainerOwner { task: task.id.to_string(), attempt: 1, spec_hash: "h".into() };
    let script = "cat /data/first >/data/seen; echo mine >/part/file; exec sleep 1000";
    let command = ["/bin/busybox", "sh", "-c", script].map(str::to_owned);
    let mounts = task.spec.mounts.iter().zip(&sources.paths).map(|(mount, path)| ContainerMount {
        target: mount.target.clone().into(),
        source: ContainerMountSource::Bind {
            path: path.clone().unwrap(),
            recursive: false,
            propagation: MountPropagation::Private,
        },
        read_only: false,
    });
    let spec = ContainerSpec {
        command: Some(command.into()),
        env: vec![("PATH".into(), "/bin".into())],
        mounts: mounts.collect(),
        assignment: serde_json::to_vec(&task).unwrap(),
        ..ContainerSpec::new(id.clone(), owner, images::image_reference(&task).unwrap())
    };
    // A container with the volume replaces the directory before this container is created.
    fs::rename(root.join("parts/slots"), root.join("parts/moved")).unwrap();
    std::os::unix::fs::symlink("/etc", root.join("parts/slots")).unwrap();
    runtime.ensure_created(&spec).await.unwrap();
    drop(sources);
    assert_eq!(fs::read_dir(&pins).unwrap().count(), 0);
    runtime.start(&id).await.unwrap();
    // A file that exists may still be empty.
    let written = || fs::read_to_string(root.join("parts/moved/1/file")).is_ok_and(|text| text == "mine\n");
    eventually("the container writes", async || written()).await;
    let error = volumes.purge(&"data".parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, PurgeError::InUse { .. }), "{error}");

    runtime.signal(&id, Signal::KILL).await.unwrap();
    let ended = async || {
        !matches!(runtime.inspect(&id).await.unwrap().unwrap().process, ProcessState::Running { .. })
    };
    eventually("the container ends", ended).await;
    runtime.remove(&id).await.unwrap();
    assert_eq!(fs::read_to_string(root.join("data/seen")).unwrap(), "from the image");
    volumes.purge(&"data".parse().unwrap()).await.unwrap();
    assert!(!root.join("data").exists());
    eventually("nothing is left", async || containerd.leftovers().is_empty()).await;
    assert!(runtime.sweep_orphans().await.unwrap().is_empty());
}
