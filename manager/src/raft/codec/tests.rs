use std::collections::BTreeMap;

use warren_core::{NewTask, State};
use warren_types::{
    Bytes, Desired, EnvVar, Id, Mode, NodeDescription, NodeId, NodeStatus, Protocol, PublishMode,
    PublishedPort, Resources, ServiceId, ServiceSpec, TaskId, TaskReport, TaskSpec, TaskState, Timestamp,
};

use super::*;

const SERVICE: ServiceId = ServiceId(Id(7));
const NODE: NodeId = NodeId(Id(9));
const TASK: TaskId = TaskId { service: SERVICE, number: 1 };

fn spec() -> ServiceSpec {
    let mut task = TaskSpec::new("web:1".parse().unwrap());
    task.args = Some(vec!["-v".into()]);
    task.env = vec![EnvVar { name: "A".into(), value: "1".into() }];
    task.limits.memory = Some(Bytes(64 << 20));
    let port = PublishedPort {
        host_ip: None,
        host_port: 8080,
        container_port: 80,
        protocol: Protocol::Tcp,
        mode: PublishMode::Host,
    };
    ServiceSpec {
        name: "web".parse().unwrap(),
        labels: BTreeMap::from([("app".into(), "shop".into())]),
        mode: Mode::Replicated { replicas: 2 },
        task,
        ports: vec![port],
    }
}

fn description() -> NodeDescription {
    NodeDescription {
        resources: Resources { cpu: warren_types::MilliCpu(2000), memory: Bytes(4 << 30) },
        architecture: "amd64".into(),
        kernel: "6.1".into(),
        runtime: "containerd 1.6.20".into(),
        version: "0.1.0".into(),
        address: "10.0.0.1:8080".into(),
    }
}

fn report() -> TaskReport {
    TaskReport {
        task: TASK,
        attempt: 1,
        state: TaskState::Running,
        since: Timestamp(50),
        reason: String::new(),
        ready: true,
        exit: None,
        removed: false,
    }
}

/// One of each command, in an order in which most of them apply.
fn commands() -> Vec<Command> {
    let at = Timestamp(100);
    let (id, node, session, term) = (SERVICE, NODE, 1, 1);
    vec![
        Command::CreateCluster {
            id: warren_types::ClusterId(Id(1)),
            ranges: vec!["10.210.0.0/16".parse().unwrap()],
            at,
        },
        Command::RegisterNode { id: node, name: "n1".parse().unwrap(), description: description(), at },
        Command::OpenSession { node, description: description(), at },
        Command::CreateService { id, spec: spec(), at },
        Command::ScaleService { id, version: None, replicas: 3, at },
        Command::CreateTasks {
            term,
            service: id,
            revision: 1,
            slots: vec![
                NewTask { slot: 1, not_before: None },
                NewTask { slot: 2, not_before: Some(Timestamp(7)) },
            ],
            at,
        },
        Command::AssignTasks { term, placements: vec![(TASK, node)], at },
        Command::ReportTasks { node, session, reports: vec![report()], at },
        Command::SetNodeStatus { term, node, session, status: NodeStatus::Down, at },
        Command::SetDesired { term, tasks: vec![TASK], desired: Desired::Remove, at },
        Command::RemoveService { id, version: Some(3), at },
        Command::DeleteTasks { term, tasks: vec![TASK] },
        Command::DeleteService { term, id },
    ]
}

#[test]
fn every_command_survives_the_log() {
    for command in commands() {
        assert_eq!(decode(&encode(&command)).unwrap(), command);
    }
}

#[test]
fn a_state_survives_a_snapshot_after_every_command() {
    let mut state = State::new();
    for (index, command) in (1..).zip(commands()) {
        state.apply(1, index, &command);
        let mut bytes = Vec::new();
        write_snapshot(&state, &mut bytes).unwrap();
        let restored = read_snapshot(&bytes).unwrap();
        assert_eq!(restored, state, "after {command:?}");
    }
    assert_eq!(state.task_count(), 2, "the commands did what they should");
}

#[test]
fn what_cannot_be_read_is_refused_and_never_skipped() {
    assert!(matches!(decode(b"\xff\xff"), Err(CodecError::Damaged { .. })));
    // Field 1000, of a later version.
    assert!(matches!(decode(b"\xc2\x3e\x00"), Err(CodecError::Unknown(_))));
    assert!(matches!(decode(b""), Err(CodecError::Unknown(_))));
    let mut bytes = Vec::new();
    let mut state = State::new();
    for (index, command) in (1..).zip(commands()) {
        state.apply(1, index, &command);
    }
    write_snapshot(&state, &mut bytes).unwrap();
    for cut in 1..bytes.len() {
        if let Ok(shorter) = read_snapshot(&bytes[..cut]) {
            assert_ne!(shorter, state, "cut at {cut}");
        }
    }
}
