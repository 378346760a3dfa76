//! Containers with user namespaces of their own: ids, files, and what they are refused.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use warren_container_programs::ensure_installed;
use warren_runtime::{
    ContainerMount, ContainerMountSource, ContainerSpec, Error, ExecSpec, HostFile, MountPropagation,
    NetworkMode, PrivateUsers, Runtime, Signal, StandardInput, TerminalSize,
};
use warren_types::IdRange;

use crate::exec::script;
use crate::world::{RuntimeFixture, end, eventually, run, sleeper, stopped};

const IDS: IdRange = IdRange { first: 1_879_048_192 };

/// The namespaces of one container.
struct Namespaces {
    users: PrivateUsers,
    network: PathBuf,
}

impl Namespaces {
    async fn make(world: &RuntimeFixture) -> Self {
        let dir = world.containerd.dir();
        let made = Self {
            users: PrivateUsers { ids: IDS, directory: dir.join("users") },
            network: dir.join("network"),
        };
        made.ensure(world).await;
        made
    }

    async fn ensure(&self, world: &RuntimeFixture) {
        let programs = ensure_installed(world.containerd.dir()).unwrap();
        self.users.ensure(Some(&self.network), &programs.namespaces).await.unwrap();
    }

    /// The spec with these namespaces.
    fn with(&self, spec: ContainerSpec) -> ContainerSpec {
        let network = NetworkMode::Joined(self.network.clone());
        ContainerSpec { user_namespace: Some(self.users.clone()), network, ..spec }
    }

    fn remove(self) {
        for _ in 0..2 {
            self.users.remove().unwrap();
        }
        assert!(Command::new("umount").arg("--lazy").arg(&self.network).status().unwrap().success());
    }
}

async fn end_process(world: &RuntimeFixture, spec: &ContainerSpec) {
    world.runtime.signal(&spec.id, Signal::KILL).await.unwrap();
    stopped(&world.runtime, &spec.id).await;
    world.runtime.delete_process(&spec.id).await.unwrap();
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

fn volume(path: &Path, target: &str, read_only: bool) -> ContainerMount {
    let (path, propagation) = (path.to_owned(), MountPropagation::Private);
    let source = ContainerMountSource::Bind { path, recursive: false, propagation };
    ContainerMount { target: target.into(), source, read_only }
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_are_made_once_and_again_if_one_is_missing() {
    let world = RuntimeFixture::start().await;
    let made = Namespaces::make(&world).await;
    let found = || [inode(&made.users.directory.join("user")), inode(&made.network)];
    let first = found();
    made.ensure(&world).await;
    assert_eq!(found(), first);
    // Another one has no owner that the container's root is.
    assert!(Command::new("umount").arg("--lazy").arg(&made.network).status().unwrap().success());
    let foreign = ["--bind", "/proc/self/ns/net"];
    assert!(Command::new("mount").args(foreign).arg(&made.network).status().unwrap().success());
    made.ensure(&world).await;
    let second = found();
    assert!(second[0] != first[0] && second[1] != inode(Path::new("/proc/self/ns/net")));
    made.remove();
    let missing = PrivateUsers { ids: IDS, directory: world.containerd.dir().join("other") };
    let error = missing.ensure(None, Path::new("/bin/true")).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    missing.remove().unwrap();
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_have_the_ids_of_the_container_and_root_has_none_of_the_node() {
    let world = RuntimeFixture::start().await;
    let made = Namespaces::make(&world).await;
    let dir = world.containerd.dir();
    let (data, secret) = (dir.join("data"), dir.join("secret"));
    fs::create_dir(&data).unwrap();
    fs::write(data.join("old"), "old").unwrap();
    for path in [&data, &data.join("old")] {
        chown(path, Some(33), Some(44)).unwrap();
    }
    fs::write(&secret, "hush").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o400)).unwrap();
    chown(&secret, Some(IDS.first), Some(IDS.first)).unwrap();
    let spec = made.with(ContainerSpec {
        mounts: vec![volume(&data, "/data", false), volume(&data, "/ro", true)],
        files: vec![HostFile { source: secret, target: "/run/secret".into() }],
        ..sleeper("main")
    });
    let pid = run(&world.runtime, &spec).await;
    let map = fs::read_to_string(format!("/proc/{pid}/uid_map")).unwrap();
    let map: Vec<&str> = map.split_whitespace().collect();
    assert_eq!(map, ["0", "1879048192", "65536"]);
    assert_eq!(fs::metadata(format!("/proc/{pid}")).unwrap().uid(), IDS.first);
    let inside = "id -u; busybox stat -c %u:%g /bin /data /data/old; cat /run/secret; echo; \
                  touch /etc/new /data/new; chown 5:6 /etc/new /data/new; (touch /ro/x) 2>&1 | grep -o Read-only; \
                  mount -t tmpfs none /data 2>/dev/null || echo no mount; cat /proc/sys/net/ipv4/ping_group_range";
    let (code, printed, errors) = world.exec("main", &script(inside)).await;
    assert_eq!(code, 0, "{printed} {errors}");
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines, ["0", "0:0", "33:44", "33:44", "hush", "Read-only", "no mount", "0\t65535"]);
    let new = fs::metadata(data.join("new")).unwrap();
    assert_eq!((new.uid(), new.gid()), (5, 6), "on the disk as in the container");
    let root = fs::metadata(format!("/proc/{pid}/root/etc/new")).unwrap();
    assert_eq!((root.uid(), root.gid()), (IDS.first + 5, IDS.first + 6));
    let status = world.runtime.inspect(&spec.id).await.unwrap().unwrap();
    assert_eq!(status.ids, Some(IDS));
    assert_eq!(world.runtime.open(&spec.id).await.unwrap().ids, Some(IDS));
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mut targets = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    let left = targets.find(|target| {
        let entry = Path::new(target).strip_prefix(&made.users.directory);
        entry.is_ok_and(|entry| entry != Path::new("user"))
    });
    assert_eq!(left, None, "{mounts}");
    let usage = world.runtime.layer_usage(&spec.id).await.unwrap().unwrap();
    assert!(usage.inodes >= 3, "its root, /etc and /etc/new: {usage:?}");
    // A process that is created again finds its files.
    end_process(&world, &spec).await;
    run(&world.runtime, &spec).await;
    let (_, printed, _) = world.exec("main", &script("ls -ln /etc/new | grep -c ' 5 *6 '")).await;
    assert_eq!(printed, "1\n");
    // After the removal of its layer it gets another one, with its ids.
    end_process(&world, &spec).await;
    world.runtime.remove_layer(&spec.id).await.unwrap();
    run(&world.runtime, &spec).await;
    let (code, printed, _) = world.exec("main", &script("busybox stat -c %u:%g /; test ! -e /etc/new")).await;
    assert_eq!((code, printed.as_str()), (0, "0:0\n"));
    end(&world.runtime, &spec).await;
    made.remove();
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_and_inputs_have_the_users_of_the_container() {
    let world = RuntimeFixture::start().await;
    let made = Namespaces::make(&world).await;
    let programs = ensure_installed(world.containerd.dir()).unwrap();
    let pipe = world.containerd.dir().join("input");
    let (log, output) = world.log("main");
    let command = ["sh", "-c", "cat; sleep 100000"].map(str::to_owned);
    let spec = made.with(ContainerSpec {
        command: Some(command.into()),
        stdin: Some(StandardInput { pipe: pipe.clone(), program: programs.init }),
        user: Some("web".into()),
        log,
        ..sleeper("main")
    });
    let pid = run(&world.runtime, &spec).await;
    assert_eq!(fs::metadata(format!("/proc/{pid}")).unwrap().uid(), IDS.first + 33);
    assert_eq!(fs::metadata(&pipe).unwrap().uid(), IDS.first + 33);
    let attached = world.runtime.attach(&spec.id, true).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut attached.input.unwrap(), b"typed\n").await.unwrap();
    eventually("the input is read", || async {
        fs::read_to_string(output.join("stdout")).is_ok_and(|text| text == "typed\n")
    })
    .await;
    let by_root =
        ExecSpec { user: Some("root".into()), ..script("id -u; echo again >/dev/stdout; ulimit -n") };
    let (code, printed, errors) = world.exec("main", &by_root).await;
    assert_eq!((code, errors.as_str()), (0, ""));
    assert!(printed.starts_with("0\nagain\n"), "{printed}");
    let terminal = Some(TerminalSize { columns: 80, rows: 24 });
    let on_terminal = ExecSpec { terminal, ..script("id -u; tty") };
    let (code, printed, _) = world.exec("main", &on_terminal).await;
    assert_eq!((code, printed.as_str()), (0, "33\r\n/dev/pts/0\r\n"));
    for terminal in [None, terminal] {
        let beyond = ExecSpec { user: Some("70000:0".into()), terminal, ..script("id") };
        match world.runtime.exec(&spec.id, &beyond).await.map(|_| ()) {
            Err(Error::InvalidSpec { field, reason }) => {
                assert!(field == "user" && reason.starts_with("70000 is not one of"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }
    world.pipes_are_removed().await;
    end(&world.runtime, &spec).await;
    made.remove();
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn file_system_that_cannot_shift_ids_is_refused_with_its_mount() {
    let world = RuntimeFixture::start().await;
    let made = Namespaces::make(&world).await;
    let stuck = world.containerd.dir().join("stuck");
    fs::create_dir(&stuck).unwrap();
    // ramfs has no id-mapped mounts in any kernel.
    assert!(Command::new("mount").args(["-t", "ramfs", "none"]).arg(&stuck).status().unwrap().success());
    let spec = made.with(ContainerSpec { mounts: vec![volume(&stuck, "/data", false)], ..sleeper("main") });
    match world.runtime.ensure_created(&spec).await {
        Err(Error::InvalidSpec { field, reason }) => {
            assert_eq!(field, "mounts[0].source");
            assert!(reason.contains("cannot shift ids"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    let other = ContainerSpec { user: Some("70000:0".into()), mounts: Vec::new(), ..spec.clone() };
    let refused = world.runtime.ensure_created(&other).await.unwrap_err();
    assert!(matches!(&refused, Error::InvalidSpec { field, .. } if field == "user"), "{refused}");
    world.runtime.remove(&spec.id).await.unwrap();
    assert!(Command::new("umount").arg("--lazy").arg(&stuck).status().unwrap().success());
    made.remove();
    world.assert_clean().await;
}
