//! Validation of a spec without a machine.

use warren_types::{IdRange, MilliCpu};

use super::*;

fn spec() -> ContainerSpec {
    let owner = ContainerOwner { task: "t".into(), attempt: 1, spec_hash: "h".into() };
    let new = ContainerSpec::new(ContainerId::parse("a").unwrap(), owner, Reference::parse("x").unwrap());
    ContainerSpec { assignment: vec![0; MAX_ASSIGNMENT], hostname: "web-1".into(), ..new }
}

fn refused(field: &str, change: impl FnOnce(&mut ContainerSpec)) {
    let mut spec = spec();
    change(&mut spec);
    let error = spec.validate().expect_err(field);
    assert!(matches!(&error, Error::InvalidSpec { field: f, .. } if f == field), "{field}: {error}");
    assert!(!error.is_transient());
}

fn accepted(change: impl FnOnce(&mut ContainerSpec)) {
    let mut spec = spec();
    change(&mut spec);
    spec.validate().unwrap();
}

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|word| (*word).to_owned()).collect()
}

fn logger() -> OutputTarget {
    OutputTarget::Binary { program: "/l".into(), dir: "/d".into(), max_size: Bytes(1), max_files: 1 }
}

#[test]
fn minimal_spec_is_valid() {
    let spec = ContainerSpec::new(
        ContainerId::parse(&"a".repeat(76)).unwrap(),
        ContainerOwner { task: "t".into(), attempt: 1, spec_hash: "h".into() },
        Reference::parse("x").unwrap(),
    );
    spec.validate().unwrap();
    assert_eq!(spec.hostname.len(), 64);
}

#[test]
fn invalid_process_is_rejected_by_field() {
    refused("env", |s| s.env.push((String::new(), "x".into())));
    refused("env", |s| s.env.push(("A=B".into(), "x".into())));
    refused("command", |s| s.args = Some(vec!["a\0b".into()]));
    refused("workdir", |s| s.workdir = Some("srv".into()));
    refused("user", |s| s.user = Some(String::new()));
    refused("init", |s| s.init = Some("init".into()));
    refused("hostname", |s| s.hostname = "a b".into());
    refused("hostname", |s| s.hostname.clear());
    let stdin =
        |pipe: &str, program: &str| Some(StandardInput { pipe: pipe.into(), program: program.into() });
    accepted(|s| (s.stdin, s.log) = (stdin("/p", "/i"), logger()));
    refused("stdin", |s| s.stdin = stdin("/p", "/i"));
    refused("stdin.pipe", |s| s.stdin = stdin("p", "/i"));
    refused("stdin.program", |s| s.stdin = stdin("/p", "i"));
    refused("tty", |s| s.tty = true);
    accepted(|s| (s.tty, s.log) = (true, logger()));
}

#[test]
fn invalid_resources_are_rejected_by_field() {
    accepted(|s| s.limits = ContainerLimits { cpu: Some(MIN_CPU), memory: Some(MIN_MEMORY), pids: Some(1) });
    refused("limits.cpu", |s| s.limits.cpu = Some(MilliCpu(9)));
    refused("limits.memory", |s| s.limits.memory = Some(Bytes(1 << 20)));
    refused("limits.pids", |s| s.limits.pids = Some(0));
    refused("reservations.memory", |s| {
        s.limits.memory = Some(Bytes(8 << 20));
        s.reservations.memory = Some(Bytes(9 << 20));
    });
    let ulimit = |name: &str, soft, hard| ContainerUlimit { name: name.into(), soft, hard };
    accepted(|s| s.ulimits = vec![ulimit("nofile", 1, ContainerUlimit::UNLIMITED), ulimit("core", 0, 0)]);
    refused("ulimits[0].name", |s| s.ulimits = vec![ulimit("files", 1, 2)]);
    refused("ulimits[1].name", |s| s.ulimits = vec![ulimit("core", 1, 2), ulimit("core", 1, 2)]);
    refused("ulimits[0].soft", |s| s.ulimits = vec![ulimit("core", 3, 2)]);
    refused("shm_size", |s| s.shm_size = Some(Bytes(1)));
    refused("oom_score_adj", |s| s.oom_score_adj = Some(1001));
}

#[test]
fn only_namespaced_sysctls_are_accepted() {
    let set = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
    for key in ["net.core.somaxconn", "kernel.sem", "fs.mqueue.msg_max", "kernel.domainname"] {
        accepted(|s| s.sysctls = set(key, "1"));
    }
    for key in ["vm.swappiness", "kernel.hostname", "kernel.panic", "fs.file-max", "net", "net..x", "../x"] {
        refused(&format!("sysctls[{key:?}]"), |s| s.sysctls = set(key, "1"));
    }
    refused("sysctls[\"kernel.sem\"]", |s| s.sysctls = set("kernel.sem", "1\n2"));
    refused("sysctls[\"net.core.somaxconn\"]", |s| {
        s.sysctls = set("net.core.somaxconn", "1");
        s.network = NetworkMode::Host;
    });
}

#[test]
fn invalid_security_options_are_rejected_by_field() {
    accepted(|s| s.cap_add = strings(&["NET_ADMIN", "cap_sys_time", "all"]));
    refused("cap_add[1]", |s| s.cap_add = strings(&["CHOWN", "FLY"]));
    refused("cap_drop[0]", |s| s.cap_drop = strings(&[""]));
    let device = |source: &str, target: &str| HostDevice {
        source: source.into(),
        target: target.into(),
        access: DevicePermissions::FULL,
    };
    accepted(|s| s.devices = vec![device("/dev/null", "/dev/x"), device("/dev/null", "/dev/y")]);
    refused("devices[0].source", |s| s.devices = vec![device("null", "/dev/x")]);
    refused("devices[0].target", |s| s.devices = vec![device("/dev/null", "/dev/../x")]);
    refused("devices[1].target", |s| s.devices = vec![device("/dev/null", "/x"), device("/dev/zero", "/x")]);
    refused("devices[0].access", |s| {
        let access = DevicePermissions { read: false, write: false, mknod: false };
        s.devices = vec![HostDevice { access, ..device("/dev/null", "/x") }];
    });
}

#[test]
fn private_users_exclude_what_belongs_to_the_host() {
    let users = |first, directory: &str| PrivateUsers { ids: IdRange { first }, directory: directory.into() };
    let private = |s: &mut ContainerSpec| s.user_namespace = Some(users(1_000_000, "/run/x"));
    accepted(private);
    refused("user_namespace", |s| s.user_namespace = Some(users(0, "/run/x")));
    refused("user_namespace", |s| s.user_namespace = Some(users(u32::MAX, "/run/x")));
    refused("user_namespace", |s| s.user_namespace = Some(users(1_000_000, "run")));
    refused("user_namespace", |s| {
        (s.privileged, s.user_namespace) = (true, Some(users(1_000_000, "/run/x")))
    });
    refused("user_namespace", |s| {
        private(s);
        s.network = NetworkMode::Host;
    });
    refused("user_namespace", |s| {
        private(s);
        let (source, target) = ("/dev/fuse".into(), "/dev/fuse".into());
        s.devices = vec![HostDevice { source, target, access: DevicePermissions::FULL }];
    });
    refused("mounts[0].propagation", |s| {
        private(s);
        let propagation = MountPropagation::Slave;
        let source = ContainerMountSource::Bind { path: "/a".into(), recursive: true, propagation };
        s.mounts = vec![ContainerMount { target: "/x".into(), source, read_only: false }];
    });
}

#[test]
fn invalid_mounts_are_rejected_by_field() {
    let bind = |path: &str, target: &str| ContainerMount {
        target: target.into(),
        source: ContainerMountSource::Bind {
            path: path.into(),
            recursive: true,
            propagation: MountPropagation::default(),
        },
        read_only: false,
    };
    let tmpfs = |size, mode, options: &[&str]| ContainerMount {
        target: "/t".into(),
        source: ContainerMountSource::Tmpfs { size, mode, options: strings(options) },
        read_only: false,
    };
    let file = |path: &str, read_only| ContainerMount {
        target: "/f".into(),
        source: ContainerMountSource::File { path: path.into() },
        read_only,
    };
    accepted(|s| s.mounts = vec![file("/secrets/db", true)]);
    refused("mounts[0].read_only", |s| s.mounts = vec![file("/secrets/db", false)]);
    refused("mounts[0].source", |s| s.mounts = vec![file("../db", true)]);
    accepted(|s| {
        s.mounts = vec![bind("/a", "/x"), tmpfs(Some(Bytes(4096)), Some(0o1777), &["exec", "uid=5"])];
    });
    for target in ["x", "/", "/a/../b", "/proc", "/proc/sys", "/dev", "/sys/"] {
        refused("mounts[0].target", |s| s.mounts = vec![bind("/a", target)]);
    }
    refused("mounts[1].target", |s| s.mounts = vec![bind("/a", "/x"), bind("/b", "/x/")]);
    refused("mounts[0].target", |s| {
        s.init = Some("/i".into());
        s.mounts = vec![bind("/a", INIT)];
    });
    for target in [INIT, STDIN] {
        let change = |s: &mut ContainerSpec| {
            s.stdin = Some(StandardInput { pipe: "/p".into(), program: "/i".into() });
            s.mounts = vec![bind("/a", target)];
            s.log = logger();
        };
        refused("mounts[0].target", change);
        accepted(|s| {
            change(s);
            s.tty = true;
        });
    }
    refused("mounts[0].source", |s| s.mounts = vec![bind("a", "/x")]);
    refused("mounts[0].size", |s| s.mounts = vec![tmpfs(Some(Bytes(1)), None, &[])]);
    refused("mounts[0].mode", |s| s.mounts = vec![tmpfs(None, Some(0o10000), &[])]);
    for option in ["size=1", "mode=7", "uid=x", "uid=+1", "uid", "bind", ""] {
        refused("mounts[0].options", |s| s.mounts = vec![tmpfs(None, None, &[option])]);
    }
    refused("files[0]", |s| s.files = vec![HostFile { source: "a".into(), target: "/b".into() }]);
}

#[test]
fn invalid_logs_and_metadata_are_rejected_by_field() {
    let log = |program: &str, dir: &str, max_size, max_files| {
        let log = OutputTarget::Binary {
            program: program.into(),
            dir: dir.into(),
            max_size: Bytes(max_size),
            max_files,
        };
        move |s: &mut ContainerSpec| s.log = log
    };
    accepted(log("/l", "/d", 1, 1));
    refused("log.program", log("logger", "/d", 1, 1));
    refused("log.dir", log("/l", "logs", 1, 1));
    refused("log.max_size", log("/l", "/d", 0, 1));
    refused("log.max_files", log("/l", "/d", 1, 0));
    refused("assignment", |s| s.assignment.push(0));
    refused("labels", |s| drop(s.labels.insert("warren.task".into(), "x".into())));
    refused("labels", |s| drop(s.labels.insert("k".into(), "x".repeat(4096))));
}
