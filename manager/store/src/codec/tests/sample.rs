//! One of every stored object and command, with every field set somewhere; the golden tests check that.

mod managers;
mod networks;
mod storage;
mod users;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use warren_core::{ApplyOutcome, Command, FEATURE_LEVEL, NewTask, RolloutStep, State};
use warren_types::strategies::full_task_spec;
use warren_types::{
    AdmissionPolicy, AdmissionRules, AppArmor, Availability, Bytes, ClusterId, ClusterSettingsChange,
    DataPlane, DesiredTaskState, FailureAction, FailureOutcome, FailureRatio, Health, Id, ImageDigest,
    Limits, MilliCpu, NoNewPrivileges, NodeCheckOutcome, NodeCheckResult, NodeDescription, NodeId, NodeRole,
    NodeStatus, Parallelism, PauseCause, Placement, Protocol, PublishMode, PublishedPort, Resources,
    RolloutFailure, Seccomp, ServiceId, ServiceMode, ServiceSpec, SignatureKey, SignatureRule, Taint,
    TaskExit, TaskId, TaskReport, TaskSpec, TaskState, Timestamp, TokenHash, TokenId, UpdateOrder,
    UpdatePolicy, UserNamespace, VerificationChange, WireGuardKey,
};

const SERVICE: ServiceId = ServiceId(Id(7));
const GLOBAL: ServiceId = ServiceId(Id(8));
const PER_ZONE: ServiceId = ServiceId(Id(9));
const NODE: NodeId = NodeId(Id(9));
const JOINED: NodeId = NodeId(Id(10));
const DIGEST: &str = "sha256:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// The fields that it leaves out are those of [`per_zone`] and [`restricted`].
fn task_spec() -> TaskSpec {
    TaskSpec { apparmor: AppArmor::Default, user_namespace: None, ..full_task_spec() }
}

fn policy() -> UpdatePolicy {
    UpdatePolicy {
        parallelism: Parallelism::Percent(50),
        delay: Duration::from_secs(10),
        order: Some(UpdateOrder::StopFirst),
        monitor: Duration::from_secs(5),
        failure_ratio: FailureRatio(250),
        on_failure: Some(FailureAction::Pause),
    }
}

/// The task with that number failed in the revision.
fn failed(revision: u64, number: u64, outcome: FailureOutcome) -> RolloutStep {
    let (reason, at) = ("failed: exited with code 1".into(), Timestamp(250));
    RolloutStep::Failed(RolloutFailure { revision, task: task(number), slot: 1, reason, at, outcome })
}

fn spec() -> ServiceSpec {
    let port = PublishedPort {
        host_ip: Some([192, 0, 2, 1].into()),
        host_port: 8080,
        container_port: 80,
        protocol: Protocol::Tcp,
        mode: PublishMode::Host,
        prefer_local: false,
        client_affinity: false,
    };
    let ingress = PublishedPort {
        host_ip: None,
        host_port: 8443,
        mode: PublishMode::Ingress,
        prefer_local: true,
        client_affinity: true,
        ..port
    };
    let zone = "node.labels.zone in (a,b)".parse().unwrap();
    ServiceSpec {
        labels: BTreeMap::from([("app".into(), "shop".into()), ("tier".into(), "front".into())]),
        mode: ServiceMode::Replicated { replicas: 2 },
        ports: vec![port, ingress],
        placement: Placement {
            constraints: vec![zone],
            tolerations: vec!["dedicated=gpu:NoSchedule".parse().unwrap(), "*".parse().unwrap()],
            max_per_node: Some(4),
            preferences: vec![
                "spread=node.labels.zone".parse().unwrap(),
                "spread=node.labels.rack".parse().unwrap(),
            ],
        },
        replace_after: Duration::from_secs(90),
        publish_on: vec!["node.labels.edge == true".parse().unwrap()],
        update: policy(),
        rollback: UpdatePolicy { on_failure: Some(FailureAction::Continue), ..policy() },
        ..ServiceSpec::new("web".parse().unwrap(), task_spec())
    }
}

/// A service with a task per value of a label.
fn per_zone() -> ServiceSpec {
    let mut spec = global();
    spec.name = "cache".parse().unwrap();
    spec.task.user_namespace = Some(UserNamespace::Private);
    ServiceSpec { per: Some("node.labels.zone".parse().unwrap()), bootstrap: true, ..spec }
}

/// The same with other privileges.
fn restricted() -> ServiceSpec {
    let mut spec = per_zone();
    spec.task.no_new_privileges = NoNewPrivileges::Off;
    spec.task.seccomp = Seccomp::Config("conf".parse().unwrap());
    spec.task.apparmor = AppArmor::Profile("web".into());
    spec
}

/// A minimal service.
fn global() -> ServiceSpec {
    ServiceSpec {
        mode: ServiceMode::Global,
        ..ServiceSpec::new("agent".parse().unwrap(), TaskSpec::new("agent:1".parse().unwrap()))
    }
}

fn description() -> NodeDescription {
    NodeDescription {
        resources: Resources { cpu: MilliCpu(2000), memory: Bytes(4 << 30) },
        disk: Bytes(64 << 30),
        os: "linux".into(),
        architecture: "amd64".into(),
        kernel: "6.1".into(),
        runtime: "containerd 1.6.20".into(),
        version: "0.1.0".into(),
        address: "10.0.0.1:8080".into(),
        data_address: Some([192, 168, 1, 7].into()),
        wireguard_key: Some(WireGuardKey([7; 32])),
        apparmor_missing: true,
        labels: BTreeMap::from([("disk".into(), "ssd".into())]),
    }
}

fn taints() -> BTreeSet<Taint> {
    BTreeSet::from(["dedicated=gpu:NoSchedule".parse().unwrap(), "disk:NoExecute".parse().unwrap()])
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
        next_attempt: None,
        image: Some(DIGEST.parse().unwrap()),
        health: Health::Healthy,
    }
}

fn removed(number: u64) -> TaskReport {
    TaskReport {
        attempt: 2,
        state: TaskState::Failed,
        reason: "it used more memory than its limit".into(),
        ready: false,
        exit: Some(TaskExit { code: 137, out_of_memory: true }),
        removed: true,
        image: None,
        ..running(number)
    }
}

/// Waits for its next attempt.
fn waiting() -> TaskReport {
    TaskReport {
        task: TaskId { service: GLOBAL, number: 1 },
        state: TaskState::Starting,
        reason: "it is started again".into(),
        ready: false,
        next_attempt: Some(Timestamp(300)),
        image: None,
        ..running(1)
    }
}

fn new_task(slot: u32) -> NewTask {
    NewTask {
        slot,
        not_before: None,
        desired: DesiredTaskState::Running,
        replaces: None,
        bound_to: None,
        label_value: None,
    }
}

fn members() -> Vec<(&'static str, Command)> {
    let at = Timestamp(100);
    let (id, node, term) = (NODE, NODE, 1);
    let ranges = vec!["10.210.0.0/16".parse().unwrap(), "172.30.0.0/16".parse().unwrap()];
    let role = NodeRole::Worker;
    let create = |id, hash, max_uses: Option<u32>| Command::CreateToken {
        id: TokenId(Id(id)),
        role,
        hash: TokenHash([hash; 32]),
        expires_at: Some(Timestamp(500)),
        max_uses,
        labels: max_uses.map(|_| ("rack".into(), "r1".into())).into_iter().collect(),
        at,
    };
    let name = |name: &str| name.parse().unwrap();
    let (hash, label_add) = (TokenHash([1; 32]), BTreeMap::from([("zone".into(), "a".into())]));
    let (label_rm, availability) = (BTreeSet::from(["old".into()]), Some(Availability::Active));
    let (description, version) = (description(), Some(6));
    let join =
        |name, description| Command::JoinNode { hash, id: JOINED, name, description, taints: taints(), at };
    let role = NodeRole::Manager;
    let register =
        |name, description| Command::RegisterNode { id, name, role, description, taints: taints(), at };
    vec![
        (
            "create_cluster",
            Command::CreateCluster { id: ClusterId(Id(1)), ranges, feature_level: FEATURE_LEVEL, at },
        ),
        ("raise_level", Command::RaiseFeatureLevel { term, level: FEATURE_LEVEL }),
        ("create_token", create(1, 1, Some(3))),
        ("create_token_for_all", create(2, 2, None)),
        ("join_node", join(name("n2"), description.clone())),
        ("register_node", register(name("n1"), description.clone())),
        (
            "update_node",
            Command::UpdateNode {
                id,
                version,
                label_add,
                label_rm,
                availability,
                taint_add: taints(),
                taint_rm: BTreeSet::from(["old".parse().unwrap()]),
                at,
            },
        ),
        ("open_session", Command::OpenSession { node, description, manager: 1, at }),
    ]
}

fn services() -> Vec<(&'static str, Command)> {
    let (at, term, node, session) = (Timestamp(200), 1, NODE, 1);
    let id = SERVICE;
    let slots = vec![
        new_task(1),
        NewTask { not_before: Some(Timestamp(190)), ..new_task(2) },
        NewTask { not_before: Some(Timestamp(9000)), ..new_task(3) },
    ];
    let bound = vec![NewTask { bound_to: Some(node), ..new_task(2) }];
    let beside = vec![NewTask { desired: DesiredTaskState::Ready, replaces: Some(1), ..new_task(1) }];
    let create = |service, revision, slots| Command::CreateTasks { term, service, revision, slots, at };
    let advance = |revision, step| Command::AdvanceRollout { term, service: id, revision, step, at };
    let placements = vec![(task(1), node), (task(2), node), (waiting().task, node)];
    let reports = vec![running(1), running(2), removed(2), waiting()];
    let (spec_before, version) = (spec(), Some(30));
    let mut spec = spec();
    // The slot of a task that has ended is removed.
    spec.mode = ServiceMode::Replicated { replicas: 1 };
    spec.task.health = Some(storage::exec());
    vec![
        ("create_service", Command::CreateService { id, spec: spec_before, at }),
        ("create_global_service", Command::CreateService { id: GLOBAL, spec: global(), at }),
        ("scale_service", Command::ScaleService { id, version: Some(28), replicas: 3, at }),
        ("create_tasks", create(id, 1, slots)),
        ("create_bound_tasks", create(GLOBAL, 1, bound)),
        ("assign_tasks", Command::AssignTasks { term, placements, at }),
        ("report_tasks", Command::ReportTasks { node, session, reports, at }),
        ("complete_rollout", advance(1, RolloutStep::Completed)),
        ("update_service", Command::UpdateService { id, version, spec, force: true, at }),
        ("replace_tasks", create(id, 2, beside)),
        ("fail_rollout", advance(2, failed(2, 4, FailureOutcome::RolledBack { to: 1 }))),
        ("rollback_service", Command::RollbackService { id, version: Some(38), revision: Some(2), at }),
        ("count_updated", advance(4, RolloutStep::Updated(2))),
        ("pause_rollout", advance(4, failed(4, 4, FailureOutcome::Paused(PauseCause::Policy)))),
        ("resume_rollout", Command::ResumeRollout { id, version: Some(39), at }),
        ("pause_again", advance(4, failed(4, 4, FailureOutcome::Paused(PauseCause::IsRollback)))),
    ]
}

fn ends() -> Vec<(&'static str, Command)> {
    let (at, term, node, session) = (Timestamp(300), 1, NODE, 1);
    let id = SERVICE;
    let (label_add, label_rm) = (BTreeMap::new(), BTreeSet::new());
    let drain = Some(Availability::Drain);
    let change = ClusterSettingsChange {
        max_replicas_per_service: Some(20_000),
        task_history_limit: Some(3),
        range_add: vec!["10.212.0.0/16".parse().unwrap()],
        data_plane: Some(DataPlane::Wireguard),
        verification: VerificationChange {
            enabled: Some(true),
            remove_after: Some(7),
            timeout: Some(Duration::from_secs(60)),
            check_add: vec!["gpu=image:acme/check:1 --all".parse().unwrap()],
            check_rm: vec!["old".parse().unwrap()],
        },
        admission_policy: Some(AdmissionPolicy {
            operator: AdmissionRules {
                privileged: true,
                host_binds: vec!["/srv".into()],
                host_network: true,
                cap_add: vec!["NET_ADMIN".parse().unwrap()],
                devices: vec!["/dev/dri".into()],
                unconfined_seccomp: true,
                unconfined_apparmor: true,
                min_oom_score_adj: -5,
                metadata: true,
                bootstrap: true,
                registries: vec!["ghcr.io/acme".into()],
                limits: Limits { cpu: Some(MilliCpu(2000)), memory: Some(Bytes(1 << 30)), pids: Some(100) },
                max_replicas: Some(10),
            },
            signatures: vec![SignatureRule {
                registry: "ghcr.io".into(),
                keys: vec![SignatureKey::Ed25519([1; 32])],
            }],
        }),
        default_user_namespace: Some(UserNamespace::Private),
        no_new_privileges: Some(true),
        node_certificate_lifetime: Some(Duration::from_secs(30 * 24 * 60 * 60)),
    };
    let zones = vec![NewTask { label_value: Some("a".into()), ..new_task(1) }];
    let results = vec![NodeCheckResult::new("gpu", NodeCheckOutcome::Failed, "exited with code 1")];
    let mut all = vec![
        (
            "drain_node",
            Command::UpdateNode {
                id: node,
                version: None,
                label_add,
                label_rm,
                availability: drain,
                taint_add: Default::default(),
                taint_rm: Default::default(),
                at,
            },
        ),
        ("set_node_status", Command::SetNodeStatus { term, node, session, status: NodeStatus::Down, at }),
        ("remove_service", Command::RemoveService { id, version: Some(42), force: true, at }),
        (
            "set_desired",
            Command::SetDesiredTaskState {
                term,
                tasks: vec![task(1)],
                desired: DesiredTaskState::Remove,
                at,
            },
        ),
    ];
    all.extend(storage::released_volumes());
    all.extend([
        ("remove_token", Command::RemoveToken { id: TokenId(Id(2)), at }),
        ("delete_tokens", Command::DeleteTokens { term, tokens: vec![TokenId(Id(1))], at }),
        ("remove_node", Command::RemoveNode { id: JOINED, force: true, at }),
        ("release_addresses", networks::release()),
        ("update_cluster", Command::UpdateCluster { version: Some(0), change, at }),
        ("request_verification", Command::RequestVerification { nodes: [node].into(), at }),
        ("begin_verification", Command::BeginVerification { term, node, at }),
        ("record_verification", Command::RecordVerification { term, node, answered: 53, results, at }),
        ("create_service_per_zone", Command::CreateService { id: PER_ZONE, spec: per_zone(), at }),
        (
            "create_tasks_per_zone",
            Command::CreateTasks { term, service: PER_ZONE, revision: 1, slots: zones, at },
        ),
    ]);
    all.extend(users::commands());
    let (image, digest): (_, ImageDigest) = ("web:2".parse().unwrap(), DIGEST.parse().unwrap());
    let step = RolloutStep::ImagePinned(digest.clone());
    let unresolved = RolloutStep::ImageUnresolved("the registry has no answer".into());
    all.extend([
        ("pin_image", Command::AdvanceRollout { term, service: PER_ZONE, revision: 1, step, at }),
        (
            "restrict_service_per_zone",
            Command::UpdateService { id: PER_ZONE, version: None, spec: restricted(), force: false, at },
        ),
        (
            "image_unresolved",
            Command::AdvanceRollout { term, service: PER_ZONE, revision: 2, step: unresolved, at },
        ),
        ("record_import", Command::RecordImport { image, digest: Some(digest), at }),
    ]);
    all.extend([
        ("delete_tasks", Command::DeleteTasks { term, tasks: vec![task(2)] }),
        ("delete_service", Command::DeleteService { term, id }),
    ]);
    all
}

/// One or more of each command with a name, in an order in which all of them apply but the last.
pub fn commands() -> Vec<(&'static str, Command)> {
    [members(), storage::commands(), networks::commands(), services(), managers::commands(), ends()].concat()
}

/// The states after each of the commands. The last but two has every field of every object.
pub fn states() -> Vec<State> {
    let mut state = State::new();
    let apply = |(index, (name, command)): (u64, (&str, Command))| {
        let refused = matches!(state.apply(1, index, &command), ApplyOutcome::Rejected(_));
        assert_eq!(refused, name == "delete_service", "{name} as entry {index}");
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
