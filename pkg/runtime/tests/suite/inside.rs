//! Effects of the spec's fields in a container.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use warren_runtime::{
    ContainerLimits, ContainerReservations, ContainerSpec, ContainerUlimit, Error, HostFile, NetworkMode,
    OutputTarget, Runtime, RuntimeEvent, Signal,
};
use warren_types::{Bytes, MilliCpu};

use crate::world::{RuntimeFixture, event, eventually, exited, id, import, spec, stopped, tiny};

#[tokio::test(flavor = "multi_thread")]
async fn every_field_is_visible_inside() {
    let world = RuntimeFixture::start().await;
    let show = "echo $FROM_IMAGE $OWN; hostname; id; pwd; echo \"$0 $1\" >&2";
    let printed = world
        .output(
            |spec| {
                spec.env = vec![("OWN".into(), "a b=c".into())];
                spec.args = Some(vec!["first".into(), "second".into()]);
            },
            show,
        )
        .await;
    let want = "yes a b=c\ninside\nuid=0(root) gid=0(root) groups=0(root)\n/\nfirst second\n";
    assert_eq!(printed, want);

    let hosts = world.containerd.dir().join("hosts");
    fs::write(&hosts, "10.0.0.1 friend\n").unwrap();
    let bind = |spec: &mut ContainerSpec| {
        spec.files = vec![HostFile { source: hosts.clone(), target: "/etc/hosts".into() }];
    };
    let tries = "cat /etc/hosts; touch /etc/hosts 2>/dev/null && echo written; touch /free && echo own";
    assert_eq!(world.output(bind, tries).await, "10.0.0.1 friend\nown\n");

    let fences = "unshare -m true 2>&1; mount -t tmpfs x /mnt 2>&1; ls -d /proc/kcore; cat /proc/kcore; \
                  touch /proc/sys/x /sys/x 2>/dev/null || echo fenced; grep Seccomp: /proc/self/status; \
                  grep CapEff /proc/self/status; cat /proc/net/dev | grep -c :";
    let printed = world.output(|_| (), fences).await;
    for expected in ["Operation not permitted", "fenced", "Seccomp:\t2", "CapEff:\t00000000a80425fb"] {
        assert!(printed.contains(expected), "{expected} is not in {printed}");
    }
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn image_user_and_workdir_are_kept() {
    let world = RuntimeFixture::start().await;
    let image = |user: &str| tiny("user:1").config("User", user).config("WorkingDir", "/etc");
    let reference = warren_runtime::Reference::parse("user:1").unwrap();
    for (user, want) in [
        ("web", "uid=33(web) gid=44(web) groups=44(web),55(logs)\n/etc\n"),
        ("1000:1001", "uid=1000 gid=1001 groups=1001\n/etc\n"),
    ] {
        import(&world.runtime, world.containerd.dir(), image(user).docker_archive().unwrap()).await.unwrap();
        let printed = world.output(|spec| spec.image = reference.clone(), "id; pwd").await;
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

#[tokio::test(flavor = "multi_thread")]
async fn process_matches_spec() {
    let world = RuntimeFixture::start().await;
    let show = "pwd; id -u; id -G; ulimit -Sn; ulimit -Hn; ulimit -c; cat /proc/self/oom_score_adj; \
                grep NoNewPrivs /proc/self/status; cat /proc/sys/net/core/somaxconn; \
                cat /proc/sys/kernel/msgmax; cat /proc/sys/kernel/domainname";
    let ulimit = |name: &str, soft, hard| ContainerUlimit { name: name.into(), soft, hard };
    let printed = world
        .output(
            |spec| {
                spec.workdir = Some("/made/here".into());
                spec.user = Some("web:web".into());
                spec.groups = vec!["logs".into(), "7".into()];
                spec.ulimits = vec![ulimit("nofile", 100, 200), ulimit("core", 0, 0)];
                spec.oom_score_adj = Some(300);
                spec.no_new_privileges = true;
                let sysctls =
                    [("net.core.somaxconn", "123"), ("kernel.msgmax", "9000"), ("kernel.domainname", "x.y")];
                spec.sysctls = sysctls.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
            },
            show,
        )
        .await;
    let want = "/made/here 33 44 7 55 100 200 0 300 NoNewPrivs: 1 123 9000 x.y";
    assert_eq!(printed.split_whitespace().collect::<Vec<_>>(), want.split(' ').collect::<Vec<_>>());
    let network = |network: NetworkMode| {
        let world = &world;
        async move { world.output(|spec| spec.network = network, "cat /proc/net/dev | grep -c :").await }
    };
    let devices = |text: &str| text.lines().filter(|line| line.contains(':')).count();
    let host = devices(&fs::read_to_string("/proc/net/dev").unwrap());
    assert_eq!(network(NetworkMode::Host).await.trim(), host.to_string());
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn init_is_pid_one_with_read_only_root() {
    let world = RuntimeFixture::start().await;
    let programs = warren_container_programs::ensure_installed(world.containerd.dir()).unwrap();
    let (log, dir) = world.log("tended");
    let script = "grep -q init /proc/1/comm && echo $PPID; trap 'echo passed on; exit 3' TERM; \
                  echo ready >&2; while :; do sleep 0.02; done";
    let spec = ContainerSpec {
        init: Some(programs.init),
        read_only_root: true,
        log,
        ..spec("tended", &["sh", "-c", script])
    };
    world.runtime.ensure_created(&spec).await.unwrap();
    world.runtime.start(&spec.id).await.unwrap();
    let read = |stream: &str| fs::read_to_string(dir.join(stream)).unwrap_or_default();
    eventually("it is ready", || async { read("stderr").contains("ready") }).await;
    world.runtime.signal(&spec.id, Signal::TERM).await.unwrap();
    assert_eq!(stopped(&world.runtime, &spec.id).await.code, 3);
    world.runtime.remove(&spec.id).await.unwrap();
    assert_eq!(read("stdout"), "1\npassed on\n");

    let nothing =
        ContainerSpec { command: Some(vec!["/no/such".into()]), log: OutputTarget::Discard, ..spec };
    world.runtime.ensure_created(&nothing).await.expect("the init is what is run");
    world.runtime.start(&nothing.id).await.unwrap();
    assert_eq!(stopped(&world.runtime, &nothing.id).await.code, 127);
    world.runtime.remove(&nothing.id).await.unwrap();
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tty_is_a_terminal() {
    let world = RuntimeFixture::start().await;
    let (log, dir) = world.log("terminal");
    let script = "tty; [ -t 0 ] && [ -t 2 ] && echo all $TERM; echo error >&2";
    let spec = ContainerSpec { tty: true, log, ..spec("terminal", &["sh", "-c", script]) };
    world.runtime.ensure_created(&spec).await.unwrap();
    world.runtime.start(&spec.id).await.unwrap();
    assert_eq!(stopped(&world.runtime, &spec.id).await.code, 0);
    world.runtime.remove(&spec.id).await.unwrap();
    // Deleting does not wait for a terminal's logger.
    let ended = || async { ["stdout.end", "stderr.end"].iter().all(|end| dir.join(end).exists()) };
    eventually("the logger has ended", ended).await;
    let read = |stream: &str| fs::read_to_string(dir.join(stream)).unwrap();
    assert_eq!(read("stdout"), "/dev/pts/0\r\nall xterm\r\nerror\r\n");
    assert_eq!(read("stderr"), "", "a terminal has one output");
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_are_enforced_and_oom_kills_are_reported() {
    let world = RuntimeFixture::start().await;
    let mut events = world.runtime.events();
    let hog = "while ! [ -e /go ]; do sleep 0.01; done; x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done";
    let limits = ContainerLimits { cpu: Some(MilliCpu(500)), memory: Some(Bytes(16 << 20)), pids: Some(7) };
    let reservations = ContainerReservations { cpu: Some(MilliCpu(250)), memory: Some(Bytes(8 << 20)) };
    let spec = ContainerSpec { limits, reservations, ..spec("limited", &["sh", "-c", hog]) };
    world.runtime.ensure_created(&spec).await.unwrap();
    let cgroup = |one, two| world.cgroup("limited", [one, two]);
    let memory = cgroup(("memory", "memory.limit_in_bytes"), ("", "memory.max"));
    assert_eq!(memory, (16 << 20).to_string());
    let reserved = cgroup(("memory", "memory.soft_limit_in_bytes"), ("", "memory.low"));
    assert_eq!(reserved, (8 << 20).to_string());
    let quota = cgroup(("cpu", "cpu.cfs_quota_us"), ("", "cpu.max"));
    assert!(quota == "50000" || quota == "50000 100000", "{quota}");
    // Version 2 scales 1 to 10000 to version 1's 2 to 262144.
    let weight = cgroup(("cpu", "cpu.shares"), ("", "cpu.weight"));
    assert!(weight == "256" || weight == "10", "{weight}");
    assert_eq!(cgroup(("pids", "pids.max"), ("", "pids.max")), "7");

    let expected = spec.id.clone();
    let oom = move |event| (event == RuntimeEvent::OutOfMemory { id: expected.clone() }).then_some(());
    let mut both = world.runtime.events();
    // The supervisor follows kills for lack of memory once the start has been acknowledged.
    let pid = world.runtime.start(&spec.id).await.unwrap();
    fs::write(format!("/proc/{pid}/root/go"), "").unwrap();
    event(&mut both, oom).await;
    let exit = exited(&mut events, &spec.id).await;
    assert_eq!((exit.code, exit.out_of_memory), (137, true));
    assert!(stopped(&world.runtime, &spec.id).await.out_of_memory);
    assert!(world.runtime.delete_process(&spec.id).await.unwrap().unwrap().out_of_memory);
    world.runtime.remove(&spec.id).await.unwrap();
    world.assert_clean().await;
}

/// A network namespace that is removed with the test.
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
async fn network_namespace_is_joined_or_missing_is_error() {
    let world = RuntimeFixture::start().await;
    let netns = Netns::new();
    let path = PathBuf::from("/run/netns").join(&netns.0);
    let show = "cat /proc/net/fib_trie | grep -c 127.0.0.1";
    let printed = world.output(|spec| spec.network = NetworkMode::Joined(path.clone()), show).await;
    assert_ne!(printed.trim(), "0", "its loopback device is up");
    let missing = ContainerSpec {
        network: NetworkMode::Joined("/run/netns/no-such".into()),
        ..spec("nonet", &["true"])
    };
    let error = world.runtime.ensure_created(&missing).await.unwrap_err();
    assert!(matches!(error, Error::Failed { .. }) && error.to_string().contains("no-such"), "{error}");
    world.runtime.remove(&missing.id).await.unwrap();
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn command_that_cannot_run_is_named() {
    let world = RuntimeFixture::start().await;
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
