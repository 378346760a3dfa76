//! Every value survives types → wire → bytes → wire → types.

use std::net::Ipv4Addr;
use std::time::Duration;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use prost::Message;
use warren_types::strategies::{service_specs, task_specs};
use warren_types::{
    Assignment, AssignmentVersion, Bytes, CaDigest, ClusterId, DataPlane, DesiredTaskState, Health, Id,
    ImageDigest, LogLimits, ManagerId, MilliCpu, NodeDescription, NodeId, NodeSettings, Resources,
    RetainedLog, ServiceId, ServiceSpec, TaskAssignment, TaskExit, TaskId, TaskReport, TaskState, Timestamp,
    VolumeAssignment, WireGuardKey,
};

use super::stored_service_spec;
use crate::v1;

/// Through the bytes, not only through the structs: a field that the encoding drops would be found.
fn encode_and_decode<W: Message + Default>(wire: &W) -> W {
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

fn digests() -> impl Strategy<Value = ImageDigest> {
    "sha256:[0-9a-f]{64}".prop_map(|text| text.parse().unwrap())
}

fn task_assignments() -> impl Strategy<Value = TaskAssignment> {
    let desired = select(DesiredTaskState::ALL.to_vec());
    let service = "[a-z0-9]{1,8}".prop_map(|text| text.parse().unwrap());
    let place = (task_ids(), service, any::<u32>(), any::<u64>());
    let name = "[a-z0-9]{1,8}".prop_map(|text| text.parse().unwrap());
    let volume = (name, btree_map(".{0,8}", ".{0,8}", 0..3))
        .prop_map(|(name, options)| VolumeAssignment { name, options });
    let ports = (
        service_specs().prop_map(|spec| spec.ports),
        addresses(),
        btree_map(".{0,8}", ".{0,8}", 0..3),
        vec(volume, 0..3),
        any::<bool>(),
    );
    (place, task_specs(), option::of(digests()), ports, desired).prop_map(
        |(
            (id, service, slot, revision),
            spec,
            digest,
            (ports, address, service_labels, volumes, bootstrap),
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
                bootstrap,
            }
        },
    )
}

fn reports() -> impl Strategy<Value = TaskReport> {
    let state = select(TaskState::ALL.to_vec());
    let exit = any::<Option<(i32, bool)>>();
    let times = (any::<u64>(), any::<Option<u64>>());
    let output = (".{0,16}", option::of(digests()), select(Health::ALL.to_vec()));
    (task_ids(), any::<u32>(), state, times, output, any::<[bool; 2]>(), exit).prop_map(
        |(task, attempt, state, (since, next), (reason, image, health), [ready, removed], exit)| TaskReport {
            task,
            attempt,
            state,
            since: Timestamp(since),
            reason,
            ready,
            exit: exit.map(|(code, out_of_memory)| TaskExit { code, out_of_memory }),
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
    let place = (1..=u16::MAX, vec(net(), 1..4), vec(net(), 0..4));
    let data_plane = select(DataPlane::ALL.to_vec());
    let authority = option::of(any::<[u8; 32]>().prop_map(CaDigest::from_bytes));
    (ids(), ids(), named, place, (data_plane, authority), durations(1), durations(1)).prop_map(
        |(
            cluster,
            node,
            (name, labels),
            (number, subnets, ranges),
            (data_plane, authority),
            heartbeat,
            sync,
        )| {
            let (cluster, node) = (ClusterId(cluster), NodeId(node));
            let managers = vec!["10.0.0.7:8080".parse().unwrap(), "[fd00::7]:1".parse().unwrap()];
            NodeSettings {
                cluster,
                node,
                name,
                labels,
                number,
                subnets,
                ranges,
                data_plane,
                heartbeat,
                sync,
                managers,
                authority,
                revoked_managers: vec![ManagerId(cluster.0)],
            }
        },
    )
}

fn descriptions() -> impl Strategy<Value = NodeDescription> {
    let labels = btree_map(".{0,8}", ".{0,8}", 0..3);
    let keys = any::<[u8; 32]>().prop_map(WireGuardKey);
    let data = (option::of(addresses()), option::of(keys), any::<bool>());
    (resources(), any::<u64>(), proptest::array::uniform6(".{0,8}"), labels, data).prop_map(
        |(
            resources,
            disk,
            [os, architecture, kernel, runtime, version, address],
            labels,
            (data_address, wireguard_key, apparmor_missing),
        )| NodeDescription {
            data_address,
            wireguard_key,
            apparmor_missing,
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
    fn service_spec_round_trip(spec in service_specs()) {
        let wire = encode_and_decode(&v1::ServiceSpec::from(&spec));
        prop_assert_eq!(stored_service_spec(wire.clone()), Ok(spec.clone()));
        prop_assert_eq!(ServiceSpec::try_from(wire), Ok(spec));
    }

    #[test]
    fn assignment_round_trip(
        tasks in vec(task_assignments(), 0..4),
        version in any::<(u64, u64)>(),
        logs in vec(any::<(u32, u64, u32)>(), 0..4),
    ) {
        let version = AssignmentVersion { incarnation: version.0, index: version.1 };
        let log = |(slot, max_size, max_files): (u32, u64, u32)| RetainedLog {
            task: TaskId { service: ServiceId(Id(7)), number: max_size },
            slot,
            limits: LogLimits { max_size: Bytes(max_size), max_files },
        };
        let assignment = Assignment { version, tasks, retained: logs.into_iter().map(log).collect() };
        let wire = encode_and_decode(&v1::Assignment::from(&assignment));
        prop_assert_eq!(Assignment::try_from(wire), Ok(assignment));
    }

    #[test]
    fn report_round_trip(report in reports()) {
        let wire = encode_and_decode(&v1::TaskReport::from(&report));
        prop_assert_eq!(TaskReport::try_from(wire), Ok(report));
    }

    #[test]
    fn node_settings_round_trip(settings in settings()) {
        let wire = encode_and_decode(&v1::NodeSettings::from(&settings));
        prop_assert_eq!(NodeSettings::try_from(wire), Ok(settings));
    }

    #[test]
    fn node_description_round_trip(description in descriptions()) {
        let wire = encode_and_decode(&v1::NodeDescription::from(&description));
        prop_assert_eq!(NodeDescription::try_from(wire), Ok(description));
    }
}
