//! An invalid spec is rejected with its field, and leaves nothing behind.

use warren_runtime::{
    ContainerMount, ContainerMountSource, ContainerSpec, ContainerUlimit, DevicePermissions, Error,
    HostDevice, MountPropagation, ProcessState, Runtime,
};

use crate::world::{RuntimeFixture, process, spec};

async fn refused(world: &RuntimeFixture, field: &str, words: &str, change: impl FnOnce(&mut ContainerSpec)) {
    let mut asked = spec("refused", &["true"]);
    change(&mut asked);
    for _twice in 0..2 {
        let error = world.runtime.ensure_created(&asked).await.expect_err(field);
        assert!(matches!(&error, Error::InvalidSpec { field: f, .. } if f == field), "{field}: {error}");
        assert!(error.to_string().contains(words) && !error.is_transient(), "{field}: {error}");
    }
    if world.runtime.inspect(&asked.id).await.unwrap().is_some() {
        assert_eq!(process(&world.runtime, &asked.id).await, ProcessState::Absent);
    }
    world.runtime.remove(&asked.id).await.unwrap();
}

fn bind(path: &str, target: &str) -> ContainerMount {
    let source = ContainerMountSource::Bind {
        path: path.into(),
        recursive: true,
        propagation: MountPropagation::Private,
    };
    ContainerMount { target: target.into(), source, read_only: false }
}

#[tokio::test(flavor = "multi_thread")]
async fn error_names_field_and_value() {
    let world = RuntimeFixture::start().await;
    let world = &world;
    refused(world, "user", "\"nobody\"", |s| s.user = Some("nobody".into())).await;
    refused(world, "user", "\"nogroup\"", |s| s.user = Some("web:nogroup".into())).await;
    refused(world, "groups[1]", "\"nogroup\"", |s| s.groups = vec!["logs".into(), "nogroup".into()]).await;
    let device = |source: &str| HostDevice {
        source: source.into(),
        target: "/dev/x".into(),
        access: DevicePermissions::FULL,
    };
    refused(world, "devices[0].source", "/dev/no-such", |s| s.devices = vec![device("/dev/no-such")]).await;
    refused(world, "devices[0].source", "not a device", |s| s.devices = vec![device("/etc/passwd")]).await;
    refused(world, "mounts[0].source", "/no/such", |s| s.mounts = vec![bind("/no/such", "/x")]).await;
    assert!(!std::path::Path::new("/no/such").exists());
    refused(world, "mounts[1]", "/etc/data", |s| {
        s.mounts = vec![bind("/tmp", "/x"), bind("/tmp", "/etc/data")];
    })
    .await;
    let sysctl = |key: &str, value: &str| [(key.to_owned(), value.to_owned())].into();
    let key = "net.ipv4.no_such";
    refused(world, "sysctls[\"net.ipv4.no_such\"]", "no such file", |s| s.sysctls = sysctl(key, "1")).await;
    let key = "net.core.somaxconn";
    refused(world, "sysctls[\"net.core.somaxconn\"]", "invalid", |s| s.sysctls = sysctl(key, "many")).await;
    refused(world, "workdir", "not a directory", |s| s.workdir = Some("/etc/data".into())).await;
    refused(world, "ulimits[0].hard", "fs.nr_open", |s| {
        s.ulimits = vec![ContainerUlimit { name: "nofile".into(), soft: 1, hard: 1 << 40 }];
    })
    .await;
    refused(world, "init", "/etc/passwd", |s| s.init = Some("/etc/passwd".into())).await;
    world.assert_clean().await;
}

/// On a machine that withholds a capability even from root, as virtual machines and containers do.
#[tokio::test(flavor = "multi_thread")]
async fn unavailable_capability_is_rejected_by_field() {
    const SYS_RESOURCE: u64 = 1 << 24;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapBnd:\t")).unwrap();
    let is_withheld = u64::from_str_radix(mask, 16).unwrap() & SYS_RESOURCE == 0;
    let world = RuntimeFixture::start().await;
    let adds = |s: &mut ContainerSpec| s.cap_add = vec!["SYS_RESOURCE".into()];
    let score = |s: &mut ContainerSpec| s.oom_score_adj = Some(-1000);
    let ulimit = |s: &mut ContainerSpec| {
        s.ulimits = vec![ContainerUlimit { name: "msgqueue".into(), soft: 1 << 30, hard: 1 << 30 }];
    };
    if is_withheld {
        refused(&world, "cap_add[0]", "SYS_RESOURCE", adds).await;
        refused(&world, "oom_score_adj", "SYS_RESOURCE", score).await;
        refused(&world, "ulimits", "not permitted", ulimit).await;
    } else {
        let show =
            "grep CapEff /proc/self/status; cat /proc/self/oom_score_adj; grep msgqueue /proc/self/limits";
        let all = |s: &mut ContainerSpec| {
            adds(s);
            score(s);
            ulimit(s);
        };
        let printed = world.output(all, show).await;
        for want in ["CapEff:\t00000000a90425fb", "\n-1000\n", "1073741824"] {
            assert!(printed.contains(want), "{want} is not in {printed}");
        }
    }
    world.assert_clean().await;
}
