//! Whatever is sent arrives: every value survives types → wire → bytes → wire → types.

use std::net::Ipv4Addr;
use std::time::Duration;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use prost::Message;
use warren_types::{
    Assignment, AssignmentVersion, Bytes, ClusterId, Desired, EnvVar, Exit, Id, Limits, MilliCpu, Mode,
    NodeDescription, NodeId, NodeSettings, Protocol, PublishMode, PublishedPort, Resources, ServiceId,
    ServiceSpec, TaskAssignment, TaskId, TaskReport, TaskSpec, TaskState, Timestamp,
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
    any::<(Option<u64>, Option<u64>)>()
        .prop_map(|(cpu, memory)| Limits { cpu: cpu.map(MilliCpu), memory: memory.map(Bytes) })
}

fn task_specs() -> impl Strategy<Value = TaskSpec> {
    let words = || option::of(vec(".{0,8}", 0..4));
    let var = ("[A-Z_]{1,8}", ".{0,8}").prop_map(|(name, value)| EnvVar { name, value });
    let image = "[a-z]{1,8}(:[a-z0-9]{1,4})?".prop_map(|text| text.parse().unwrap());
    (image, words(), words(), vec(var, 0..4), limits(), resources(), durations(0)).prop_map(
        |(image, command, args, env, limits, reservations, stop_grace)| TaskSpec {
            image,
            command,
            args,
            env,
            limits,
            reservations,
            stop_grace,
        },
    )
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
    (name, btree_map(".{0,8}", ".{0,8}", 0..4), any::<u32>(), task_specs(), ports()).prop_map(
        |(name, labels, replicas, task, ports)| {
            let mode = Mode::Replicated { replicas };
            ServiceSpec { name, labels, mode, task, ports }
        },
    )
}

fn task_assignments() -> impl Strategy<Value = TaskAssignment> {
    let desired = proptest::sample::select(Desired::ALL.to_vec());
    let service = "[a-z0-9]{1,8}".prop_map(|text| text.parse().unwrap());
    let place = (task_ids(), service, any::<u32>(), any::<u64>());
    (place, task_specs(), ports(), addresses(), desired).prop_map(
        |((id, service, slot, revision), spec, ports, address, desired)| TaskAssignment {
            id,
            service,
            slot,
            revision,
            spec,
            ports,
            address,
            desired,
        },
    )
}

fn reports() -> impl Strategy<Value = TaskReport> {
    let state = proptest::sample::select(TaskState::ALL.to_vec());
    let exit = any::<Option<(i32, bool)>>();
    (task_ids(), any::<u32>(), state, any::<u64>(), ".{0,16}", any::<[bool; 2]>(), exit).prop_map(
        |(task, attempt, state, since, reason, [ready, removed], exit)| {
            let exit = exit.map(|(code, out_of_memory)| Exit { code, out_of_memory });
            TaskReport { task, attempt, state, since: Timestamp(since), reason, ready, exit, removed }
        },
    )
}

fn settings() -> impl Strategy<Value = NodeSettings> {
    let net = || (addresses(), 0..=32u8).prop_map(|(ip, bits)| ipnet::Ipv4Net::new(ip, bits).unwrap());
    (ids(), ids(), net(), vec(net(), 0..4), durations(1), durations(1)).prop_map(
        |(cluster, node, subnet, ranges, heartbeat, sync)| {
            let (cluster, node) = (ClusterId(cluster), NodeId(node));
            NodeSettings { cluster, node, subnet, ranges, heartbeat, sync }
        },
    )
}

fn descriptions() -> impl Strategy<Value = NodeDescription> {
    (resources(), proptest::array::uniform5(".{0,8}")).prop_map(
        |(resources, [architecture, kernel, runtime, version, address])| NodeDescription {
            resources,
            architecture,
            kernel,
            runtime,
            version,
            address,
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
