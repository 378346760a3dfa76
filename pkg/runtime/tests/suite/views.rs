//! Views of images, and their leftovers.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::Command;

use warren_image::build::ImageBuilder;
use warren_runtime::containerd::ContainerdRuntime;
use warren_runtime::{
    ContainerMount, ContainerMountSource, ContainerSpec, MountPropagation, Reference, Runtime,
};

use crate::world::{RuntimeFixture, eventually, import, tiny};

/// Names of snapshots in the test's namespace, by containerd's own client.
fn snapshots(world: &RuntimeFixture) -> String {
    let settings = world.containerd.settings();
    let output = Command::new("ctr")
        .args(["-a", settings.socket.to_str().unwrap(), "-n", &settings.namespace, "snapshots", "ls"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

async fn no_views(world: &RuntimeFixture) {
    eventually("no view is left", || async { !snapshots(world).contains("warren.view") }).await;
}

fn layered(name: &str) -> ImageBuilder {
    tiny(name).dir("data", 0o750).file("data/file", 0o640, "from the image").link("to-data", "/data")
}

#[tokio::test(flavor = "multi_thread")]
async fn view_is_read_only_and_removed() {
    let world = RuntimeFixture::start().await;
    let image = Reference::parse("docker.io/library/views:1").unwrap();
    import(&world.runtime, world.containerd.dir(), layered(&image.to_string()).oci_archive().unwrap())
        .await
        .unwrap();
    let files = world.runtime.image_files(&image).await.unwrap();
    assert!(snapshots(&world).contains("warren.view"));
    assert!(
        world.containerd.leftovers().is_empty(),
        "it is mounted nowhere: {:?}",
        world.containerd.leftovers()
    );
    let data = files.directory(Path::new("/to-data")).unwrap().unwrap();
    let seen = format!("/proc/self/fd/{}/file", data.as_fd().as_raw_fd());
    assert_eq!(fs::read_to_string(&seen).unwrap(), "from the image");
    assert!(fs::write(&seen, "x").is_err());
    // A view in use is not an orphan.
    assert!(world.runtime.sweep_orphans().await.unwrap().is_empty());
    assert_eq!(fs::read_to_string(&seen).unwrap(), "from the image");
    drop((data, files));
    no_views(&world).await;
    world.runtime.resolve_user(&image, Some("web")).await.unwrap();
    no_views(&world).await;
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn view_of_killed_agent_is_swept() {
    let world = RuntimeFixture::start().await;
    let image = Reference::parse(crate::world::IMAGE).unwrap();
    // An agent that is killed drops nothing.
    let killed = ContainerdRuntime::new(world.containerd.settings()).unwrap();
    std::mem::forget(killed.image_files(&image).await.unwrap());
    let swept = world.runtime.sweep_orphans().await.unwrap();
    assert!(matches!(&swept.snapshots[..], [view] if view.starts_with("warren.view-")), "{swept:?}");
    no_views(&world).await;
    assert!(world.runtime.sweep_orphans().await.unwrap().is_empty());
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_and_volumes_are_mounted() {
    let world = RuntimeFixture::start().await;
    let dir = world.containerd.dir();
    let (secrets, volume) = (dir.join("secrets"), dir.join("volume"));
    for folder in [&secrets, &volume] {
        fs::create_dir(folder).unwrap();
    }
    assert!(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&secrets).status().unwrap().success());
    fs::write(secrets.join("db"), "password").unwrap();
    std::os::unix::fs::chown(secrets.join("db"), Some(33), Some(44)).unwrap();
    fs::set_permissions(secrets.join("db"), std::os::unix::fs::PermissionsExt::from_mode(0o400)).unwrap();
    std::os::unix::fs::chown(&volume, Some(33), Some(44)).unwrap();
    let source = ContainerMountSource::Bind {
        path: volume.clone(),
        recursive: true,
        propagation: MountPropagation::Private,
    };
    let change = |spec: &mut ContainerSpec| {
        spec.user = Some("web".into());
        spec.read_only_root = true;
        spec.mounts = vec![ContainerMount { target: "/data".into(), source, read_only: false }];
        spec.mounts.extend(["/run/secrets/db", "/data/sub/db"].map(|target| ContainerMount {
            target: target.into(),
            source: ContainerMountSource::File { path: secrets.join("db") },
            read_only: true,
        }));
    };
    let script = "cat /run/secrets/db /data/sub/db; echo; ls -ln /run/secrets/db; \
                  echo x 2>/dev/null >/run/secrets/db || echo refused; echo kept >/data/kept; \
                  grep ' /run/secrets/db ' /proc/mounts";
    let printed = world.output(change, script).await;
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines[0], "passwordpassword");
    assert!(
        lines[1].starts_with("-r--------") && lines[1].contains(" 33 ") && lines[1].contains(" 44 "),
        "{printed}"
    );
    assert_eq!(lines[2], "refused");
    assert!(lines[3].contains("ro,nosuid,nodev,noexec"), "{printed}");
    assert_eq!(fs::read_to_string(volume.join("kept")).unwrap(), "kept\n");
    assert!(Command::new("umount").arg("--lazy").arg(&secrets).status().unwrap().success());
    world.assert_clean().await;
}
