//! Every field of a spec reaches containerd.

use warren_image::Reference;
use warren_types::{AppArmor, Bytes, MilliCpu};

use super::*;
use crate::apparmor::{DEFAULT_APPARMOR_PROFILE, choose};
use crate::container::{
    ContainerLimits, ContainerMount, ContainerMountSource, ContainerReservations, ContainerUlimit,
    DevicePermissions, HostDevice, HostFile, NetworkMode, OutputTarget, PrivateUsers, SeccompPolicy,
    StandardInput,
};
use crate::host_check;
use crate::spec::fixtures::{HOST, image, spec};
use crate::spec::user::RequestedUser;
use crate::spec::{ResolvedSpec, document};

const PLUGINS: fn() -> RecordPlugins<'static> =
    || RecordPlugins { snapshotter: "overlayfs", program: Path::new("/runc") };

/// Everything that containerd gets for a container.
#[derive(Debug, PartialEq)]
struct ContainerdRequest {
    document: oci::Spec,
    /// Without the document, whose lists are written in any order.
    record: Container,
    output: String,
    terminal: bool,
    /// A quota of the file system, beside the container.
    storage_limit: Option<Bytes>,
}

fn create_request(spec: &ContainerSpec) -> ContainerdRequest {
    spec.validate().unwrap();
    let user = RequestedUser::from_spec(spec, &image()).resolve("web:x:33:44::/:", "logs:x:55:").unwrap();
    let loaded = [DEFAULT_APPARMOR_PROFILE.to_owned()].into();
    let apparmor = choose(&spec.apparmor, spec.privileged, Some(&loaded)).unwrap();
    let meant = ResolvedSpec { user, devices: host_check::check_host(spec).unwrap(), apparmor };
    let document = document(spec, &image(), &meant, "/warren", HOST).unwrap();
    let record = new_record(spec, &image(), &document, &PLUGINS()).unwrap();
    let owner = spec.user_namespace.as_ref().map(|users| users.ids.first);
    let output = spec.log.uri(spec.owner.attempt, spec.stdin.is_some(), owner);
    ContainerdRequest {
        document,
        record: Container { spec: None, ..record },
        output,
        terminal: spec.tty,
        storage_limit: spec.storage_limit,
    }
}

/// One change of each field. The pattern names all fields, so that a new field of the spec is added here.
fn changes() -> Vec<(&'static str, ContainerSpec)> {
    #[rustfmt::skip]
    let ContainerSpec {
        id, owner, image, command, args, env, workdir, user, groups, tty, stdin, init, stop_signal, hostname, network,
        limits, reservations, ulimits, sysctls, shm_size, storage_limit, oom_score_adj, privileged, cap_add, cap_drop,
        no_new_privileges, seccomp, apparmor, user_namespace, devices, read_only_root, mounts, files, log, assignment,
        labels,
    } = ContainerSpec {
        id: ContainerId::parse("web.2").unwrap(),
        owner: ContainerOwner { attempt: 2, ..spec().owner },
        image: Reference::parse("y").unwrap(),
        command: Some(vec!["/own".into()]),
        args: Some(vec!["two".into()]),
        env: vec![("B".into(), "x".into())],
        workdir: Some("/own".into()),
        user: Some("web".into()),
        groups: vec!["logs".into()],
        tty: true,
        stdin: Some(StandardInput { pipe: "/pipe".into(), program: "/bin/sh".into() }),
        init: Some("/bin/sh".into()),
        stop_signal: Signal::parse("QUIT"),
        hostname: "other".into(),
        network: NetworkMode::Host,
        limits: ContainerLimits { cpu: Some(MilliCpu(10)), memory: Some(Bytes(6 << 20)), pids: Some(1) },
        reservations: ContainerReservations { cpu: Some(MilliCpu(1)), memory: Some(Bytes(1)) },
        ulimits: vec![ContainerUlimit { name: "core".into(), soft: 0, hard: 0 }],
        sysctls: [("kernel.sem".into(), "1".into())].into(),
        shm_size: Some(Bytes(4096)),
        storage_limit: Some(Bytes(1 << 20)),
        oom_score_adj: Some(1),
        privileged: true,
        cap_add: vec!["NET_ADMIN".into()],
        cap_drop: vec!["CHOWN".into()],
        no_new_privileges: true,
        seccomp: SeccompPolicy::Unconfined,
        apparmor: AppArmor::Unconfined,
        user_namespace: Some(PrivateUsers { ids: IdRange { first: 1_000_000 }, directory: "/users".into() }),
        devices: vec![HostDevice {
            source: "/dev/null".into(),
            target: "/dev/x".into(),
            access: DevicePermissions::FULL,
        }],
        read_only_root: true,
        mounts: vec![ContainerMount {
            target: "/x".into(),
            source: ContainerMountSource::Tmpfs { size: None, mode: None, options: Vec::new() },
            read_only: false,
        }],
        files: vec![HostFile { source: "/etc/passwd".into(), target: "/etc/hosts".into() }],
        log: OutputTarget::Binary { program: "/bin/sh".into(), dir: "/".into(), max_size: Bytes(1), max_files: 1 },
        assignment: b"other".to_vec(),
        labels: [("key".to_owned(), "value".to_owned())].into(),
    };
    macro_rules! each {
        ($($field:ident),*) => { vec![$((stringify!($field), ContainerSpec { $field, ..base() })),*] };
    }
    #[rustfmt::skip]
    let changes = each!(
        id, owner, image, command, args, env, workdir, user, groups, tty, stdin, init, stop_signal, hostname, network,
        limits, reservations, ulimits, sysctls, shm_size, storage_limit, oom_score_adj, privileged, cap_add, cap_drop,
        no_new_privileges, seccomp, apparmor, user_namespace, devices, read_only_root, mounts, files, log, assignment,
        labels
    );
    changes
}

/// With a logger, which a terminal needs.
fn base() -> ContainerSpec {
    let log = OutputTarget::Binary {
        program: "/bin/sh".into(),
        dir: "/tmp".into(),
        max_size: Bytes(1),
        max_files: 1,
    };
    ContainerSpec { log, ..spec() }
}

#[test]
fn every_spec_field_reaches_containerd() {
    let before = create_request(&base());
    assert_eq!(before, create_request(&base()));
    for (field, changed) in changes() {
        assert_ne!(create_request(&changed), before, "{field} is not honoured");
    }
}

#[test]
fn only_changed_record_fields_are_updated() {
    let record = |spec: &ContainerSpec| {
        let document = document(spec, &image(), &ResolvedSpec::default(), "/warren", HOST).unwrap();
        new_record(spec, &image(), &document, &PLUGINS()).unwrap()
    };
    let existing = record(&base());
    assert!(record_update(&existing, &record(&base())).is_none());
    let changed = ContainerSpec { assignment: b"x".to_vec(), hostname: "other".into(), ..base() };
    let (_, paths) = record_update(&existing, &record(&changed)).unwrap();
    assert_eq!(paths, ["spec", "extensions.warren.assignment"]);
    assert!(conflict_reason(&existing, &record(&changed)).is_none());
    let other = ContainerSpec { owner: ContainerOwner { task: "other".into(), ..base().owner }, ..base() };
    assert!(conflict_reason(&existing, &record(&other)).unwrap().contains("warren.task"));
    let users = PrivateUsers { ids: IdRange { first: 1_000_000 }, directory: "/users".into() };
    let private = record(&ContainerSpec { user_namespace: Some(users.clone()), ..base() });
    assert!(conflict_reason(&existing, &private).unwrap().contains("warren.first-id"));
    let status = parse_record(private, ProcessState::Absent, true).unwrap();
    assert_eq!((status.ids, status.labels), (Some(users.ids), BTreeMap::new()));
}
