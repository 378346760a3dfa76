//! Nothing that is asked for gets lost on the way to containerd.

use warren_image::Reference;
use warren_types::{Bytes, MilliCpu};

use super::*;
use crate::container::{
    Access, Device, HostFile, Limits, Log, Mount, MountSource, Network, Reservations, Seccomp, Ulimit,
};
use crate::host;
use crate::spec::samples::{HOST, image, spec};
use crate::spec::user::Wanted;
use crate::spec::{Meant, document};

const KEEPER: fn() -> Keeper<'static> = || Keeper { snapshotter: "overlayfs", program: Path::new("/runc") };

/// All that containerd is told about a container.
#[derive(Debug, PartialEq)]
struct Told {
    document: oci::Spec,
    /// Without the document, whose lists are written in any order.
    record: Container,
    output: String,
    terminal: bool,
}

fn told(spec: &ContainerSpec) -> Told {
    spec.check().unwrap();
    let user = Wanted::of(spec, &image()).resolve("web:x:33:44::/:", "logs:x:55:").unwrap();
    let meant = Meant { user, devices: host::look(spec).unwrap() };
    let document = document(spec, &image(), &meant, "/warren", HOST).unwrap();
    let record = new(spec, &image(), &document, &KEEPER()).unwrap();
    let output = spec.log.address(spec.owner.attempt);
    Told { document, record: Container { spec: None, ..record }, output, terminal: spec.tty }
}

/// One change of each field. A field that is added to the spec is missing here until it is honoured: the pattern
/// names all of them.
fn changes() -> Vec<(&'static str, ContainerSpec)> {
    #[rustfmt::skip]
    let ContainerSpec {
        id, owner, image, command, args, env, workdir, user, groups, tty, init, stop_signal, hostname, network,
        limits, reservations, ulimits, sysctls, shm_size, oom_score_adj, privileged, cap_add, cap_drop,
        no_new_privileges, seccomp, devices, read_only_root, mounts, files, log, assignment, labels,
    } = ContainerSpec {
        id: ContainerId::parse("web.2").unwrap(),
        owner: Owner { attempt: 2, ..spec().owner },
        image: Reference::parse("y").unwrap(),
        command: Some(vec!["/own".into()]),
        args: Some(vec!["two".into()]),
        env: vec![("B".into(), "x".into())],
        workdir: Some("/own".into()),
        user: Some("web".into()),
        groups: vec!["logs".into()],
        tty: true,
        init: Some("/bin/sh".into()),
        stop_signal: Signal::parse("QUIT"),
        hostname: "other".into(),
        network: Network::Host,
        limits: Limits { cpu: Some(MilliCpu(10)), memory: Some(Bytes(6 << 20)), pids: Some(1) },
        reservations: Reservations { cpu: Some(MilliCpu(1)), memory: Some(Bytes(1)) },
        ulimits: vec![Ulimit { name: "core".into(), soft: 0, hard: 0 }],
        sysctls: [("kernel.sem".into(), "1".into())].into(),
        shm_size: Some(Bytes(4096)),
        oom_score_adj: Some(1),
        privileged: true,
        cap_add: vec!["NET_ADMIN".into()],
        cap_drop: vec!["CHOWN".into()],
        no_new_privileges: true,
        seccomp: Seccomp::Unconfined,
        devices: vec![Device { source: "/dev/null".into(), target: "/dev/x".into(), access: Access::FULL }],
        read_only_root: true,
        mounts: vec![Mount {
            target: "/x".into(),
            source: MountSource::Tmpfs { size: None, mode: None, options: Vec::new() },
            read_only: false,
        }],
        files: vec![HostFile { source: "/etc/passwd".into(), target: "/etc/hosts".into() }],
        log: Log::Binary { program: "/bin/sh".into(), dir: "/".into(), max_size: Bytes(1), max_files: 1 },
        assignment: b"other".to_vec(),
        labels: [("key".to_owned(), "value".to_owned())].into(),
    };
    macro_rules! each {
        ($($field:ident),*) => { vec![$((stringify!($field), ContainerSpec { $field, ..base() })),*] };
    }
    #[rustfmt::skip]
    let changes = each!(
        id, owner, image, command, args, env, workdir, user, groups, tty, init, stop_signal, hostname, network,
        limits, reservations, ulimits, sysctls, shm_size, oom_score_adj, privileged, cap_add, cap_drop,
        no_new_privileges, seccomp, devices, read_only_root, mounts, files, log, assignment, labels
    );
    changes
}

/// With a logger, which a terminal needs.
fn base() -> ContainerSpec {
    let log = Log::Binary { program: "/bin/sh".into(), dir: "/tmp".into(), max_size: Bytes(1), max_files: 1 };
    ContainerSpec { log, ..spec() }
}

#[test]
fn every_field_reaches_containerd() {
    let before = told(&base());
    assert_eq!(before, told(&base()));
    for (field, changed) in changes() {
        assert_ne!(told(&changed), before, "{field} is not honoured");
    }
}

#[test]
fn a_record_is_changed_only_where_it_differs() {
    let record = |spec: &ContainerSpec| {
        let document = document(spec, &image(), &Meant::default(), "/warren", HOST).unwrap();
        new(spec, &image(), &document, &KEEPER()).unwrap()
    };
    let existing = record(&base());
    assert!(update(&existing, &record(&base())).is_none());
    let changed = ContainerSpec { assignment: b"x".to_vec(), hostname: "other".into(), ..base() };
    let (_, paths) = update(&existing, &record(&changed)).unwrap();
    assert_eq!(paths, ["spec", "extensions.warren.assignment"]);
    assert!(conflict(&existing, &record(&changed)).is_none());
    let other = ContainerSpec { owner: Owner { task: "other".into(), ..base().owner }, ..base() };
    assert!(conflict(&existing, &record(&other)).unwrap().contains("warren.task"));
}
