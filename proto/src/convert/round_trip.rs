//! Whatever is sent arrives: every value survives types → wire → bytes → wire → types.

use std::net::Ipv4Addr;
use std::time::Duration;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use prost::Message;
use warren_types::{
    Assignment, AssignmentVersion, Bytes, Capability, ClusterId, ContentMount, Desired, Device, EnvVar, Exit,
    Health, HealthCheck, HostEntry, HttpHeader, Id, ImageDigest, Limits, LogLimits, MilliCpu, Mode, Mount,
    MountSource, NodeDescription, NodeId, NodeSettings, OnDisconnect, Placement, Probe, Propagation,
    Protocol, PublishMode, PublishedPort, PullPolicy, Resources, RestartCondition, RestartPolicy, Seccomp,
    ServiceId, ServiceSpec, Signal, TaskAssignment, TaskId, TaskReport, TaskSpec, TaskState, Timestamp,
    Ulimit, UlimitName, VolumeAssignment,
};

use super::stored_service_spec;
use crate::v1;

/// Through the bytes, not only through the structs: a field the encoding drops would show.
fn over_the_wire<W: Message + Default>(wire: &W) -> W {
    W::decode(wire.encode_to_vec().as_slice()).unwrap()
}

fn ids() -> impl Strategy<Value = Id> {
    any::<u128>().prop_map(Id)
}

fn task_ids() -> impl Strategy<Value = TaskId> {
    (ids(), 1..=u64::MAX).prop_map(|(service, number)| TaskId { service: ServiceId(service), number })
}

fn durations(from: u64) -> impl Strategy<Value = Duration> {
    (from..1 << 40).prop_map(Duration::from_millis)
}

fn addresses() -> impl Strategy<Value = Ipv4Addr> {
    any::<u32>().prop_map(Ipv4Addr::from)
}

fn resources() -> impl Strategy<Value = Resources> {
    any::<(u64, u64)>().prop_map(|(cpu, memory)| Resources { cpu: MilliCpu(cpu), memory: Bytes(memory) })
}

fn limits() -> impl Strategy<Value = Limits> {
    any::<(Option<u64>, Option<u64>, Option<u32>)>().prop_map(|(cpu, memory, pids)| Limits {
        cpu: cpu.map(MilliCpu),
        memory: memory.map(Bytes),
        pids,
    })
}

/// A text that is there; an empty one means on the wire that there is none.
fn given() -> impl Strategy<Value = Option<String>> {
    option::of("[a-z/:]{1,8}")
}

fn mounts() -> impl Strategy<Value = Vec<Mount>> {
    let bind = (".{0,8}", select(Propagation::ALL.to_vec()), any::<bool>())
        .prop_map(|(path, propagation, recursive)| MountSource::Bind { path, propagation, recursive });
    let tmpfs = any::<(Option<u64>, Option<u32>, bool)>().prop_map(|(size, mode, exec)| MountSource::Tmpfs {
        size: size.map(Bytes),
        mode,
        exec,
    });
    let volume = (".{0,8}", given(), any::<bool>())
        .prop_map(|(name, subpath, no_copy)| MountSource::Volume { name, subpath, no_copy });
    let mount = (".{0,8}", prop_oneof![bind, tmpfs, volume], any::<bool>());
    vec(mount.prop_map(|(target, source, read_only)| Mount { target, source, read_only }), 0..3)
}

fn content_mounts() -> impl Strategy<Value = ContentMount> {
    let source = "[a-z0-9]{1,8}".prop_map(|text| text.parse().unwrap());
    (source, given(), any::<[Option<u32>; 3]>(), any::<bool>()).prop_map(
        |(source, target, [uid, gid, mode], template)| ContentMount {
            source,
            target,
            uid,
            gid,
            mode,
            template,
        },
    )
}

fn health_checks() -> impl Strategy<Value = HealthCheck> {
    let header = (".{0,8}", ".{0,8}").prop_map(|(name, value)| HttpHeader { name, value });
    let http = (any::<u16>(), ".{0,8}", vec(header, 0..3)).prop_map(|(port, path, headers)| Probe::Http {
        port,
        path,
        headers,
    });
    let tcp = any::<u16>().prop_map(|port| Probe::Tcp { port });
    let exec = vec(".{0,8}", 0..3).prop_map(|command| Probe::Exec { command });
    let periods = (durations(0), durations(0), durations(0), durations(0));
    (prop_oneof![http, tcp, exec], periods, any::<u32>()).prop_map(
        |(probe, (interval, timeout, start_period, start_interval), retries)| HealthCheck {
            probe,
            interval,
            timeout,
            retries,
            start_period,
            start_interval,
        },
    )
}

fn devices() -> impl Strategy<Value = Vec<Device>> {
    let access = select(vec!["r", "rw", "rwm", "m"]).prop_map(|text| text.parse().unwrap());
    vec(
        (".{0,8}", ".{0,8}", access).prop_map(|(source, target, access)| Device { source, target, access }),
        0..3,
    )
}

fn ulimits() -> impl Strategy<Value = Vec<Ulimit>> {
    let name = select(UlimitName::names().to_vec()).prop_map(|name| name.parse().unwrap());
    let ulimit = (name, any::<Option<u64>>(), any::<Option<u64>>());
    vec(ulimit.prop_map(|(name, soft, hard)| Ulimit { name, soft, hard }), 0..3)
}

fn capabilities() -> impl Strategy<Value = Vec<Capability>> {
    vec(select(Capability::names().to_vec()).prop_map(|name| name.parse().unwrap()), 0..3)
}

fn restarts() -> impl Strategy<Value = RestartPolicy> {
    (select(RestartCondition::ALL.to_vec()), durations(0), any::<u32>(), durations(0))
        .prop_map(|(condition, delay, max, window)| RestartPolicy { condition, delay, max, window })
}

fn task_specs() -> impl Strategy<Value = TaskSpec> {
    let words = || option::of(vec(".{0,8}", 0..4));
    let var = ("[A-Z_]{1,8}", ".{0,8}").prop_map(|(name, value)| EnvVar { name, value });
    let host = (".{0,8}", addresses()).prop_map(|(name, address)| HostEntry { name, address });
    let image = "[a-z]{1,8}(:[a-z0-9]{1,4})?".prop_map(|text| text.parse().unwrap());
    let signal = option::of((1..=64).prop_map(|number| Signal::from_number(number).unwrap()));
    let logs = any::<(u64, u32)>()
        .prop_map(|(max_size, max_files)| LogLimits { max_size: Bytes(max_size), max_files });
    let seccomp = select(vec![Seccomp::Default, Seccomp::Unconfined]);
    let process = (words(), words(), vec(var, 0..4), given(), given(), vec(".{0,8}", 0..3), given());
    let alone =
        option::of(durations(0)).prop_map(|time| time.map_or(OnDisconnect::Keep, OnDisconnect::StopAfter));
    let life = (vec(host, 0..3), signal, durations(0), (restarts(), alone), logs);
    let bounds = (limits(), resources(), ulimits(), btree_map(".{0,8}", ".{0,8}", 0..3));
    let numbers = any::<(Option<u64>, Option<i32>, [bool; 5])>();
    let rights = (capabilities(), capabilities(), seccomp, devices(), mounts());
    let given = (vec(content_mounts(), 0..3), vec(content_mounts(), 0..3), option::of(health_checks()));
    let life = (life, given);
    (image, select(PullPolicy::ALL.to_vec()), process, life, bounds, numbers, rights).prop_map(
        |(image, pull, process, life, bounds, numbers, rights)| {
            let (command, args, env, workdir, user, groups, hostname) = process;
            let ((hosts, stop_signal, stop_grace, (restart, on_disconnect), logs), given) = life;
            let (secrets, configs, health) = given;
            let (limits, reservations, ulimits, sysctls) = bounds;
            let (shm_size, oom_score_adj, [tty, init, privileged, no_new_privileges, read_only]) = numbers;
            let (cap_add, cap_drop, seccomp, devices, mounts) = rights;
            let shm_size = shm_size.map(Bytes);
            TaskSpec {
                image,
                pull,
                command,
                args,
                env,
                workdir,
                user,
                groups,
                hostname,
                hosts,
                tty,
                init,
                stop_signal,
                stop_grace,
                limits,
                reservations,
                ulimits,
                sysctls,
                shm_size,
                oom_score_adj,
                privileged,
                cap_add,
                cap_drop,
                no_new_privileges,
                seccomp,
                devices,
                read_only,
                mounts,
                secrets,
                configs,
                health,
                restart,
                on_disconnect,
                logs,
            }
        },
    )
}

fn digests() -> impl Strategy<Value = ImageDigest> {
    "sha256:[0-9a-f]{64}".prop_map(|text| text.parse().unwrap())
}

fn placements() -> impl Strategy<Value = Placement> {
    let constraint = select(vec!["node.name == a", "node.labels.zone in (a,b)", "node.labels.x exists"]);
    let constraints = vec(constraint.prop_map(|text| text.parse().unwrap()), 0..3);
    (constraints, any::<Option<u32>>())
        .prop_map(|(constraints, max_per_node)| Placement { constraints, max_per_node })
}

fn ports() -> impl Strategy<Value = Vec<PublishedPort>> {
    let port = (option::of(addresses()), 1..=u16::MAX, 1..=u16::MAX).prop_map(
        |(host_ip, host_port, container_port)| PublishedPort {
            host_ip,
            host_port,
            container_port,
            protocol: Protocol::Tcp,
            mode: PublishMode::Host,
        },
    );
    vec(port, 0..4)
}

fn service_specs() -> impl Strategy<Value = ServiceSpec> {
    let name = "[a-z0-9]{1,8}".prop_map(|text| text.parse().unwrap());
    let replicated = any::<u32>().prop_map(|replicas| Mode::Replicated { replicas });
    let mode = prop_oneof![replicated, Just(Mode::Global)];
    let labels = btree_map(".{0,8}", ".{0,8}", 0..4);
    (name, labels, mode, task_specs(), ports(), placements(), durations(0)).prop_map(
        |(name, labels, mode, task, ports, placement, replace_after)| ServiceSpec {
            name,
            labels,
            mode,
            task,
            ports,
            placement,
            replace_after,
        },
    )
}

fn task_assignments() -> impl Strategy<Value = TaskAssignment> {
    let desired = select(Desired::ALL.to_vec());
    let service = "[a-z0-9]{1,8}".prop_map(|text| text.parse().unwrap());
    let place = (task_ids(), service, any::<u32>(), any::<u64>());
    let name = "[a-z0-9]{1,8}".prop_map(|text| text.parse().unwrap());
    let volume = (name, btree_map(".{0,8}", ".{0,8}", 0..3))
        .prop_map(|(name, options)| VolumeAssignment { name, options });
    let ports = (ports(), addresses(), btree_map(".{0,8}", ".{0,8}", 0..3), vec(volume, 0..3));
    (place, task_specs(), option::of(digests()), ports, desired).prop_map(
        |(
            (id, service, slot, revision),
            spec,
            digest,
            (ports, address, service_labels, volumes),
            desired,
        )| {
            TaskAssignment {
                id,
                service,
                slot,
                revision,
                spec,
                digest,
                ports,
                address,
                desired,
                service_labels,
                volumes,
            }
        },
    )
}

fn reports() -> impl Strategy<Value = TaskReport> {
    let state = select(TaskState::ALL.to_vec());
    let exit = any::<Option<(i32, bool)>>();
    let times = (any::<u64>(), any::<Option<u64>>());
    let said = (".{0,16}", option::of(digests()), select(Health::ALL.to_vec()));
    (task_ids(), any::<u32>(), state, times, said, any::<[bool; 2]>(), exit).prop_map(
        |(task, attempt, state, (since, next), (reason, image, health), [ready, removed], exit)| TaskReport {
            task,
            attempt,
            state,
            since: Timestamp(since),
            reason,
            ready,
            exit: exit.map(|(code, out_of_memory)| Exit { code, out_of_memory }),
            removed,
            next_attempt: next.map(Timestamp),
            image,
            health,
        },
    )
}

fn settings() -> impl Strategy<Value = NodeSettings> {
    let net = || (addresses(), 0..=32u8).prop_map(|(ip, bits)| ipnet::Ipv4Net::new(ip, bits).unwrap());
    let named = ("[a-z0-9]{1,8}".prop_map(|text| text.parse().unwrap()), btree_map(".{0,8}", ".{0,8}", 0..3));
    (ids(), ids(), named, net(), vec(net(), 0..4), durations(1), durations(1)).prop_map(
        |(cluster, node, (name, labels), subnet, ranges, heartbeat, sync)| {
            let (cluster, node) = (ClusterId(cluster), NodeId(node));
            let managers = vec!["10.0.0.7:8080".parse().unwrap(), "[fd00::7]:1".parse().unwrap()];
            NodeSettings { cluster, node, name, labels, subnet, ranges, heartbeat, sync, managers }
        },
    )
}

fn descriptions() -> impl Strategy<Value = NodeDescription> {
    let labels = btree_map(".{0,8}", ".{0,8}", 0..3);
    (resources(), any::<u64>(), proptest::array::uniform6(".{0,8}"), labels).prop_map(
        |(resources, disk, [os, architecture, kernel, runtime, version, address], labels)| NodeDescription {
            resources,
            disk: Bytes(disk),
            os,
            architecture,
            kernel,
            runtime,
            version,
            address,
            labels,
        },
    )
}

proptest! {
    #[test]
    fn service_specs_survive(spec in service_specs()) {
        let wire = over_the_wire(&v1::ServiceSpec::from(&spec));
        prop_assert_eq!(stored_service_spec(wire.clone()), Ok(spec.clone()));
        // What a person sends is judged by `validate` and by nothing else.
        prop_assert_eq!(ServiceSpec::try_from(wire), spec.validate().into_result(spec));
    }

    #[test]
    fn assignments_survive(tasks in vec(task_assignments(), 0..4), version in any::<(u64, u64)>()) {
        let version = AssignmentVersion { incarnation: version.0, index: version.1 };
        let assignment = Assignment { version, tasks };
        let wire = over_the_wire(&v1::Assignment::from(&assignment));
        prop_assert_eq!(Assignment::try_from(wire), Ok(assignment));
    }

    #[test]
    fn reports_survive(report in reports()) {
        let wire = over_the_wire(&v1::TaskReport::from(&report));
        prop_assert_eq!(TaskReport::try_from(wire), Ok(report));
    }

    #[test]
    fn settings_survive(settings in settings()) {
        let wire = over_the_wire(&v1::NodeSettings::from(&settings));
        prop_assert_eq!(NodeSettings::try_from(wire), Ok(settings));
    }

    #[test]
    fn descriptions_survive(description in descriptions()) {
        let wire = over_the_wire(&v1::NodeDescription::from(&description));
        prop_assert_eq!(NodeDescription::try_from(wire), Ok(description));
    }
}
