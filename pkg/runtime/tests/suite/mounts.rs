//! Mounts in a container, and where it cannot write.

use std::fs;
use std::path::Path;
use std::process::Command;

use warren_runtime::{ContainerMount, ContainerMountSource, ContainerSpec, MountPropagation, Runtime};
use warren_types::Bytes;

use crate::world::{RuntimeFixture, eventually, spec, stopped};

/// Mounts in the test's own directory; they are removed with its containerd.
fn mount(arguments: &[&str], at: &Path) {
    let status = Command::new("mount").args(arguments).arg(at).status().unwrap();
    assert!(status.success(), "mount {arguments:?} {}", at.display());
}

fn umount(at: &Path) {
    assert!(
        Command::new("umount").arg("--lazy").arg(at).status().unwrap().success(),
        "umount {}",
        at.display()
    );
}

fn bind(path: &Path, target: &str, read_only: bool, propagation: MountPropagation) -> ContainerMount {
    let source = ContainerMountSource::Bind { path: path.to_owned(), recursive: true, propagation };
    ContainerMount { target: target.into(), source, read_only }
}

fn tmpfs(target: &str, size: Option<Bytes>, mode: Option<u32>, options: &[&str]) -> ContainerMount {
    let options = options.iter().map(|option| (*option).to_owned()).collect();
    ContainerMount {
        target: target.into(),
        source: ContainerMountSource::Tmpfs { size, mode, options },
        read_only: false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mounts_match_spec_and_rest_is_read_only() {
    let world = RuntimeFixture::start().await;
    let dir = world.containerd.dir();
    let [read, write, below] = ["read", "write", "read/below"].map(|name| dir.join(name));
    for folder in [&read, &write, &below] {
        fs::create_dir(folder).unwrap();
    }
    fs::write(read.join("file"), "of the host\n").unwrap();
    mount(&["-t", "tmpfs", "none"], &below);
    let flat = ContainerMountSource::Bind {
        path: read.clone(),
        recursive: false,
        propagation: MountPropagation::Private,
    };
    let mounts = vec![
        bind(&read, "/read", true, MountPropagation::Private),
        bind(&write, "/write", false, MountPropagation::Private),
        ContainerMount { target: "/flat".into(), source: flat, read_only: true },
        tmpfs("/scratch", Some(Bytes(1 << 20)), Some(0o700), &["exec", "uid=33"]),
        tmpfs("/plain", None, None, &[]),
    ];
    let script = "try() { touch $1/x 2>/dev/null && echo $1 yes || echo $1 no; }; \
                  try /; try /etc; try /read; try /read/below; try /write; try /scratch; try /dev/shm; \
                  cat /read/file; grep -c /flat/below /proc/mounts; id -u; \
                  grep -e ' /scratch ' -e ' /plain ' -e ' /dev/shm ' /proc/mounts; ls -ldn /scratch";
    let change = |spec: &mut ContainerSpec| {
        (spec.read_only_root, spec.shm_size, spec.mounts) = (true, Some(Bytes(8 << 20)), mounts);
    };
    let printed = world.output(change, script).await;
    let (tries, rest) = printed.split_once("of the host\n").unwrap();
    assert_eq!(tries, "/ no\n/etc no\n/read no\n/read/below no\n/write yes\n/scratch yes\n/dev/shm yes\n");
    assert!(write.join("x").exists() && !read.join("x").exists() && !below.join("x").exists());
    let lines: Vec<&str> = rest.lines().collect();
    assert_eq!(lines[..2], ["0", "0"], "a bind that is not recursive shows nothing below: {rest}");
    let of = |target: &str| *lines.iter().find(|line| line.contains(&format!(" {target} "))).unwrap();
    assert!(of("/dev/shm").contains("size=8192k"), "{rest}");
    let (scratch, plain) = (of("/scratch"), of("/plain"));
    assert!(scratch.contains("size=1024k") && scratch.contains("mode=700"), "{scratch}");
    assert!(scratch.contains("nosuid,nodev") && !scratch.contains("noexec"), "{scratch}");
    assert!(plain.contains("nosuid,nodev,noexec") && !plain.contains("mode="), "1777 is not shown: {plain}");
    assert!(lines.last().unwrap().starts_with("drwx------") && rest.contains(" 33 "), "{rest}");
    umount(&below);
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn later_mounts_propagate_as_configured() {
    let world = RuntimeFixture::start().await;
    let [shared, slave] = ["shared", "slave"].map(|name| world.containerd.dir().join(name));
    for folder in [&shared, &slave] {
        fs::create_dir(folder).unwrap();
        mount(&["-t", "tmpfs", "none"], folder);
        mount(&["--make-shared"], folder);
    }
    let (inner, outer) = (shared.join("inner"), slave.join("outer"));
    fs::create_dir(&outer).unwrap();
    let script = "mkdir /shared/inner && mount -t tmpfs x /shared/inner && touch /shared/inner/seen; \
                  while ! grep -q ' /slave/outer ' /proc/mounts; do sleep 0.02; done";
    let mut container = spec("mounts", &["sh", "-c", script]);
    container.cap_add = vec!["SYS_ADMIN".into()];
    container.mounts = vec![
        bind(&shared, "/shared", false, MountPropagation::Shared),
        bind(&slave, "/slave", false, MountPropagation::Slave),
    ];
    world.runtime.ensure_created(&container).await.unwrap();
    world.runtime.start(&container.id).await.unwrap();
    eventually("the container's mount is seen here", || async { inner.join("seen").exists() }).await;
    mount(&["-t", "tmpfs", "none"], &outer);
    assert_eq!(stopped(&world.runtime, &container.id).await.code, 0);
    world.runtime.remove(&container.id).await.unwrap();
    for mounted in [&outer, &inner, &slave, &shared] {
        umount(mounted);
    }
    world.assert_clean().await;
}
