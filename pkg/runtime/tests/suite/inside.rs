//! What a container sees of the fields of its spec.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use warren_runtime::{BindMount, ContainerSpec, Error, Limits, Log, Runtime, RuntimeEvent};
use warren_types::{Bytes, MilliCpu};

use crate::world::{World, event, exited, id, import, spec, stopped, tiny};

/// Runs a shell script to its end and returns what it printed.
async fn output(world: &World, change: impl FnOnce(&mut ContainerSpec), script: &str) -> String {
    let log = world.containerd.dir().join("logs of a test/out.log");
    let mut spec = spec("prints", &["sh", "-c", script]);
    spec.log = Log::File(log.clone());
    change(&mut spec);
    world.runtime.ensure_created(&spec).await.unwrap();
    world.runtime.start(&spec.id).await.unwrap();
    let exit = stopped(&world.runtime, &spec.id).await;
    world.runtime.remove(&spec.id).await.unwrap();
    let printed = fs::read_to_string(&log).unwrap();
    fs::remove_file(&log).unwrap();
    assert_eq!(exit.code, 0, "{script} printed: {printed}");
    printed
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_is_seen_from_inside() {
    let world = World::start().await;
    let show = "echo $FROM_IMAGE $OWN; hostname; id; pwd; echo \"$0 $1\" >&2";
    let printed = output(
        &world,
        |spec| {
            spec.env = vec![("OWN".into(), "a b=c".into())];
            spec.args = Some(vec!["first".into(), "second".into()]);
        },
        show,
    )
    .await;
    // The two streams arrive in the file each in its own order.
    let (errors, rest): (Vec<&str>, Vec<&str>) = printed.lines().partition(|line| *line == "first second");
    assert_eq!(errors.len(), 1);
    assert_eq!(rest, ["yes a b=c", "inside", "uid=0(root) gid=0(root) groups=0(root)", "/"]);

    let hosts = world.containerd.dir().join("hosts");
    fs::write(&hosts, "10.0.0.1 friend\n").unwrap();
    let bind = |spec: &mut ContainerSpec| {
        spec.mounts = vec![BindMount { source: hosts.clone(), target: "/etc/hosts".into() }];
    };
    let tries = "cat /etc/hosts; touch /etc/hosts 2>/dev/null && echo written; touch /free && echo own";
    assert_eq!(output(&world, bind, tries).await, "10.0.0.1 friend\nown\n");

    let fences = "unshare -m true 2>&1; mount -t tmpfs x /mnt 2>&1; ls -d /proc/kcore; cat /proc/kcore; \
                  touch /proc/sys/x /sys/x 2>/dev/null || echo fenced; grep Seccomp: /proc/self/status; \
                  grep CapEff /proc/self/status; cat /proc/net/dev | grep -c :";
    let printed = output(&world, |_| (), fences).await;
    for expected in ["Operation not permitted", "fenced", "Seccomp:\t2", "CapEff:\t00000000a80425fb"] {
        assert!(printed.contains(expected), "{expected} is not in {printed}");
    }
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_images_user_and_directory_are_kept() {
    let world = World::start().await;
    let image = |user: &str| tiny("user:1").config("User", user).config("WorkingDir", "/etc");
    let reference = warren_runtime::Reference::parse("user:1").unwrap();
    for (user, want) in [
        ("web", "uid=33(web) gid=44(web) groups=44(web),55(logs)\n/etc\n"),
        ("1000:1001", "uid=1000 gid=1001 groups=1001\n/etc\n"),
    ] {
        import(&world.runtime, world.containerd.dir(), image(user).docker_archive().unwrap()).await.unwrap();
        let printed = output(&world, |spec| spec.image = reference.clone(), "id; pwd").await;
        assert_eq!(printed, want, "{user}");
    }
    import(&world.runtime, world.containerd.dir(), image("nobody").docker_archive().unwrap()).await.unwrap();
    let unknown = ContainerSpec { image: reference, ..spec("unknown", &["id"]) };
    let error = world.runtime.ensure_created(&unknown).await.unwrap_err();
    assert!(matches!(&error, Error::InvalidSpec { field, .. } if field == "image"), "{error}");
    assert!(error.to_string().contains("nobody"), "{error}");
    world.runtime.remove(&unknown.id).await.unwrap();
    world.assert_clean().await;
}

/// The value of a cgroup's file, under its name in either version.
fn cgroup(world: &World, names: [(&str, &str); 2]) -> String {
    let parent = world.containerd.settings().cgroup_parent;
    let read = |(controller, file): (&str, &str)| {
        let path: PathBuf =
            ["/sys/fs/cgroup", controller, parent.trim_start_matches('/'), "limited", file].iter().collect();
        fs::read_to_string(path).ok()
    };
    names.into_iter().find_map(read).expect("the container has a cgroup").trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_reach_the_kernel_and_its_kills_are_told() {
    let world = World::start().await;
    let mut events = world.runtime.events();
    let hog = "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done";
    let limits = Limits { cpu: Some(MilliCpu(500)), memory: Some(Bytes(16 << 20)) };
    let spec = ContainerSpec { limits, ..spec("limited", &["sh", "-c", hog]) };
    world.runtime.ensure_created(&spec).await.unwrap();
    assert_eq!(
        cgroup(&world, [("memory", "memory.limit_in_bytes"), ("", "memory.max")]),
        (16 << 20).to_string()
    );
    let quota = cgroup(&world, [("cpu", "cpu.cfs_quota_us"), ("", "cpu.max")]);
    assert!(quota == "50000" || quota == "50000 100000", "{quota}");

    world.runtime.start(&spec.id).await.unwrap();
    let wanted = spec.id.clone();
    let oom = move |event| (event == RuntimeEvent::OutOfMemory { id: wanted.clone() }).then_some(());
    let mut both = world.runtime.events();
    event(&mut both, oom).await;
    let exit = exited(&mut events, &spec.id).await;
    assert_eq!((exit.code, exit.out_of_memory), (137, true));
    assert!(stopped(&world.runtime, &spec.id).await.out_of_memory);
    assert!(world.runtime.delete_process(&spec.id).await.unwrap().unwrap().out_of_memory);
    world.runtime.remove(&spec.id).await.unwrap();
    world.assert_clean().await;
}

/// A network namespace that goes with the test.
struct Netns(String);

impl Netns {
    fn new() -> Self {
        let name = format!("warren-test-{}", std::process::id());
        assert!(Command::new("ip").args(["netns", "add", &name]).status().unwrap().success());
        assert!(
            Command::new("ip").args(["-n", &name, "link", "set", "lo", "up"]).status().unwrap().success()
        );
        Self(name)
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_given_network_namespace_is_joined_and_a_missing_one_is_an_error() {
    let world = World::start().await;
    let netns = Netns::new();
    let path = PathBuf::from("/run/netns").join(&netns.0);
    let show = "cat /proc/net/fib_trie | grep -c 127.0.0.1";
    let printed = output(&world, |spec| spec.netns = Some(path.clone()), show).await;
    assert_ne!(printed.trim(), "0", "its loopback device is up");
    let missing = ContainerSpec { netns: Some("/run/netns/no-such".into()), ..spec("nonet", &["true"]) };
    let error = world.runtime.ensure_created(&missing).await.unwrap_err();
    assert!(matches!(error, Error::Failed { .. }) && error.to_string().contains("no-such"), "{error}");
    world.runtime.remove(&missing.id).await.unwrap();
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_that_cannot_run_are_named() {
    let world = World::start().await;
    for (command, reason) in [
        ("/no/such/program", "no such file"),
        ("nosuch", "not found"),
        ("/etc/data", "permission denied"),
        ("/etc", "permission denied"),
    ] {
        let spec = spec("bad", &[command]);
        let error = world.runtime.ensure_created(&spec).await.unwrap_err();
        assert!(matches!(&error, Error::CommandNotFound { command: c, .. } if c == command), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        world.runtime.remove(&id("bad")).await.unwrap();
    }
    world.assert_clean().await;
}
