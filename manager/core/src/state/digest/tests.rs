use std::sync::Arc;
use std::time::Duration;

use warren_types::strategies::service_specs;
use warren_types::{
    Availability, BoxedDefault, Bytes, CaDigest, ClusterId, DesiredTaskState, FailureOutcome, MilliCpu, Node,
    NodeCheckOutcome, NodeCheckResult, NodeCondition, NodeDescription, NodeId, NodeRole, NodeStatus,
    NodeVerification, PauseCause, Placement, Protocol, PublicKeyHash, PublishMode, PublishedPort, Resources,
    RolloutFailure, RolloutKind, SealedData, SecretObjectId, SecretObjectKeyId, SecretObjectKind,
    SecretObjectVersion, ServiceId, ServiceMode, ServiceSpec, SignatureKey, SignatureRule, TaskSpec,
    TaskState, Timestamp, UnlockKeyId, VerificationState, WireGuardKey,
};
use xxhash_rust::xxh3::xxh3_64;

use super::*;

mod members;
mod storage;
mod tokens;
mod users;

fn a_spec() -> ServiceSpec {
    let port = PublishedPort {
        host_ip: None,
        host_port: 8080,
        container_port: 80,
        protocol: Protocol::Tcp,
        mode: PublishMode::Host,
        prefer_local: false,
        client_affinity: false,
    };
    ServiceSpec {
        labels: [("tier".into(), "front".into())].into(),
        mode: ServiceMode::Replicated { replicas: 3 },
        ports: vec![port],
        ..ServiceSpec::new("web".parse().unwrap(), TaskSpec::new("web:1".parse().unwrap()))
    }
}

fn a_revision() -> Revision {
    let ServiceSpec { task, ports, placement, .. } = a_spec();
    Revision {
        number: 1,
        created_at: Timestamp(10),
        task,
        ports,
        placement,
        force_count: 0,
        secret_objects: Vec::new(),
        labels: BTreeMap::new(),
        user_namespace: UserNamespace::Host,
        default_no_new_privileges: false,
    }
}

fn used(number: u64) -> SecretObjectVersion {
    SecretObjectVersion {
        kind: SecretObjectKind::Secret,
        name: "key".parse().unwrap(),
        id: SecretObjectId(Id(1)),
        number,
    }
}

fn pin(letter: char) -> warren_types::ImageDigest {
    format!("sha256:{}", letter.to_string().repeat(64)).parse().unwrap()
}

fn constraints(text: &str) -> Placement {
    Placement { constraints: vec![text.parse().unwrap()], ..Placement::default() }
}

fn a_service() -> Service {
    let spec = a_spec();
    Service {
        id: ServiceId(Id(7)),
        version: 4,
        created_at: Timestamp(10),
        updated_at: Timestamp(20),
        revision: Arc::new(a_revision()),
        history: Vec::new(),
        pins: BTreeMap::new(),
        spec: Arc::new(spec),
        removing: false,
        next_task_number: 2,
        rollout: Default::default(),
        virtual_addresses: BTreeMap::new(),
    }
}

fn a_failure() -> RolloutFailure {
    let task = TaskId { service: ServiceId(Id(7)), number: 9 };
    let (reason, outcome) = ("failed".into(), FailureOutcome::RolledBack { to: 1 });
    RolloutFailure { revision: 1, task, slot: 1, reason, at: Timestamp(40), outcome }
}

fn paused(cause: PauseCause) -> RolloutFailure {
    RolloutFailure { outcome: FailureOutcome::Paused(cause), ..a_failure() }
}

fn a_task() -> Task {
    Task {
        id: TaskId { service: ServiceId(Id(7)), number: 1 },
        slot: 1,
        revision: a_service().revision,
        created_at: Timestamp(30),
        node: None,
        address: None,
        desired: DesiredTaskState::Running,
        observed: TaskStatus::new(Timestamp(30)),
        rare: BoxedDefault::default(),
    }
}

fn a_node() -> Node {
    Node {
        id: NodeId(Id(9)),
        name: "n1".parse().unwrap(),
        version: 2,
        created_at: Timestamp(1),
        role: NodeRole::Worker,
        labels: BTreeMap::new(),
        taints: Default::default(),
        availability: Availability::Active,
        description: NodeDescription {
            resources: Resources { cpu: MilliCpu(1000), memory: Bytes(1 << 30) },
            disk: Bytes(1 << 40),
            os: "linux".into(),
            labels: BTreeMap::new(),
            architecture: "amd64".into(),
            kernel: "6.1".into(),
            runtime: "containerd 1.6.20".into(),
            version: "0.1.0".into(),
            address: "192.0.2.1".into(),
            data_address: None,
            wireguard_key: None,
            apparmor_missing: false,
        },
        number: 1,
        subnets: vec!["10.0.0.0/24".parse().unwrap()],
        status: NodeStatus::Unknown,
        status_since: Timestamp(1),
        session: 0,
        assignment_index: 2,
        conditions: [].into(),
        manager: None,
        verification: None,
        key: None,
    }
}

/// All objects that differ from `object` by one of `changes` have different hashes.
#[track_caller]
fn check<T: Clone>(hash: impl Fn(&T) -> u64, object: &T, changes: &[fn(&mut T)]) {
    let mut seen = vec![hash(object)];
    for (number, change) in changes.iter().enumerate() {
        let mut other = object.clone();
        change(&mut other);
        let found = hash(&other);
        assert!(!seen.contains(&found), "change {number} has the hash of an earlier one");
        seen.push(found);
    }
}

#[test]
fn every_task_field_changes_hash() {
    let changes: &[fn(&mut Task)] = &[
        |t| t.id.service = ServiceId(Id(7 << 64)),
        |t| t.id.number = 2,
        |t| t.slot = 2,
        |t| Arc::make_mut(&mut t.revision).number = 2,
        |t| t.created_at = Timestamp(31),
        |t| t.rare.update(|s| s.not_before = Some(Timestamp(0))),
        |t| t.rare.update(|s| s.not_before = Some(Timestamp(1))),
        |t| t.node = Some(NodeId(Id(0))),
        |t| t.node = Some(NodeId(Id(1 << 64))),
        |t| t.address = Some([0, 0, 0, 0].into()),
        |t| t.address = Some([10, 0, 0, 2].into()),
        |t| t.desired = DesiredTaskState::Shutdown,
        |t| t.observed.state = TaskState::Running,
        |t| t.observed.attempt = 1,
        |t| t.observed.since = Timestamp(31),
        |t| t.observed.details.update(|it| it.reason = "pulling".into()),
        |t| t.observed.ready = true,
        |t| t.observed.removed = true,
        |t| t.observed.details.update(|it| it.exit = Some(TaskExit { code: 0, out_of_memory: false })),
        |t| t.observed.details.update(|it| it.exit = Some(TaskExit { code: -1, out_of_memory: false })),
        |t| t.observed.details.update(|it| it.exit = Some(TaskExit { code: 0, out_of_memory: true })),
        |t| t.rare.update(|s| s.lost_since = Some(Timestamp(0))),
        |t| t.rare.update(|s| s.lost_since = Some(Timestamp(31))),
        |t| t.rare.update(|s| s.bound_to = Some(NodeId(Id(0)))),
        |t| t.rare.update(|s| s.label_value = Some("".into())),
        |t| t.rare.update(|s| s.label_value = Some("a".into())),
        |t| t.rare.update(|s| s.bound_to = Some(NodeId(Id(1 << 64)))),
        |t| t.observed.details.update(|it| it.next_attempt = Some(Timestamp(0))),
        |t| t.observed.details.update(|it| it.next_attempt = Some(Timestamp(31))),
        |t| t.rare.update(|s| s.volumes = vec!["a".parse().unwrap()]),
        |t| t.rare.update(|s| s.volumes = vec!["a".parse().unwrap(), "a".parse().unwrap()]),
        |t| t.rare.update(|s| s.surplus = true),
        |t| t.observed.health = Health::Starting,
        |t| t.observed.health = Health::Healthy,
        |t| t.observed.health = Health::Unhealthy,
    ];
    check(task, &a_task(), changes);
}

#[test]
fn every_service_field_changes_hash() {
    let standing: &[fn(&mut Service)] = &[
        |s| s.id = ServiceId(Id(8)),
        |s| s.version = 5,
        |s| s.created_at = Timestamp(11),
        |s| s.updated_at = Timestamp(21),
        |s| s.removing = true,
        |s| s.next_task_number = 3,
        |s| s.rollout.good_revision = 1,
        |s| s.rollout.kind = RolloutKind::Rollback,
        |s| s.rollout.resumed_at = Timestamp(1),
        |s| s.rollout.updated = 1,
        |s| s.rollout.updated_at = Timestamp(1),
        |s| s.rollout.image_reason = "no answer".into(),
        |s| s.rollout.failures = vec![a_failure()],
        |s| s.rollout.failures = vec![a_failure(), a_failure()],
        |s| s.rollout.failures = vec![RolloutFailure { revision: 2, ..a_failure() }],
        |s| s.rollout.failures = vec![RolloutFailure { task: a_task().id, ..a_failure() }],
        |s| s.rollout.failures = vec![RolloutFailure { slot: 2, ..a_failure() }],
        |s| s.rollout.failures = vec![RolloutFailure { reason: "x".into(), ..a_failure() }],
        |s| s.rollout.failures = vec![RolloutFailure { at: Timestamp(1), ..a_failure() }],
        |s| s.rollout.failures = vec![paused(PauseCause::Policy)],
        |s| s.rollout.failures = vec![paused(PauseCause::DataMayHaveChanged)],
        |s| s.rollout.failures = vec![paused(PauseCause::NoGoodRevision)],
        |s| s.rollout.failures = vec![paused(PauseCause::NotRestorable)],
        |s| s.rollout.failures = vec![paused(PauseCause::IsRollback)],
    ];
    check(self::service_status, &a_service(), standing);
    let revision: &[fn(&mut Service)] = &[
        |s| Arc::make_mut(&mut s.spec).name = "api".parse().unwrap(),
        |s| Arc::make_mut(&mut s.revision).number = 2,
        |s| Arc::make_mut(&mut s.revision).ports.clear(),
        |s| Arc::make_mut(&mut s.revision).task.args = Some(vec![]),
        |s| Arc::make_mut(&mut s.revision).created_at = Timestamp(11),
        |s| Arc::make_mut(&mut s.revision).force_count = 1,
        |s| Arc::make_mut(&mut s.revision).placement = constraints("node.id exists"),
        |s| Arc::make_mut(&mut s.revision).secret_objects = vec![used(1)],
        |s| Arc::make_mut(&mut s.revision).secret_objects = vec![used(2)],
        |s| {
            Arc::make_mut(&mut s.revision).secret_objects =
                vec![SecretObjectVersion { id: SecretObjectId(Id(2)), ..used(1) }]
        },
        |s| {
            Arc::make_mut(&mut s.revision).secret_objects =
                vec![SecretObjectVersion { kind: SecretObjectKind::Config, ..used(1) }]
        },
        |s| {
            Arc::make_mut(&mut s.revision).secret_objects =
                vec![SecretObjectVersion { name: "a".parse().unwrap(), ..used(1) }]
        },
        |s| Arc::make_mut(&mut s.revision).labels = [("tier".into(), "front".into())].into(),
        |s| Arc::make_mut(&mut s.revision).user_namespace = UserNamespace::Private,
        |s| Arc::make_mut(&mut s.revision).default_no_new_privileges = true,
        |s| Arc::make_mut(&mut s.revision).task.no_new_privileges = NoNewPrivileges::On,
        |s| Arc::make_mut(&mut s.revision).task.no_new_privileges = NoNewPrivileges::Off,
        |s| Arc::make_mut(&mut s.spec).task.no_new_privileges = NoNewPrivileges::Off,
        |s| s.history = vec![Arc::new(a_revision())],
        |s| s.history = vec![Arc::new(a_revision()), Arc::new(a_revision())],
        |s| s.pins = [(1, pin('a'))].into(),
        |s| s.pins = [(1, pin('b'))].into(),
        |s| s.pins = [(2, pin('a'))].into(),
    ];
    check(service, &a_service(), &[standing, revision].concat());
}

proptest::proptest! {
    /// Together with the round trip of specs through JSON: no field is left out.
    #[test]
    fn different_specs_have_different_digests(one in service_specs(), other in service_specs()) {
        let digest = service_spec;
        let merged = ServiceSpec { task: other.task.clone(), ..one.clone() };
        for (a, b) in [(&one, &other), (&one, &merged), (&merged, &other)] {
            proptest::prop_assert_eq!(digest(a) == digest(b), a == b);
        }
    }
}

#[test]
fn every_node_field_changes_hash() {
    let changes: &[fn(&mut Node)] = &[
        |n| n.id = NodeId(Id(8)),
        |n| n.name = "n2".parse().unwrap(),
        |n| n.version = 3,
        |n| n.created_at = Timestamp(2),
        |n| n.description.resources.cpu = MilliCpu(1),
        |n| n.description.resources.memory = Bytes(1),
        |n| n.description.architecture = "arm64".into(),
        |n| n.description.kernel = "6.2".into(),
        |n| n.description.runtime = String::new(),
        |n| n.description.version = "0.2.0".into(),
        |n| n.description.address = "192.0.2.2".into(),
        |n| n.description.data_address = Some([192, 0, 2, 1].into()),
        |n| n.description.wireguard_key = Some(WireGuardKey([1; 32])),
        |n| n.description.wireguard_key = Some(WireGuardKey([2; 32])),
        |n| n.description.apparmor_missing = true,
        |n| n.number = 2,
        |n| n.subnets[0] = "10.0.0.0/25".parse().unwrap(),
        |n| n.subnets[0] = "10.0.1.0/24".parse().unwrap(),
        |n| n.subnets.push("10.0.1.0/24".parse().unwrap()),
        |n| n.status = NodeStatus::Ready,
        |n| n.status = NodeStatus::Down,
        |n| n.status_since = Timestamp(2),
        |n| n.session = 1,
        |n| n.assignment_index = 3,
        |n| n.role = NodeRole::Manager,
        |n| n.taints = ["a:NoSchedule".parse().unwrap()].into(),
        |n| n.labels = [("a".into(), "b".into())].into(),
        |n| n.description.labels = [("a".into(), "b".into())].into(),
        |n| n.availability = Availability::Pause,
        |n| n.availability = Availability::Drain,
        |n| n.description.disk = Bytes(1),
        |n| n.description.os = "plan9".into(),
        |n| n.conditions = [NodeCondition::RuntimeUnavailable].into(),
        |n| n.conditions = [NodeCondition::NetworkUnavailable].into(),
        |n| n.conditions = [NodeCondition::DiskPressure].into(),
        |n| n.conditions = [NodeCondition::MemoryPressure].into(),
        |n| n.conditions = [NodeCondition::ClockSkew].into(),
        |n| n.conditions = NodeCondition::ALL.into(),
        |n| n.manager = Some(1),
        |n| n.manager = Some(2),
        |n| n.key = Some(PublicKeyHash([1; 32])),
        |n| n.key = Some(PublicKeyHash([2; 32])),
        |n| n.verification = verification(|_| {}),
        |n| n.verification = verification(|v| v.state = VerificationState::Pending),
        |n| n.verification = verification(|v| v.state = VerificationState::InProgress),
        |n| n.verification = verification(|v| v.state = VerificationState::Verified),
        |n| n.verification = verification(|v| v.state = VerificationState::Failed),
        |n| n.verification = verification(|v| v.since = Timestamp(2)),
        |n| n.verification = verification(|v| v.failures = 1),
        |n| n.verification = verification(|v| v.requested = 1),
        |n| n.verification = verification(|v| v.answered = 1),
        |n| {
            n.verification =
                verification(|v| v.results = vec![check_result("a", NodeCheckOutcome::Passed, "")])
        },
        |n| {
            n.verification =
                verification(|v| v.results = vec![check_result("b", NodeCheckOutcome::Passed, "")])
        },
        |n| {
            n.verification =
                verification(|v| v.results = vec![check_result("a", NodeCheckOutcome::Warning, "")])
        },
        |n| {
            n.verification =
                verification(|v| v.results = vec![check_result("a", NodeCheckOutcome::Failed, "")])
        },
        |n| {
            n.verification =
                verification(|v| v.results = vec![check_result("a", NodeCheckOutcome::Passed, "c")])
        },
    ];
    check(node, &a_node(), changes);
    assert_ne!(cursor(NodeId(Id(1)), 2), cursor(NodeId(Id(2)), 1));
}

fn verification(change: impl FnOnce(&mut NodeVerification)) -> Option<Arc<NodeVerification>> {
    let mut verification = NodeVerification::new(VerificationState::Unverified, Timestamp(1));
    change(&mut verification);
    Some(Arc::new(verification))
}

fn check_result(name: &str, outcome: NodeCheckOutcome, message: &str) -> NodeCheckResult {
    NodeCheckResult::new(name, outcome, message)
}

fn signature_rule(key: u8) -> SignatureRule {
    SignatureRule { registry: "ghcr.io".to_owned(), keys: vec![SignatureKey::Ed25519([key; 32])] }
}

#[test]
fn every_cluster_field_changes_hash() {
    let ranges = vec!["10.0.0.0/8".parse().unwrap(), "172.16.0.0/12".parse().unwrap()];
    let changes: &[fn(&mut Cluster)] = &[
        |c| c.id = ClusterId(Id(8)),
        |c| c.incarnation = 2,
        |c| c.created_at = Timestamp(2),
        |c| c.ranges.reverse(),
        |c| c.ranges.truncate(1),
        |c| c.node_prefix = 25,
        |c| c.node_down_after = Duration::from_millis(1),
        |c| c.version = 1,
        |c| c.settings.max_replicas_per_service = 1,
        |c| c.settings.task_history_limit = 1,
        |c| c.settings.data_plane = DataPlane::Wireguard,
        |c| c.settings.data_plane = DataPlane::Routes,
        |c| c.settings.verification.enabled = true,
        |c| c.settings.verification.remove_after = 1,
        |c| c.settings.verification.timeout = Duration::from_secs(1),
        |c| c.settings.verification.timeout = Duration::from_millis(1),
        |c| c.settings.verification.checks = vec!["a=command:true".parse().unwrap()],
        |c| c.settings.verification.checks = vec!["a=command:false".parse().unwrap()],
        |c| c.settings.admission_policy.operator.privileged = true,
        |c| c.settings.admission_policy.operator.registries = vec!["ghcr.io".to_owned()],
        |c| c.settings.admission_policy.operator.max_replicas = Some(0),
        |c| c.settings.admission_policy.signatures = vec![signature_rule(1)],
        |c| c.settings.admission_policy.signatures = vec![signature_rule(2)],
        |c| c.settings.default_user_namespace = UserNamespace::Private,
        |c| c.settings.no_new_privileges = true,
        |c| c.settings.node_certificate_lifetime = Duration::from_secs(1),
        |c| c.settings.node_certificate_lifetime = Duration::from_millis(1),
        |c| c.ca_rotation = Some(rotation(|_| {}).into()),
        |c| c.ca_rotation = Some(rotation(|r| r.digest = CaDigest::from_bytes([2; 32])).into()),
        |c| c.ca_rotation = Some(rotation(|r| r.sealed.size = 2).into()),
        |c| c.ca_rotation = Some(rotation(|r| r.sealed.fingerprint = [2; 32]).into()),
        |c| c.ca_rotation = Some(rotation(|r| r.sealed.sealed = vec![2]).into()),
        |c| c.ca_rotation = Some(rotation(|r| r.predecessors = vec!["old".to_owned()]).into()),
        |c| c.ca_rotation = Some(rotation(|r| r.phase = CaPhase::Nodes).into()),
        |c| c.ca_rotation = Some(rotation(|r| r.phase = CaPhase::Complete).into()),
        |c| c.ca_rotation = Some(rotation(|r| r.began_at = Timestamp(2)).into()),
        |c| c.ca_rotation = Some(rotation(|r| r.managers = [2].into()).into()),
        |c| c.ca_rotation = Some(rotation(|r| r.nodes = [NodeId(Id(2))].into()).into()),
        |c| c.ca_rotation = Some(rotation(|r| r.keys = [PublicKeyHash([2; 32])].into()).into()),
        |c| c.unlock_key = Some(unlock_key(|_| {}).into()),
        |c| c.unlock_key = Some(unlock_key(|k| k.id = UnlockKeyId(2)).into()),
        |c| c.unlock_key = Some(unlock_key(|k| k.sealed.size = 2).into()),
        |c| c.unlock_key = Some(unlock_key(|k| k.sealed.fingerprint = [2; 32]).into()),
        |c| c.unlock_key = Some(unlock_key(|k| k.sealed.sealed = vec![2]).into()),
        |c| c.key_rotation = Some(key_rotation(|_| {}).into()),
        |c| c.key_rotation = Some(key_rotation(|r| r.number = 2).into()),
        |c| c.key_rotation = Some(key_rotation(|r| r.phase = KeyPhase::Managers).into()),
        |c| c.key_rotation = Some(key_rotation(|r| r.phase = KeyPhase::Objects).into()),
        |c| c.key_rotation = Some(key_rotation(|r| r.phase = KeyPhase::Complete).into()),
        |c| c.key_rotation = Some(key_rotation(|r| r.began_at = Timestamp(2)).into()),
        |c| c.key_rotation = Some(key_rotation(|r| r.sealing = None).into()),
        |c| c.key_rotation = Some(key_rotation(|r| r.sealing = Some(SecretObjectKeyId(2))).into()),
        |c| c.key_rotation = Some(key_rotation(|r| r.next = None).into()),
        |c| c.key_rotation = Some(key_rotation(|r| next_key(r).id = SecretObjectKeyId(2)).into()),
        |c| c.key_rotation = Some(key_rotation(|r| next_key(r).sealed.size = 2).into()),
        |c| c.key_rotation = Some(key_rotation(|r| r.managers = [2].into()).into()),
    ];
    check(cluster, &Cluster::new(ClusterId(Id(1)), ranges, Timestamp(1)), changes);
}

fn unlock_key(change: fn(&mut SealedUnlockKey)) -> SealedUnlockKey {
    let sealed = SealedData { size: 1, fingerprint: [1; 32], sealed: vec![1] };
    let mut key = SealedUnlockKey { id: UnlockKeyId(1), sealed };
    change(&mut key);
    key
}

fn key_rotation(change: fn(&mut KeyRotation)) -> KeyRotation {
    let sealed = SealedData { size: 1, fingerprint: [1; 32], sealed: vec![1] };
    let mut rotation = KeyRotation {
        number: 1,
        phase: KeyPhase::Disks,
        began_at: Timestamp(1),
        sealing: Some(SecretObjectKeyId(1)),
        next: Some(NextSecretObjectKey { id: SecretObjectKeyId(1), sealed }),
        managers: Default::default(),
    };
    change(&mut rotation);
    rotation
}

fn next_key(rotation: &mut KeyRotation) -> &mut NextSecretObjectKey {
    rotation.next.as_mut().unwrap()
}

fn rotation(change: fn(&mut CaRotation)) -> CaRotation {
    let mut rotation = CaRotation {
        digest: CaDigest::from_bytes([1; 32]),
        sealed: SealedData { size: 1, fingerprint: [1; 32], sealed: vec![1] },
        predecessors: Vec::new(),
        phase: CaPhase::Managers,
        began_at: Timestamp(1),
        managers: Default::default(),
        nodes: Default::default(),
        keys: Default::default(),
    };
    change(&mut rotation);
    rotation
}

#[test]
fn non_object_fields_change_digest() {
    let changes: &[fn(&mut State)] = &[
        |s| s.clock = Timestamp(1),
        |s| s.feature_level = 1,
        |s| s.subnet_cursor = 1,
        |s| s.next_member_id = 1,
        |s| s.digest_sum.add(1),
    ];
    check(|state| state.digest().value, &State::new(), changes);
}

/// Members of different versions compare these numbers: if one changes, they report a divergence.
#[test]
fn object_hashes_are_stable() {
    let found = [
        State::new().digest().value,
        cluster(&Cluster::new(ClusterId(Id(1)), vec!["10.0.0.0/8".parse().unwrap()], Timestamp(1))),
        service(&a_service()),
        task(&a_task()),
        node(&a_node()),
        cursor(NodeId(Id(9)), 3),
    ];
    let expected = [
        0x075a_7763_d14f_2e11,
        0xdb74_f651_96db_72a3,
        0xa544_5be7_6030_da0d,
        0xeedf_2639_ac1e_6389,
        0x4f2f_f6ef_8636_d3f6,
        0xd2bf_769f_d817_e900,
    ];
    assert_eq!(found, expected, "{found:#x?}");
    // From the specification.
    assert_eq!(xxh3_64(b""), 0x2d06_8005_38d3_94c2);
}

#[test]
fn digests_of_different_indexes_do_not_conflict() {
    let digest = |index, value| StateDigest { index, value };
    assert!(digest(3, 1).conflicts_with(&digest(3, 2)));
    assert!(!digest(3, 1).conflicts_with(&digest(3, 1)));
    assert!(!digest(3, 1).conflicts_with(&digest(4, 2)));
    assert_eq!(digest(3, 255).to_string(), "00000000000000ff at entry 3");
}
