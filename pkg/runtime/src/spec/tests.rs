//! Each field of the document.

use warren_types::{Bytes, IdRange, MilliCpu, SeccompProfile};

use super::fixtures::{HOST, build, build_with, image, spec, strings};
use super::*;
use crate::container::{
    ContainerLimits, ContainerMount, ContainerMountSource, ContainerReservations, ContainerUlimit, HostFile,
    MountPropagation, OutputTarget, PrivateUsers, StandardInput,
};

const UNIFIED: HostFeatures = HostFeatures { unified_cgroups: true, ..HOST };

#[test]
fn command_and_args_follow_dockers_table() {
    for (command, args, want) in [
        (None, None, strings(&["/entry", "one"])),
        (None, strings(&["two"]), strings(&["/entry", "two"])),
        (None, strings(&[]), strings(&["/entry"])),
        (strings(&["/own"]), None, strings(&["/own"])),
        (strings(&["/own", "x"]), strings(&["y"]), strings(&["/own", "x", "y"])),
        (strings(&[]), strings(&["/y"]), strings(&["/y"])),
    ] {
        let spec = ContainerSpec { command, args, ..spec() };
        assert_eq!(Some(command::command_line(&spec, &image()).unwrap()), want);
    }
    let nothing = ContainerSpec { command: strings(&[]), ..spec() };
    let error = command::command_line(&nothing, &image()).unwrap_err().to_string();
    assert!(error.contains("the image has no command"), "{error}");
}

#[test]
fn environment_merges_by_name_and_later_wins() {
    let env = [("A", "spec"), ("B", "x=y"), ("B", "last")].map(|(n, v)| (n.to_owned(), v.to_owned()));
    let asked = ContainerSpec { env: env.into(), ..spec() };
    let merged = command::environment(&asked, &image());
    assert_eq!(Some(merged), strings(&["PATH=/bin", "HOSTNAME=web-1", "A=spec", "B=last"]));
    let bare = command::environment(&ContainerSpec { tty: true, ..spec() }, &RunConfig::default());
    assert!(bare[0].starts_with("PATH=/usr/local/sbin:") && bare[2] == "TERM=xterm", "{bare:?}");
}

fn resources_of(
    limits: ContainerLimits,
    reservations: ContainerReservations,
    host: HostFeatures,
) -> oci::LinuxResources {
    let spec = ContainerSpec { limits, reservations, ..spec() };
    resources::resources(&spec, &[], host)
}

#[test]
fn limits_map_to_both_cgroup_versions() {
    let limits = ContainerLimits { cpu: Some(MilliCpu(250)), memory: Some(Bytes(64 << 20)), pids: Some(50) };
    let reservations = ContainerReservations { cpu: Some(MilliCpu(100)), memory: Some(Bytes(32 << 20)) };
    let all = resources_of(limits, reservations, HOST);
    insta::assert_json_snapshot!(all, @r#"
    {
      "devices": [
        {
          "allow": false,
          "access": "rwm"
        }
      ],
      "memory": {
        "limit": 67108864,
        "reservation": 33554432,
        "swap": 67108864
      },
      "cpu": {
        "shares": 102,
        "quota": 25000,
        "period": 100000
      },
      "pids": {
        "limit": 50
      }
    }
    "#);
    // runc and crun translate the same document, so it has no keys of version 2.
    assert_eq!(resources_of(limits, reservations, UNIFIED), all);
    assert!(all.unified().is_none());
    let without_swap = resources_of(limits, reservations, HostFeatures { limits_swap: false, ..HOST });
    assert_eq!(without_swap.memory().unwrap().swap(), None);
}

#[test]
fn unset_limits_are_unlimited() {
    let none = resources_of(ContainerLimits::default(), ContainerReservations::default(), HOST);
    assert!(none.cpu().is_none() && none.memory().is_none() && none.pids().is_none());
    let shares = |limit: Option<u64>, reserved: Option<u64>| {
        let limits = ContainerLimits { cpu: limit.map(MilliCpu), ..ContainerLimits::default() };
        let reservations = ContainerReservations { cpu: reserved.map(MilliCpu), memory: None };
        let cpu = resources_of(limits, reservations, HOST).cpu().clone().unwrap();
        (cpu.shares(), cpu.quota())
    };
    assert_eq!(shares(Some(250), None), (Some(256), Some(25_000)), "without a reservation the limit weighs");
    assert_eq!(shares(None, Some(2000)), (Some(2048), None));
    assert_eq!(shares(Some(1), None).0, Some(2), "the kernel takes no fewer shares");
    assert_eq!(shares(None, Some(1 << 40)).0, Some(262_144), "and no more");
    let reservations = ContainerReservations { cpu: None, memory: Some(Bytes(7)) };
    let memory = resources_of(ContainerLimits::default(), reservations, HOST).memory().unwrap();
    assert_eq!((memory.limit(), memory.swap(), memory.reservation()), (None, None, Some(7)));
}

#[test]
fn namespaces_follow_network_and_cgroup_version() {
    let kinds = |network: NetworkMode, host| {
        let built = build(&ContainerSpec { network, ..spec() }, host);
        built.linux().clone().unwrap().namespaces().clone().unwrap()
    };
    let network = |list: &[oci::LinuxNamespace]| {
        let found = list.iter().find(|n| n.typ() == oci::LinuxNamespaceType::Network);
        found.map(|found| found.path().clone())
    };
    assert_eq!(network(&kinds(NetworkMode::Isolated, HOST)), Some(None));
    let joined = NetworkMode::Joined("/run/netns/x".into());
    assert_eq!(network(&kinds(joined, HOST)), Some(Some("/run/netns/x".into())));
    assert_eq!(network(&kinds(NetworkMode::Host, HOST)), None);
    let count = |host| kinds(NetworkMode::Isolated, host).len();
    assert_eq!((count(HOST), count(UNIFIED)), (5, 6));
}

fn mounts_of(spec: &ContainerSpec, host: HostFeatures) -> Vec<(String, Vec<String>)> {
    let mounts = build(spec, host).mounts().clone().unwrap();
    let shown = |mount: &oci::Mount| {
        (mount.destination().display().to_string(), mount.options().clone().unwrap_or_default())
    };
    mounts.iter().map(shown).collect()
}

fn bind(target: &str, read_only: bool, recursive: bool, propagation: MountPropagation) -> ContainerMount {
    let source = ContainerMountSource::Bind { path: "/host".into(), recursive, propagation };
    ContainerMount { target: target.into(), source, read_only }
}

#[test]
fn mounts_are_ordered_parent_first() {
    let tmpfs = ContainerMountSource::Tmpfs {
        size: Some(Bytes(8192)),
        mode: Some(0o700),
        options: vec!["exec".into(), "uid=5".into()],
    };
    let file = |target: &str| HostFile { source: "/node/file".into(), target: target.into() };
    let spec = ContainerSpec {
        init: Some("/opt/init".into()),
        mounts: vec![
            bind("/data/deep", true, true, MountPropagation::Slave),
            ContainerMount { target: "/data".into(), source: tmpfs, read_only: true },
            bind("/dev/shm", false, false, MountPropagation::Private),
            bind("/etc/hosts", false, true, MountPropagation::Shared),
            ContainerMount {
                target: "/run/secrets/db".into(),
                source: ContainerMountSource::File { path: "/s".into() },
                read_only: true,
            },
        ],
        files: vec![file("/etc/hosts"), file("/etc/resolv.conf")],
        ..spec()
    };
    let mounts = mounts_of(&spec, HOST);
    let targets: Vec<&str> = mounts.iter().map(|(target, _)| target.as_str()).collect();
    let kernels = ["/proc", "/dev", "/dev/pts", "/sys", "/sys/fs/cgroup", "/dev/mqueue"];
    let asked =
        ["/data", "/data/deep", "/dev/shm", "/etc/hosts", "/run/secrets/db", "/etc/resolv.conf", "/dev/init"];
    assert_eq!(targets, [&kernels[..], &asked[..]].concat());
    let options = |target: &str| mounts.iter().find(|(t, _)| t == target).unwrap().1.join(",");
    assert_eq!(options("/data"), "nosuid,nodev,noexec,mode=700,size=8192,exec,uid=5,ro");
    assert_eq!(options("/data/deep"), "rbind,rslave,ro,rro");
    assert_eq!(options("/dev/shm"), "bind,rprivate,rw");
    assert_eq!(options("/etc/hosts"), "rbind,rshared,rw");
    for file in ["/etc/resolv.conf", "/run/secrets/db"] {
        assert_eq!(options(file), "rbind,ro,rprivate,nosuid,nodev,noexec");
    }
    let old = mounts_of(&spec, HostFeatures { recursive_read_only: false, ..HOST });
    assert_eq!(old[7].1.join(","), "rbind,rslave,ro", "an old kernel cannot do better");
}

#[test]
fn root_propagation_is_set_only_when_needed() {
    let propagation = |expected: MountPropagation| {
        let spec = ContainerSpec { mounts: vec![bind("/x", false, true, expected)], ..spec() };
        build(&spec, HOST).linux().clone().unwrap().rootfs_propagation().clone()
    };
    assert_eq!(propagation(MountPropagation::Private), None);
    assert_eq!(propagation(MountPropagation::Slave).as_deref(), Some("rslave"));
    assert_eq!(propagation(MountPropagation::Shared).as_deref(), Some("shared"));
}

#[test]
fn process_matches_spec() {
    let log =
        OutputTarget::Binary { program: "/l".into(), dir: "/d".into(), max_size: Bytes(1), max_files: 1 };
    let asked = ContainerSpec {
        workdir: Some("/own".into()),
        tty: true,
        init: Some("/opt/init".into()),
        no_new_privileges: true,
        oom_score_adj: Some(-5),
        ulimits: vec![ContainerUlimit { name: "nofile".into(), soft: 10, hard: ContainerUlimit::UNLIMITED }],
        read_only_root: true,
        log,
        ..spec()
    };
    let user = User { uid: 5, gid: 6, groups: vec![7, 6, 7] };
    let meant = ResolvedSpec { user, ..ResolvedSpec::default() };
    let built = build_with(&asked, &meant, HOST);
    let process = built.process().clone().unwrap();
    assert_eq!(process.cwd(), Path::new("/own"));
    assert_eq!((process.terminal(), process.no_new_privileges()), (Some(true), Some(true)));
    assert_eq!(process.oom_score_adj(), Some(-5));
    assert_eq!(*process.args(), strings(&["/dev/init", "--", "/entry", "one"]));
    assert_eq!(*process.user().additional_gids(), Some(vec![6, 7]), "each once, the primary one first");
    let limit = process.rlimits().clone().unwrap()[0];
    assert_eq!((limit.soft(), limit.hard()), (10, u64::MAX));
    assert_eq!(built.root().clone().unwrap().readonly(), Some(true));
    let plain = build(&spec(), HOST);
    assert_eq!(plain.root().clone().unwrap().readonly(), Some(false));
    assert_eq!(plain.process().clone().unwrap().rlimits().clone(), None, "containerd's own");
    assert_eq!(plain.process().clone().unwrap().oom_score_adj(), Some(0), "not containerd's own");
}

#[test]
fn input_comes_from_pipe_through_process_one_or_terminal() {
    let log =
        OutputTarget::Binary { program: "/l".into(), dir: "/d".into(), max_size: Bytes(1), max_files: 1 };
    let stdin = Some(StandardInput { pipe: "/tasks/x/stdin".into(), program: "/opt/init".into() });
    let asked = ContainerSpec { stdin, log, ..spec() };
    let parts = |spec: &ContainerSpec| {
        let built = build(spec, HOST);
        let mounts = built.mounts().clone().unwrap();
        let own = mounts.into_iter().filter(|mount| mount.destination().starts_with("/dev/init"));
        let own = own.map(|mount| mount.source().clone().unwrap().display().to_string());
        let stdin = mounts_of(spec, HOST).iter().any(|(target, _)| target == "/dev/init-stdin");
        (built.process().clone().unwrap().args().clone().unwrap(), own.collect::<Vec<_>>(), stdin)
    };
    let words = ["/dev/init", "--input", "/dev/init-stdin", "--", "/entry", "one"].map(str::to_owned);
    let (args, own, has_pipe) = parts(&asked);
    assert_eq!((&args[..], &own[..], has_pipe), (&words[..], &["/opt/init".to_owned()][..], true));
    let (args, _, has_pipe) = parts(&ContainerSpec { init: Some("/opt/init".into()), ..asked.clone() });
    assert_eq!((&args[..], has_pipe), (&words[..], true));
    let (args, own, has_pipe) = parts(&ContainerSpec { tty: true, ..asked });
    assert_eq!((args.len(), own.len(), has_pipe), (2, 0, false), "the supervisor passes it on");
}

#[test]
fn oom_protection_without_capability_is_rejected() {
    let weak = HostFeatures { capabilities: capabilities::CapabilitySet::from_mask(0), ..HOST };
    let document = |score, host| {
        let spec = ContainerSpec { oom_score_adj: Some(score), ..spec() };
        document(&spec, &image(), &ResolvedSpec::default(), "/warren", host)
    };
    let error = document(-1, weak).unwrap_err();
    assert!(matches!(&error, Error::InvalidSpec { field, .. } if field == "oom_score_adj"), "{error}");
    document(0, weak).unwrap();
    document(-1, HOST).unwrap();
}

#[test]
fn each_device_has_a_cgroup_rule() {
    let access = DevicePermissions { read: true, write: false, mknod: false };
    let node = DeviceNode {
        path: "/dev/x".into(),
        kind: oci::LinuxDeviceType::C,
        major: 1,
        minor: 3,
        mode: 0o666,
        uid: 0,
        gid: 44,
        access,
    };
    let meant = ResolvedSpec { devices: vec![node], ..ResolvedSpec::default() };
    let linux = build_with(&spec(), &meant, HOST).linux().clone().unwrap();
    insta::assert_json_snapshot!((linux.devices(), linux.resources().clone().unwrap().devices()), @r#"
    [
      [
        {
          "path": "/dev/x",
          "type": "c",
          "major": 1,
          "minor": 3,
          "fileMode": 438,
          "uid": 0,
          "gid": 44
        }
      ],
      [
        {
          "allow": false,
          "access": "rwm"
        },
        {
          "allow": true,
          "type": "c",
          "major": 1,
          "minor": 3,
          "access": "r"
        }
      ]
    ]
    "#);
}

#[test]
fn privileged_removes_all_restrictions() {
    let built = build(&ContainerSpec { privileged: true, ..spec() }, HOST);
    let linux = built.linux().clone().unwrap();
    assert!(linux.masked_paths().is_none() && linux.readonly_paths().is_none() && linux.seccomp().is_none());
    let rules = linux.resources().clone().unwrap().devices().clone().unwrap();
    assert!(rules.len() == 1 && rules[0].allow());
    for (target, options) in mounts_of(&ContainerSpec { privileged: true, ..spec() }, HOST) {
        assert!(!options.contains(&"ro".to_owned()), "{target}");
    }
    let capabilities = built.process().clone().unwrap().capabilities().clone().unwrap();
    assert_eq!(capabilities.bounding().as_ref().map(|set| set.len()), Some(41));
    let unconfined = build(&ContainerSpec { seccomp: SeccompPolicy::Unconfined, ..spec() }, HOST);
    let linux = unconfined.linux().clone().unwrap();
    assert!(linux.seccomp().is_none() && linux.masked_paths().is_some());
    assert!(build(&spec(), HOST).linux().clone().unwrap().seccomp().is_some());
}

#[test]
fn process_has_the_resolved_apparmor_profile() {
    for apparmor in [None, Some("web".to_owned())] {
        let meant = ResolvedSpec { apparmor: apparmor.clone(), ..ResolvedSpec::default() };
        let built = build_with(&spec(), &meant, HOST);
        assert_eq!(*built.process().as_ref().unwrap().apparmor_profile(), apparmor);
        let plan = crate::exec_plan::exec_plan(&built).unwrap();
        assert_eq!(plan.apparmor_profile, apparmor.unwrap_or_default().into_bytes());
    }
}

#[test]
fn own_seccomp_profile_restricts_privileged_containers_too() {
    let profile = SeccompProfile::parse(br#"{"defaultAction": "SCMP_ACT_LOG"}"#).unwrap();
    for privileged in [false, true] {
        let seccomp = SeccompPolicy::Profile(Box::new(profile.clone()));
        let built = build(&ContainerSpec { privileged, seccomp, ..spec() }, HOST);
        let found = built.linux().clone().unwrap().seccomp().clone().unwrap();
        assert_eq!(found.default_action(), oci::LinuxSeccompAction::ScmpActLog);
    }
}

#[test]
fn requested_sysctls_override_defaults() {
    let key = "net.ipv4.ip_unprivileged_port_start";
    let set = |network, sysctls: &[(&str, &str)]| {
        let sysctls = sysctls.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let spec = ContainerSpec { network, sysctls, ..spec() };
        build(&spec, HOST).linux().clone().unwrap().sysctl().clone().unwrap()
    };
    let own = set(NetworkMode::Isolated, &[(key, "80"), ("kernel.sem", "1 2 3 4")]);
    assert_eq!((own[key].as_str(), own["kernel.sem"].as_str(), own.len()), ("80", "1 2 3 4", 3));
    assert!(set(NetworkMode::Host, &[]).is_empty(), "the host's are not touched");
}

#[test]
fn document_is_deterministic_and_round_trips() {
    let first = build(&spec(), HOST);
    let text = serde_json::to_vec(&first).unwrap();
    assert_eq!(serde_json::from_slice::<oci::Spec>(&text).unwrap(), first);
    assert_eq!(first, build(&spec(), HOST));
    let process = first.process().clone().unwrap();
    assert_eq!(process.cwd(), Path::new("/srv"));
    assert_eq!(first.hostname().as_deref(), Some("web-1"));
    let linux = first.linux().clone().unwrap();
    assert_eq!(linux.cgroups_path().as_deref(), Some(Path::new("/warren/web.1")));
}

#[test]
fn relative_image_workdir_is_rejected() {
    let image = RunConfig { working_dir: "srv".into(), ..image() };
    let document = |spec: &ContainerSpec| document(spec, &image, &ResolvedSpec::default(), "/warren", HOST);
    assert!(document(&spec()).is_err());
    document(&ContainerSpec { workdir: Some("/srv".into()), ..spec() }).unwrap();
}

#[test]
fn private_users_have_ids_a_namespace_and_mapped_mounts() {
    let bind = |target: &str, recursive, read_only| {
        let source = ContainerMountSource::Bind {
            path: "/srv".into(),
            recursive,
            propagation: MountPropagation::Private,
        };
        ContainerMount { target: target.into(), source, read_only }
    };
    let users = PrivateUsers { ids: IdRange { first: 1_000_000 }, directory: "/run/users/x".into() };
    let mounts = vec![bind("/a/b", true, true), bind("/a", false, false)];
    let asked = ContainerSpec { user_namespace: Some(users), mounts, ..spec() };
    let built = build(&asked, HOST);
    let linux = built.linux().clone().unwrap();
    for ids in [linux.uid_mappings(), linux.gid_mappings()] {
        let [ids] = ids.as_deref().unwrap() else { panic!("{ids:?}") };
        assert_eq!((ids.container_id(), ids.host_id(), ids.size()), (0, 1_000_000, 65_536));
    }
    let namespaces = linux.namespaces().clone().unwrap();
    let user = namespaces.iter().find(|each| each.typ() == oci::LinuxNamespaceType::User).unwrap();
    assert_eq!(user.path().as_deref(), Some(Path::new("/run/users/x/user")));
    assert_eq!(linux.sysctl().clone().unwrap()["net.ipv4.ping_group_range"], "0 65535");
    let found = built.mounts().clone().unwrap();
    let mount = |target: &str| found.iter().find(|mount| mount.destination() == Path::new(target)).unwrap();
    for (target, source, options) in [
        ("/a", "/run/users/x/mount-1", ["bind", "rprivate"]),
        // The mount with shifted ids is read-only itself.
        ("/a/b", "/run/users/x/mount-0", ["rbind", "rprivate"]),
    ] {
        let mount = mount(target);
        assert_eq!(mount.source().as_deref(), Some(Path::new(source)));
        assert_eq!(*mount.options(), strings(&options));
    }
    let host = build(&spec(), HOST).linux().clone().unwrap();
    assert!(host.uid_mappings().is_none() && host.gid_mappings().is_none());
}
