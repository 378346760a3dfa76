//! Converts a task's spec to a container spec. Each field is listed, so that none can be forgotten.

use std::collections::BTreeMap;
use std::path::PathBuf;

use sha2::{Digest, Sha256};
use warren_container_programs::ContainerPrograms;
use warren_network::files::TaskNetworkFiles;
use warren_runtime::{
    ContainerLimits, ContainerMount, ContainerMountSource, ContainerOwner, ContainerReservations,
    ContainerSpec, ContainerUlimit, DevicePermissions, Error, HostDevice, HostFile, MountPropagation,
    NetworkMode, OutputTarget, PrivateUsers, SeccompPolicy, StandardInput,
};
use warren_types::spec::{self, TaskSpec};
use warren_types::{Bytes, ClusterId, LogLimits, MilliCpu, Resources, SeccompProfile, TaskAssignment};

use super::{CLUSTER_LABEL, id};
use crate::handlers::images;

/// Node-specific inputs of a container.
#[derive(Debug, Clone)]
pub(in crate::tasks) struct ContainerInputs {
    pub network: NetworkMode,
    pub files: TaskNetworkFiles,
    /// The existing directory of its output.
    pub log: PathBuf,
    /// The pipe of its standard input, in an existing directory.
    pub stdin: PathBuf,
    pub hostname: String,
    pub programs: ContainerPrograms,
    /// Sources of its mounts, one each; `None` for tmpfs.
    pub sources: Vec<Option<PathBuf>>,
    /// Its secrets and configs.
    pub secret_objects: Vec<ContainerMount>,
    /// Its user namespace; `None`: that of the node.
    pub users: Option<PrivateUsers>,
    /// The seccomp profile in its config, if it has one of its own.
    pub seccomp: Option<SeccompProfile>,
}

/// Builds the container spec; `expanded` is the task's own spec with expanded templates. The record carries
/// the assignment, so that an agent without other state can adopt the container.
pub(in crate::tasks) fn container_spec(
    task: &TaskAssignment,
    expanded: &TaskSpec,
    attempt: u32,
    cluster: ClusterId,
    joined: &ContainerInputs,
) -> Result<ContainerSpec, Error> {
    let refused = |field: &str, reason: String| Error::InvalidSpec { field: field.to_string(), reason };
    let image = images::image_reference(task).map_err(|error| refused("image", error.to_string()))?;
    let owner = ContainerOwner { task: task.id.to_string(), attempt, spec_hash: hash(task) };
    let assignment = serde_json::to_vec(task).map_err(|error| refused("assignment", error.to_string()))?;
    let TaskSpec {
        // The image was resolved before.
        image: _,
        pull: _,
        resolve_image: _,
        command,
        args,
        env,
        container_labels,
        workdir,
        user,
        groups,
        // Both are in `joined`.
        hostname: _,
        hosts: _,
        tty,
        stdin,
        init,
        stop_signal,
        limits,
        reservations,
        ulimits,
        sysctls,
        shm_size,
        storage_limit,
        oom_score_adj,
        privileged,
        cap_add,
        cap_drop,
        no_new_privileges,
        seccomp,
        apparmor,
        // In `joined`.
        user_namespace: _,
        devices,
        read_only,
        mounts,
        // Also in `joined`.
        secrets: _,
        configs: _,
        // The agent, not the container, decides when it is checked, stopped and started.
        health: _,
        drain_delay: _,
        stop_grace: _,
        // Run in it by the agent.
        post_start: _,
        pre_stop: _,
        restart: _,
        on_disconnect: _,
        logs,
        // Also in `joined`.
        network: _,
        dns: _,
        allow_metadata: _,
    } = expanded;
    Ok(ContainerSpec {
        id: id(&task.id),
        owner,
        image,
        command: command.clone(),
        args: args.clone(),
        env: env.iter().map(|var| (var.name.clone(), var.value.clone())).collect(),
        workdir: workdir.clone(),
        user: user.clone(),
        groups: groups.clone(),
        tty: *tty,
        stdin: stdin
            .then(|| StandardInput { pipe: joined.stdin.clone(), program: joined.programs.init.clone() }),
        init: init.then(|| joined.programs.init.clone()),
        stop_signal: *stop_signal,
        hostname: joined.hostname.clone(),
        network: joined.network.clone(),
        limits: limits_of(limits),
        reservations: reservations_of(reservations),
        ulimits: ulimits.iter().map(ulimit).collect(),
        sysctls: sysctls.clone(),
        shm_size: *shm_size,
        storage_limit: *storage_limit,
        oom_score_adj: *oom_score_adj,
        privileged: *privileged,
        cap_add: cap_add.iter().map(ToString::to_string).collect(),
        cap_drop: cap_drop.iter().map(ToString::to_string).collect(),
        no_new_privileges: *no_new_privileges == spec::NoNewPrivileges::On,
        seccomp: match (seccomp, &joined.seccomp) {
            (spec::Seccomp::Default, _) => SeccompPolicy::Default,
            (spec::Seccomp::Unconfined, _) => SeccompPolicy::Unconfined,
            (spec::Seccomp::Config(_), Some(profile)) => SeccompPolicy::Profile(Box::new(profile.clone())),
            (spec::Seccomp::Config(name), None) => {
                return Err(refused("seccomp", format!("the profile in config {name} is not on this node")));
            }
        },
        apparmor: apparmor.clone(),
        user_namespace: joined.users.clone(),
        devices: devices.iter().map(device).collect(),
        read_only_root: *read_only,
        mounts: all_mounts(mounts, joined).map_err(|reason| refused("mounts", reason))?,
        files: files(&joined.files),
        log: log(logs, joined),
        assignment,
        labels: labels(container_labels, cluster),
    })
}

fn labels(of_spec: &BTreeMap<String, String>, cluster: ClusterId) -> BTreeMap<String, String> {
    let mut labels = of_spec.clone();
    labels.insert(CLUSTER_LABEL.to_string(), cluster.to_string());
    labels
}

/// Hash of the container's content: equal for tasks of one spec and image. A node takes the default of new privileges
/// as off, which is how specs had it before there was a default: containers of that time keep their hash.
fn hash(task: &TaskAssignment) -> String {
    let mut spec = task.spec.clone();
    if spec.no_new_privileges == spec::NoNewPrivileges::Default {
        spec.no_new_privileges = spec::NoNewPrivileges::Off;
    }
    let text = serde_json::to_vec(&(&spec, &task.digest));
    let text = text.expect("a spec is plain data with text keys");
    Sha256::digest(&text).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn limits_of(limits: &spec::Limits) -> ContainerLimits {
    let spec::Limits { cpu, memory, pids } = *limits;
    ContainerLimits { cpu, memory, pids: Some(pids.unwrap_or(spec::DEFAULT_PIDS_LIMIT)) }
}

fn reservations_of(reservations: &Resources) -> ContainerReservations {
    let Resources { cpu, memory } = *reservations;
    ContainerReservations {
        cpu: (cpu > MilliCpu(0)).then_some(cpu),
        memory: (memory > Bytes(0)).then_some(memory),
    }
}

fn ulimit(ulimit: &spec::Ulimit) -> ContainerUlimit {
    let spec::Ulimit { name, soft, hard } = ulimit;
    let bound = |value: &Option<u64>| value.unwrap_or(ContainerUlimit::UNLIMITED);
    ContainerUlimit { name: name.to_string(), soft: bound(soft), hard: bound(hard) }
}

fn device(device: &spec::Device) -> HostDevice {
    let spec::Device { source, target, access } = device;
    let spec::DeviceAccess { read, write, mknod } = *access;
    HostDevice {
        source: source.into(),
        target: target.into(),
        access: DevicePermissions { read, write, mknod },
    }
}

/// Secrets and configs last, since they may be below other mounts.
fn all_mounts(mounts: &[spec::Mount], joined: &ContainerInputs) -> Result<Vec<ContainerMount>, String> {
    let from = |place: usize| joined.sources.get(place).cloned().flatten();
    let own = mounts.iter().enumerate().map(|(place, desired)| mount(desired, from(place)));
    own.chain(joined.secret_objects.iter().cloned().map(Ok)).collect()
}

fn mount(mount: &spec::Mount, from: Option<PathBuf>) -> Result<ContainerMount, String> {
    let spec::Mount { target, source, read_only } = mount;
    let on_node = || from.ok_or_else(|| format!("the source of mount {target} is unknown"));
    let source = match source {
        // The path may be a template, and was expanded.
        spec::MountSource::Bind { path: _, propagation, recursive } => ContainerMountSource::Bind {
            path: on_node()?,
            recursive: *recursive,
            propagation: match propagation {
                spec::Propagation::Private => MountPropagation::Private,
                spec::Propagation::Slave => MountPropagation::Slave,
                spec::Propagation::Shared => MountPropagation::Shared,
            },
        },
        // Mounts within a volume do not belong to the volume.
        spec::MountSource::Volume { name: _, subpath: _, no_copy: _ } => ContainerMountSource::Bind {
            path: on_node()?,
            recursive: false,
            propagation: MountPropagation::Private,
        },
        spec::MountSource::Tmpfs { size, mode, exec } => ContainerMountSource::Tmpfs {
            size: *size,
            mode: *mode,
            options: if *exec { vec!["exec".to_string()] } else { Vec::new() },
        },
    };
    Ok(ContainerMount { target: target.into(), source, read_only: *read_only })
}

fn files(files: &TaskNetworkFiles) -> Vec<HostFile> {
    let TaskNetworkFiles { resolv_conf, hosts, hostname } = files;
    let file = |source: &PathBuf, target: &str| HostFile { source: source.clone(), target: target.into() };
    vec![file(resolv_conf, "/etc/resolv.conf"), file(hosts, "/etc/hosts"), file(hostname, "/etc/hostname")]
}

fn log(limits: &LogLimits, joined: &ContainerInputs) -> OutputTarget {
    let LogLimits { max_size, max_files } = *limits;
    OutputTarget::Binary {
        program: joined.programs.logger.clone(),
        dir: joined.log.clone(),
        max_size,
        max_files,
    }
}

#[cfg(test)]
mod tests {
    use warren_types::IdRange;

    use super::*;
    use crate::fixtures::{settings, task};
    use crate::tasks::container::tests::test_inputs;

    #[test]
    fn spec_hash_covers_what_runs() {
        let mut other = task(2);
        assert_eq!(hash(&task(1)), hash(&other));
        other.spec.args = Some(vec!["x".into()]);
        assert_ne!(hash(&task(1)), hash(&other));
        let unsettled = TaskAssignment { digest: None, ..task(1) };
        assert_ne!(hash(&task(1)), hash(&unsettled));
    }

    #[test]
    fn spec_hash_does_not_distinguish_what_a_node_does_not() {
        let asked = |no_new_privileges| {
            let mut task = task(1);
            task.spec.no_new_privileges = no_new_privileges;
            task
        };
        let off = asked(spec::NoNewPrivileges::Off);
        let written = serde_json::to_string(&off.spec).unwrap();
        assert!(written.contains(r#""noNewPrivileges":false"#), "{written}");
        assert_eq!(hash(&asked(spec::NoNewPrivileges::Default)), hash(&off));
        assert_ne!(hash(&asked(spec::NoNewPrivileges::On)), hash(&off));
    }

    fn full() -> TaskSpec {
        TaskSpec {
            command: Some(vec!["/serve".into()]),
            args: Some(vec!["-v".into()]),
            env: vec![spec::EnvVar { name: "A".into(), value: "b".into() }],
            container_labels: BTreeMap::from([("tier".into(), "db".into())]),
            workdir: Some("/srv".into()),
            user: Some("nobody:nogroup".into()),
            groups: vec!["audio".into()],
            tty: true,
            stdin: true,
            init: true,
            stop_signal: Some("SIGRTMIN+3".parse().unwrap()),
            limits: spec::Limits { cpu: Some(MilliCpu(500)), memory: Some(Bytes(64 << 20)), pids: Some(99) },
            reservations: Resources { cpu: MilliCpu(250), memory: Bytes(32 << 20) },
            ulimits: vec![spec::Ulimit { name: "nofile".parse().unwrap(), soft: Some(7), hard: None }],
            sysctls: BTreeMap::from([("net.core.somaxconn".into(), "512".into())]),
            shm_size: Some(Bytes(1 << 20)),
            storage_limit: Some(Bytes(2 << 30)),
            oom_score_adj: Some(-5),
            privileged: true,
            cap_add: vec!["NET_ADMIN".parse().unwrap()],
            cap_drop: vec!["CHOWN".parse().unwrap()],
            no_new_privileges: spec::NoNewPrivileges::On,
            seccomp: spec::Seccomp::Unconfined,
            apparmor: spec::AppArmor::Unconfined,
            devices: vec![spec::Device {
                source: "/dev/fuse".into(),
                target: "/dev/fuse2".into(),
                access: "rw".parse().unwrap(),
            }],
            read_only: true,
            mounts: vec![
                spec::Mount {
                    target: "/data".into(),
                    source: spec::MountSource::Bind {
                        path: "/srv/data".into(),
                        propagation: spec::Propagation::Slave,
                        recursive: true,
                    },
                    read_only: true,
                },
                spec::Mount {
                    target: "/tmp".into(),
                    source: spec::MountSource::Tmpfs {
                        size: Some(Bytes(8 << 20)),
                        mode: Some(0o700),
                        exec: true,
                    },
                    read_only: false,
                },
                spec::Mount {
                    target: "/volume".into(),
                    source: spec::MountSource::Volume {
                        name: "{{.Service.Name}}".into(),
                        subpath: Some("in/it".into()),
                        no_copy: true,
                    },
                    read_only: true,
                },
            ],
            logs: LogLimits { max_size: Bytes(1 << 20), max_files: 3 },
            ..TaskSpec::new("demo:1".parse().unwrap())
        }
    }

    #[test]
    fn every_field_of_a_spec_reaches_its_container() {
        let task = TaskAssignment { spec: full(), ..task(1) };
        let secret = ContainerMount {
            target: "/run/secrets/db".into(),
            source: ContainerMountSource::Bind {
                path: "/run/warren/secrets/x/db".into(),
                recursive: false,
                propagation: MountPropagation::Private,
            },
            read_only: true,
        };
        let sources = vec![Some("/srv/data".into()), None, Some("/data/volumes/web".into())];
        let joined = ContainerInputs { sources, secret_objects: vec![secret.clone()], ..test_inputs() };
        let made = container_spec(&task, &task.spec, 3, settings().cluster, &joined).unwrap();
        made.validate().unwrap();
        let programs = &joined.programs;
        let expected = ContainerSpec {
            command: Some(vec!["/serve".into()]),
            args: Some(vec!["-v".into()]),
            env: vec![("A".into(), "b".into())],
            workdir: Some("/srv".into()),
            user: Some("nobody:nogroup".into()),
            groups: vec!["audio".into()],
            tty: true,
            stdin: Some(StandardInput { pipe: joined.stdin.clone(), program: programs.init.clone() }),
            init: Some(programs.init.clone()),
            stop_signal: warren_types::Signal::from_number(37),
            hostname: "web-1".into(),
            network: NetworkMode::Joined("/run/netns/x".into()),
            limits: ContainerLimits {
                cpu: Some(MilliCpu(500)),
                memory: Some(Bytes(64 << 20)),
                pids: Some(99),
            },
            reservations: ContainerReservations { cpu: Some(MilliCpu(250)), memory: Some(Bytes(32 << 20)) },
            ulimits: vec![ContainerUlimit {
                name: "nofile".into(),
                soft: 7,
                hard: ContainerUlimit::UNLIMITED,
            }],
            sysctls: BTreeMap::from([("net.core.somaxconn".into(), "512".into())]),
            shm_size: Some(Bytes(1 << 20)),
            storage_limit: Some(Bytes(2 << 30)),
            oom_score_adj: Some(-5),
            privileged: true,
            cap_add: vec!["NET_ADMIN".into()],
            cap_drop: vec!["CHOWN".into()],
            no_new_privileges: true,
            seccomp: SeccompPolicy::Unconfined,
            apparmor: spec::AppArmor::Unconfined,
            devices: vec![HostDevice {
                source: "/dev/fuse".into(),
                target: "/dev/fuse2".into(),
                access: DevicePermissions { read: true, write: true, mknod: false },
            }],
            read_only_root: true,
            mounts: vec![
                ContainerMount {
                    target: "/data".into(),
                    source: ContainerMountSource::Bind {
                        path: "/srv/data".into(),
                        recursive: true,
                        propagation: MountPropagation::Slave,
                    },
                    read_only: true,
                },
                ContainerMount {
                    target: "/tmp".into(),
                    source: ContainerMountSource::Tmpfs {
                        size: Some(Bytes(8 << 20)),
                        mode: Some(0o700),
                        options: vec!["exec".into()],
                    },
                    read_only: false,
                },
                ContainerMount {
                    target: "/volume".into(),
                    source: ContainerMountSource::Bind {
                        path: "/data/volumes/web".into(),
                        recursive: false,
                        propagation: MountPropagation::Private,
                    },
                    read_only: true,
                },
                secret,
            ],
            files: files(&test_inputs().files),
            log: OutputTarget::Binary {
                program: programs.logger.clone(),
                dir: test_inputs().log.clone(),
                max_size: Bytes(1 << 20),
                max_files: 3,
            },
            assignment: made.assignment.clone(),
            labels: BTreeMap::from([
                ("tier".into(), "db".into()),
                (CLUSTER_LABEL.into(), settings().cluster.to_string()),
            ]),
            ..ContainerSpec::new(made.id.clone(), made.owner.clone(), made.image.clone())
        };
        assert_eq!(made, expected);
        assert!(made.image.digest().is_some(), "{}", made.image);
    }

    #[test]
    fn users_of_a_task_are_those_of_its_container() {
        let task = task(1);
        let users =
            PrivateUsers { ids: IdRange { first: 1_000_000 }, directory: "/run/warren/users/x".into() };
        let joined = ContainerInputs { users: Some(users.clone()), ..test_inputs() };
        let made = container_spec(&task, &task.spec, 1, settings().cluster, &joined).unwrap();
        made.validate().unwrap();
        assert_eq!(made.user_namespace, Some(users));
    }

    #[test]
    fn own_seccomp_profile_reaches_its_container() {
        let mut task = task(1);
        task.spec.seccomp = "config/strict".parse().unwrap();
        let of = |joined: &ContainerInputs| {
            container_spec(&task, &task.spec, 1, settings().cluster, joined).map(|made| made.seccomp)
        };
        let error = of(&test_inputs()).unwrap_err().to_string();
        assert_eq!(error, "invalid seccomp: the profile in config strict is not on this node");
        let profile = SeccompProfile::parse(br#"{"defaultAction": "SCMP_ACT_LOG"}"#).unwrap();
        let joined = ContainerInputs { seccomp: Some(profile.clone()), ..test_inputs() };
        assert_eq!(of(&joined).unwrap(), SeccompPolicy::Profile(Box::new(profile)));
    }

    #[test]
    fn empty_spec_sets_only_the_default_limit() {
        let task = task(1);
        let made = container_spec(&task, &task.spec, 1, settings().cluster, &test_inputs()).unwrap();
        let plain = ContainerSpec::new(made.id.clone(), made.owner.clone(), made.image.clone());
        let expected = ContainerSpec {
            hostname: made.hostname.clone(),
            network: made.network.clone(),
            files: made.files.clone(),
            log: made.log.clone(),
            assignment: made.assignment.clone(),
            labels: made.labels.clone(),
            limits: ContainerLimits { pids: Some(4096), ..Default::default() },
            ..plain
        };
        assert_eq!(made, expected);
    }
}
