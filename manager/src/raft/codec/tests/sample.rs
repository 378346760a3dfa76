//! One of everything that is stored, with every field set somewhere: the golden files hold the tests to that.

use std::collections::BTreeMap;
use std::time::Duration;

use warren_core::{Command, LEVEL, NewTask, Outcome, State};
use warren_types::{
    Bytes, ClusterId, Desired, EnvVar, Exit, Id, Limits, MilliCpu, Mode, NodeDescription, NodeId, NodeStatus,
    Protocol, PublishMode, PublishedPort, Resources, ServiceId, ServiceSpec, TaskId, TaskReport, TaskSpec,
    TaskState, Timestamp,
};

const SERVICE: ServiceId = ServiceId(Id(7));
const NODE: NodeId = NodeId(Id(9));

fn spec() -> ServiceSpec {
    let port = PublishedPort {
        host_ip: Some([192, 0, 2, 1].into()),
        host_port: 8080,
        container_port: 80,
        protocol: Protocol::Tcp,
        mode: PublishMode::Host,
    };
    let task = TaskSpec {
        image: "web:1".parse().unwrap(),
        command: Some(vec!["/bin/web".into()]),
        args: Some(vec!["-v".into(), "2".into()]),
        env: vec![EnvVar { name: "A".into(), value: "1".into() }],
        limits: Limits { cpu: Some(MilliCpu(500)), memory: Some(Bytes(64 << 20)) },
        reservations: Resources { cpu: MilliCpu(100), memory: Bytes(32 << 20) },
        stop_grace: Duration::from_millis(1500),
    };
    ServiceSpec {
        name: "web".parse().unwrap(),
        labels: BTreeMap::from([("app".into(), "shop".into()), ("tier".into(), "front".into())]),
        mode: Mode::Replicated { replicas: 2 },
        task,
        ports: vec![port],
    }
}

fn description() -> NodeDescription {
    NodeDescription {
        resources: Resources { cpu: MilliCpu(2000), memory: Bytes(4 << 30) },
        architecture: "amd64".into(),
        kernel: "6.1".into(),
        runtime: "containerd 1.6.20".into(),
        version: "0.1.0".into(),
        address: "10.0.0.1:8080".into(),
    }
}

fn task(number: u64) -> TaskId {
    TaskId { service: SERVICE, number }
}

fn running(number: u64) -> TaskReport {
    TaskReport {
        task: task(number),
        attempt: 1,
        state: TaskState::Running,
        since: Timestamp(101),
        reason: String::new(),
        ready: true,
        exit: None,
        removed: false,
    }
}

fn removed(number: u64) -> TaskReport {
    TaskReport {
        attempt: 2,
        state: TaskState::Failed,
        reason: "it used more memory than its limit".into(),
        ready: false,
        exit: Some(Exit { code: 137, out_of_memory: true }),
        removed: true,
        ..running(number)
    }
}

/// One of each command with a name, in an order in which all of them apply but the last.
pub fn commands() -> Vec<(&'static str, Command)> {
    let at = Timestamp(200);
    let (id, node, session, term) = (SERVICE, NODE, 1, 1);
    let ranges = vec!["10.210.0.0/16".parse().unwrap(), "172.30.0.0/16".parse().unwrap()];
    let slot = |slot, not_before| NewTask { slot, not_before };
    let slots = vec![slot(1, None), slot(2, Some(Timestamp(190))), slot(3, Some(Timestamp(9000)))];
    let (name, both) = ("n1".parse().unwrap(), vec![(task(1), node), (task(2), node)]);
    let reports = vec![running(1), running(2), removed(2)];
    vec![
        ("create_cluster", Command::CreateCluster { id: ClusterId(Id(1)), ranges, level: LEVEL, at }),
        ("raise_level", Command::RaiseLevel { term, level: LEVEL }),
        ("register_node", Command::RegisterNode { id: node, name, description: description(), at }),
        ("open_session", Command::OpenSession { node, description: description(), at }),
        ("create_service", Command::CreateService { id, spec: spec(), at }),
        ("scale_service", Command::ScaleService { id, version: Some(5), replicas: 3, at }),
        ("create_tasks", Command::CreateTasks { term, service: id, revision: 1, slots, at }),
        ("assign_tasks", Command::AssignTasks { term, placements: both, at }),
        ("report_tasks", Command::ReportTasks { node, session, reports, at }),
        ("set_node_status", Command::SetNodeStatus { term, node, session, status: NodeStatus::Down, at }),
        ("remove_service", Command::RemoveService { id, version: Some(6), at }),
        ("set_desired", Command::SetDesired { term, tasks: vec![task(1)], desired: Desired::Remove, at }),
        ("delete_tasks", Command::DeleteTasks { term, tasks: vec![task(2)] }),
        ("delete_service", Command::DeleteService { term, id }),
    ]
}

/// The states after each of the commands. The last but two has every field of every object.
pub fn states() -> Vec<State> {
    let mut state = State::new();
    let apply = |(index, (name, command)): (u64, (&str, Command))| {
        let refused = matches!(state.apply(1, index, &command), Outcome::Rejected(_));
        assert_eq!(refused, name == "delete_service", "{name}");
        state.clone()
    };
    (1..).zip(commands()).map(apply).collect()
}

/// A state with every field of every object.
pub fn state() -> State {
    let mut states = states();
    states.truncate(states.len() - 2);
    states.pop().unwrap()
}

/// As it is in a snapshot.
pub fn snapshot(state: &State) -> Vec<u8> {
    let mut bytes = Vec::new();
    super::write_snapshot(state, &mut bytes).unwrap();
    bytes
}
