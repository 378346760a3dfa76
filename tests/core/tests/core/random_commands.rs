//! Random commands in any order: a state never panics, keeps its invariants, allocates nothing twice,
//! survives a snapshot, and settles once the random commands stop.

mod members;
mod networks;
mod storage;

use std::collections::BTreeSet;

use proptest::prelude::*;
use warren_core::state::StateParts;
use warren_core::{
    ApplyOutcome, CaCommand, Command, KeyCommand, KeyRotationStep, NewTask, RolloutStep, State,
};
use warren_testkit::soak;
use warren_types::*;

use crate::test_cluster::*;

/// The next event.
#[derive(Debug, Clone)]
enum Step {
    /// Any command.
    Say(Box<Command>),
    /// A planner runs.
    Reconcile(u128),
    Reap(u128),
    Schedule,
    /// The worker of a node reports each of its tasks in this state.
    Work(u128, TaskState),
    /// The worker of a node finished removing.
    CleanUp,
    Wait(u64),
}

fn time() -> impl Strategy<Value = Timestamp> {
    prop_oneof![Just(0), 0..u64::MAX / 2, Just(1_795_185_000_000)].prop_map(Timestamp)
}

fn term() -> impl Strategy<Value = u64> {
    prop_oneof![9 => Just(TERM), 1 => 0..5u64]
}

fn service() -> impl Strategy<Value = u128> {
    1..5u128
}

fn node() -> impl Strategy<Value = NodeId> {
    (1..5u128).prop_map(node_id)
}

fn task() -> impl Strategy<Value = TaskId> {
    (service(), 0..12u64).prop_map(|(service, number)| task_id(service, number))
}

fn tasks() -> impl Strategy<Value = Vec<TaskId>> {
    prop::collection::vec(task(), 0..6)
}

fn amounts() -> impl Strategy<Value = Resources> {
    (0..4u64, prop_oneof![9 => 0..4u64, 1 => Just(1 << 40)])
        .prop_map(|(cpu, memory)| resources(cpu * 500, memory * 100))
}

fn any_spec() -> impl Strategy<Value = ServiceSpec> {
    let number = || prop::option::weighted(0.3, 1..3u32);
    (0..3usize, 0..6u32, amounts(), prop::option::of(0..3u16), any::<bool>(), number(), number()).prop_map(
        |(name, replicas, reservations, port, global, zone, most)| {
            let name = ["web", "api", "db"][name];
            let mut spec =
                port.map_or_else(|| spec(name, replicas), |port| publishing(name, replicas, port * 80));
            spec.task.reservations = reservations;
            spec.task.resolve_image = ImageResolver::ALL[replicas as usize % 2];
            let labels = if replicas % 2 == 0 { "node.labels" } else { "engine.labels" };
            let zone = zone.map(|zone| format!("{labels}.zone == {zone}").parse().unwrap());
            spec.placement.constraints = zone.into_iter().collect();
            let tolerations = ["a", "b=1:NoExecute", "*"][..(replicas as usize % 4)].iter();
            spec.placement.tolerations = tolerations.map(|text| text.parse().unwrap()).collect();
            let preferences = ["node.labels.zone", "engine.labels.zone"][..(replicas as usize % 3)].iter();
            spec.placement.preferences =
                preferences.map(|key| format!("spread={key}").parse().unwrap()).collect();
            storage::add_storage(&mut spec, replicas);
            networks::add_networks(&mut spec, replicas);
            if global && replicas > 3 {
                spec.mode = ServiceMode::Global;
                spec.placement.preferences.clear();
                spec.bootstrap = replicas == 5;
                spec.per = most.map(|_| "node.labels.zone".parse().unwrap());
            } else {
                spec.placement.max_per_node = most;
            }
            spec
        },
    )
}

fn any_report() -> impl Strategy<Value = TaskReport> {
    (
        task(),
        0..3u32,
        prop::sample::select(&TaskState::ALL[..]),
        time(),
        "[ab]{0,2}",
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(task, attempt, state, since, reason, ready, removed, exited)| {
            let exit = exited.then_some(TaskExit { code: 1, out_of_memory: false });
            let next_attempt = exited.then_some(since);
            let image = (ready && attempt == 0).then(|| digest(if removed { 'a' } else { 'b' }));
            let health = Health::ALL[reason.len() + usize::from(exited)];
            TaskReport {
                task,
                attempt,
                state,
                since,
                reason,
                ready,
                exit,
                removed,
                next_attempt,
                image,
                health,
            }
        })
}

fn persons_command() -> impl Strategy<Value = Command> {
    let id = || service().prop_map(service_id);
    let version = || prop::option::weighted(0.2, 0..9u64);
    prop_oneof![
        3 => (id(), any_spec(), time()).prop_map(|(id, spec, at)| Command::CreateService { id, spec, at }),
        2 => (id(), version(), 0..8u32, time())
            .prop_map(|(id, version, replicas, at)| Command::ScaleService { id, version, replicas, at }),
        1 => (id(), version(), any::<bool>(), time())
            .prop_map(|(id, version, force, at)| Command::RemoveService { id, version, force, at }),
        3 => (id(), version(), any_spec(), prop::bool::weighted(0.2), time()).prop_map(
            |(id, version, spec, force, at)| Command::UpdateService { id, version, spec, force, at }
        ),
        2 => (id(), version(), prop::option::of(0..5u64), time()).prop_map(
            |(id, version, revision, at)| Command::RollbackService { id, version, revision, at }
        ),
        1 => (id(), version(), time()).prop_map(|(id, version, at)| Command::ResumeRollout { id, version, at }),
        2 => tokens_command(),
        2 => users_command(),
        4 => storage::command(),
        1 => time().prop_map(|at| {
            Command::CreateCluster { id: ClusterId(Id(9)), ranges: vec![], feature_level: 1, at }
        }),
    ]
}

fn token_id() -> impl Strategy<Value = TokenId> {
    (1..4u128).prop_map(|number| TokenId(Id(number)))
}

fn secret() -> impl Strategy<Value = TokenHash> {
    (1..4u8).prop_map(|byte| TokenHash([byte; 32]))
}

fn role() -> impl Strategy<Value = NodeRole> {
    prop::sample::select(vec![NodeRole::Worker, NodeRole::Manager])
}

fn tokens_command() -> impl Strategy<Value = Command> {
    let bounds = (prop::option::of(time()), prop::option::of(0..3u32));
    prop_oneof![
        (token_id(), role(), secret(), bounds, prop::option::of(label()), time()).prop_map(
            |(id, role, hash, (expires_at, max_uses), label, at)| Command::CreateToken {
                id,
                role,
                hash,
                expires_at,
                max_uses,
                labels: label.filter(|_| role == NodeRole::Worker).into_iter().collect(),
                at,
            }
        ),
        (token_id(), time()).prop_map(|(id, at)| Command::RemoveToken { id, at }),
        (prop::option::weighted(0.2, 0..9u64), prop::option::of(0..4u32), time()).prop_map(
            |(version, task_history_limit, at)| {
                let enabled = task_history_limit.map(|limit| limit % 2 == 0);
                let verification = VerificationChange { enabled, ..Default::default() };
                let operator = AdmissionRules { max_replicas: task_history_limit, ..Default::default() };
                let admission_policy = enabled.map(|_| AdmissionPolicy { operator, ..Default::default() });
                let default_user_namespace =
                    task_history_limit.map(|limit| UserNamespace::ALL[limit as usize % 2]);
                let change = ClusterSettingsChange {
                    task_history_limit,
                    verification,
                    admission_policy,
                    default_user_namespace,
                    no_new_privileges: enabled,
                    ..Default::default()
                };
                Command::UpdateCluster { version, change, at }
            }
        ),
        (term(), prop::collection::vec(token_id(), 0..3), time())
            .prop_map(|(term, tokens, at)| Command::DeleteTokens { term, tokens, at }),
        (secret(), node(), "[abc]", taints(), time()).prop_map(|(hash, id, name, taints, at)| {
            let (name, description) = (name.parse().unwrap(), description(resources(1000, 512)));
            Command::JoinNode { hash, id, name, description, taints, at }
        }),
    ]
}

fn users_command() -> impl Strategy<Value = Command> {
    let id = || (1..4u128).prop_map(|number| UserId(Id(number)));
    let version = || prop::option::weighted(0.2, 0..9u64);
    let user_role = || prop::sample::select(UserRole::ALL.to_vec());
    let key = || (1..4u8).prop_map(|byte| PublicKeyHash([byte; 32]));
    prop_oneof![
        3 => (id(), "[ab]", user_role(), secret(), time(), prop::option::of(time()), time()).prop_map(
            |(id, name, role, login_hash, login_expires_at, expires_at, at)| {
                let name = name.parse().unwrap();
                Command::CreateUser { id, name, role, login_hash, login_expires_at, expires_at, at }
            }
        ),
        2 => (id(), version(), prop::option::of(user_role()), prop::option::of(secret()), time(), any::<bool>(), time())
            .prop_map(|(id, version, role, login_hash, ttl, remove_keys, at)| {
                let login_expires_at = login_hash.map(|_| ttl);
                Command::UpdateUser { id, version, role, login_hash, login_expires_at, remove_keys, at }
            }),
        1 => (id(), time()).prop_map(|(id, at)| Command::RemoveUser { id, at }),
        3 => (secret(), key(), time()).prop_map(|(hash, key, at)| Command::LoginUser { hash, key, at }),
        1 => (key(), time()).prop_map(|(key, at)| Command::Key(KeyCommand::Revoke { key, at })),
        1 => (1..4u64, key(), time())
            .prop_map(|(member, key, at)| Command::SetAdministratorKey { member, key, at }),
        1 => (node(), key(), time()).prop_map(|(id, key, at)| Command::SetNodeKey { id, key, at }),
        2 => ca_command().prop_map(Command::Ca),
        1 => key_command().prop_map(Command::Key),
    ]
}

fn ca_command() -> impl Strategy<Value = CaCommand> {
    let digest = || (1..4u8).prop_map(|byte| CaDigest::from_bytes([byte; 32]));
    let holder = prop_oneof![
        (1..4u64).prop_map(CaHolder::Manager),
        node().prop_map(CaHolder::Node),
        (1..4u8).prop_map(|byte| CaHolder::User(PublicKeyHash([byte; 32]))),
    ];
    let phase = prop::sample::select(vec![CaPhase::Managers, CaPhase::Nodes, CaPhase::Complete]);
    prop_oneof![
        (digest(), digest(), time()).prop_map(|(digest, current, at)| {
            let certificate = current.to_string();
            CaCommand::Begin { digest, sealed: sealed(1), current, certificate, at }
        }),
        (term(), digest(), phase, time()).prop_map(|(term, digest, phase, at)| CaCommand::Advance {
            term,
            digest,
            phase,
            at
        }),
        (digest(), holder, time()).prop_map(|(digest, holder, at)| CaCommand::RecordRenewal {
            digest,
            holder,
            at
        }),
    ]
}

fn key_command() -> impl Strategy<Value = KeyCommand> {
    let id = || prop::option::of((1..4u64).prop_map(UnlockKeyId));
    let phases = [KeyPhase::Disks, KeyPhase::Managers, KeyPhase::Objects, KeyPhase::Complete];
    let phase = || prop::sample::select(phases.to_vec());
    let step = prop_oneof![
        Just(KeyRotationStep::Begin),
        (phase(), 1..4u64).prop_map(|(phase, member)| KeyRotationStep::Record { phase, member }),
        (1..4u64).prop_map(|id| {
            let (id, sealed) = (SecretObjectKeyId(id), sealed(1));
            KeyRotationStep::Offer(NextSecretObjectKey { id, sealed })
        }),
        phase().prop_map(KeyRotationStep::Advance),
    ];
    prop_oneof![
        (id(), id(), time()).prop_map(|(key, replaces, at)| {
            let key = key.map(|id| SealedUnlockKey { id, sealed: sealed(1) });
            KeyCommand::SetUnlockKey { key, replaces, at }
        }),
        (0..12u64, step, time()).prop_map(|(number, step, at)| KeyCommand::Rotate { number, step, at }),
        (0..12u64, time()).prop_map(|(number, at)| {
            let items = vec![(SealedItem::Authority, sealed(2)), (SealedItem::UnlockKey, sealed(2))];
            KeyCommand::Reseal { number, items, at }
        }),
    ]
}

fn label() -> impl Strategy<Value = (String, String)> {
    (1..3u32).prop_map(|zone| ("zone".to_string(), zone.to_string()))
}

/// At times two with the same key and effect.
fn taints() -> impl Strategy<Value = BTreeSet<Taint>> {
    let taint = "[ab](=[12])?:(NoSchedule|PreferNoSchedule|NoExecute)".prop_map(|text| text.parse().unwrap());
    prop::collection::btree_set(taint, 0..3)
}

fn nodes_command() -> impl Strategy<Value = Command> {
    prop_oneof![
        (node(), "[abc]", role(), amounts(), taints(), time()).prop_map(
            |(id, name, role, resources, taints, at)| {
                let (name, description) = (name.parse().unwrap(), description(resources));
                Command::RegisterNode { id, name, role, description, taints, at }
            }
        ),
        (node(), any::<bool>(), time()).prop_map(|(id, force, at)| Command::RemoveNode { id, force, at }),
        (
            node(),
            prop::option::weighted(0.2, 0..9u64),
            prop::option::of(label()),
            prop::option::weighted(0.3, Just("zone".to_string())),
            prop::option::of(prop::sample::select(&Availability::ALL[..])),
            (taints(), prop::option::weighted(0.3, "[*]|[ab](=1)?(:NoExecute)?")),
            time(),
        )
            .prop_map(|(id, version, add, rm, availability, (taint_add, taint_rm), at)| {
                let taint_rm = taint_rm.into_iter().map(|text| text.parse().unwrap()).collect();
                let (label_add, label_rm) = (add.into_iter().collect(), rm.into_iter().collect());
                Command::UpdateNode {
                    id,
                    version,
                    label_add,
                    label_rm,
                    availability,
                    taint_add,
                    taint_rm,
                    at,
                }
            }),
        (node(), amounts(), 0..4u64, time()).prop_map(|(node, resources, manager, at)| {
            Command::OpenSession { node, description: description(resources), manager, at }
        }),
        (node(), 0..4u64, prop::sample::subsequence(&NodeCondition::ALL[..], 0..3), time()).prop_map(
            |(node, session, conditions, at)| {
                let conditions = conditions.into_iter().collect();
                Command::SetNodeConditions { node, session, conditions, at }
            }
        ),
        (prop::collection::btree_set(node(), 0..3), time())
            .prop_map(|(nodes, at)| Command::RequestVerification { nodes, at }),
        (term(), node(), time()).prop_map(|(term, node, at)| Command::BeginVerification { term, node, at }),
        (term(), node(), 0..40u64, prop::sample::select(&NodeCheckOutcome::ALL[..]), time()).prop_map(
            |(term, node, answered, outcome, at)| {
                let results = vec![NodeCheckResult::new("dns", outcome, "text")];
                Command::RecordVerification { term, node, answered, results, at }
            }
        ),
        (node(), 0..4u64, prop::collection::vec(any_report(), 0..4), time())
            .prop_map(|(node, session, reports, at)| Command::ReportTasks { node, session, reports, at }),
    ]
}

fn planned_command() -> impl Strategy<Value = Command> {
    let desired = prop::sample::select(&DesiredTaskState::ALL[..]);
    let replaces = prop::option::of(0..12u64);
    let bound_to = prop::option::weighted(0.3, node());
    let label_value = prop::option::weighted(0.3, "[0-2]".prop_map(Into::into));
    let new_task = (0..8u32, prop::option::of(time()), desired, replaces, bound_to, label_value).prop_map(
        |(slot, not_before, desired, replaces, bound_to, label_value)| NewTask {
            slot,
            not_before,
            desired,
            replaces,
            bound_to,
            label_value,
        },
    );
    let statuses = [NodeStatus::Unknown, NodeStatus::Ready, NodeStatus::Down];
    let id = || service().prop_map(service_id);
    prop_oneof![
        (term(), id(), 0..3u64, prop::collection::vec(new_task, 0..5), time()).prop_map(
            |(term, service, revision, slots, at)| Command::CreateTasks {
                term,
                service,
                revision,
                slots,
                at
            }
        ),
        (term(), prop::collection::vec((task(), node()), 0..5), time())
            .prop_map(|(term, placements, at)| Command::AssignTasks { term, placements, at }),
        (term(), tasks(), prop::sample::select(&DesiredTaskState::ALL[..]), time())
            .prop_map(|(term, tasks, desired, at)| Command::SetDesiredTaskState { term, tasks, desired, at }),
        (term(), tasks()).prop_map(|(term, tasks)| Command::DeleteTasks { term, tasks }),
        (term(), id(), 0..3u64, "[abc]", time()).prop_map(|(term, service, revision, digit, at)| {
            let step = match digit.as_str() {
                "c" => RolloutStep::ImageUnresolved("no answer".into()),
                digit => RolloutStep::ImagePinned(digest(digit.chars().next().unwrap())),
            };
            Command::AdvanceRollout { term, service, revision, step, at }
        }),
        ("(demo|other):[12]", prop::option::weighted(0.7, "[ab]"), time()).prop_map(|(image, digit, at)| {
            let digest = digit.map(|digit| digest(digit.chars().next().unwrap()));
            Command::RecordImport { image: image.parse().unwrap(), digest, at }
        }),
        (term(), id()).prop_map(|(term, id)| Command::DeleteService { term, id }),
        (term(), node(), 0..4u64, prop::sample::select(statuses.to_vec()), time()).prop_map(
            |(term, node, session, status, at)| Command::SetNodeStatus { term, node, session, status, at }
        ),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let say = |command: Command| Step::Say(Box::new(command));
    prop_oneof![
        3 => persons_command().prop_map(say),
        4 => nodes_command().prop_map(say),
        1 => members::command().prop_map(say),
        1 => networks::command().prop_map(say),
        3 => planned_command().prop_map(say),
        3 => service().prop_map(Step::Reconcile),
        1 => service().prop_map(Step::Reap),
        3 => Just(Step::Schedule),
        3 => (1..5u128, prop::sample::select(&TaskState::ALL[3..]))
            .prop_map(|(node, state)| Step::Work(node, state)),
        1 => Just(Step::CleanUp),
        1 => (0..400_000u64).prop_map(Step::Wait),
    ]
}

/// The state without the entry that it is of.
fn content(state: &State) -> StateParts {
    StateParts { applied: Default::default(), ..state.export() }
}

/// Applies the command twice: a rejected or unchanged command has no effect, and neither has the second time.
fn apply_command(cluster: &mut TestCluster, command: &Command) {
    let before = content(&cluster.state);
    let outcome = cluster.apply(command);
    let after = content(&cluster.state);
    if !matches!(outcome, ApplyOutcome::Applied { .. }) {
        assert_eq!(after, before, "{command:?} left a trace");
    }
    if !matches!(command, Command::OpenSession { .. }) {
        cluster.apply(command);
        assert_eq!(content(&cluster.state), after, "{command:?} was not harmless the second time");
    }
}

fn run_step(cluster: &mut TestCluster, step: Step) {
    match step {
        Step::Say(command) => apply_command(cluster, &command),
        Step::Reconcile(service) => drop(cluster.reconcile(service)),
        Step::Reap(service) => drop(cluster.reap(service)),
        Step::Schedule => drop(cluster.schedule()),
        Step::CleanUp => cluster.clean_up(),
        Step::Wait(milliseconds) => cluster.advance_time(std::time::Duration::from_millis(milliseconds)),
        Step::Work(number, state) => {
            let node = node_id(number);
            let Some(session) = cluster.state.node(&node).map(|node| node.session) else { return };
            let say = |task: &std::sync::Arc<Task>| report(task.id, task.observed.attempt, state);
            let reports = cluster.state.tasks_on(&node).map(say).collect();
            let command = Command::ReportTasks { node, session, reports, at: cluster.now };
            self::apply_command(cluster, &command);
        }
    }
    // Commands may have set any time; planners use the resulting clock.
    cluster.now = cluster.now.max(cluster.state.clock());
}

/// All nodes exist, all workers follow their assignments, and time passes.
fn settle(cluster: &mut TestCluster) {
    for number in 1..5 {
        if cluster.state.node(&node_id(number)).is_some() {
            cluster.connect(number);
        }
    }
    for _ in 0..40 {
        cluster.now = Timestamp(u64::MAX);
        cluster.settle();
        cluster.clean_up();
        for service in 1..5 {
            cluster.reap(service);
        }
        cluster.carry_out(warren_core::reap_tokens);
    }
}

/// What the sessions do between two steps.
fn network_step() -> impl Strategy<Value = NetworkStep> {
    prop_oneof![
        6 => Just(NetworkStep::Nothing),
        4 => (0..3usize, prop::bool::weighted(0.1)).prop_map(|(lag, is_overrun)| NetworkStep::Publish(lag, is_overrun)),
        1 => any::<bool>().prop_map(NetworkStep::Reconnect),
    ]
}

#[derive(Debug, Clone)]
enum NetworkStep {
    Nothing,
    Publish(usize, bool),
    Reconnect(bool),
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: soak::count(64, 1000) as u32, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// Only managers, in a cluster that has one and a token for more.
    #[test]
    fn random_member_commands_keep_invariants(commands in prop::collection::vec(members::command(), 1..60)) {
        let mut cluster = TestCluster::new();
        let (id, role, hash, at) = (TokenId(Id(1)), NodeRole::Manager, TokenHash([1; 32]), cluster.now);
        let (expires_at, max_uses, labels) = (None, None, Default::default());
        cluster.accept(Command::CreateToken { id, role, hash, expires_at, max_uses, labels, at });
        commands.into_iter().for_each(|command| apply_command(&mut cluster, &command));
        let restored = State::restore(cluster.state.export()).unwrap();
        prop_assert_eq!(&restored, &cluster.state);
    }

    /// Nodes follow the network by changes, through lags, overruns and other managers.
    #[test]
    fn network_views_follow_the_state(steps in prop::collection::vec((step(), network_step()), 1..60)) {
        let mut cluster = TestCluster::new();
        for number in 1..3 {
            cluster.node(number, resources(4000, 1024));
        }
        let mut sessions = networks::Sessions::new(&cluster);
        for (step, network_step) in steps {
            run_step(&mut cluster, step);
            match network_step {
                NetworkStep::Nothing => {}
                NetworkStep::Publish(lag, is_overrun) => sessions.publish(&cluster, lag, is_overrun),
                NetworkStep::Reconnect(with_new_manager) => sessions.reconnect(&cluster.state, with_new_manager),
            }
        }
        sessions.check(&cluster);
        settle(&mut cluster);
        sessions.check(&cluster);
    }

    #[test]
    fn random_commands_keep_invariants(steps in prop::collection::vec(step(), 1..60)) {
        let mut cluster = TestCluster::new();
        for number in 1..3 {
            cluster.node(number, resources(4000, 1024));
        }
        steps.into_iter().for_each(|step| run_step(&mut cluster, step));
        let restored = State::restore(cluster.state.export()).unwrap();
        prop_assert_eq!(&restored, &cluster.state);
        settle(&mut cluster);
        let placement = warren_core::schedule(&cluster.state, cluster.now);
        for service in cluster.state.services() {
            prop_assert!(!service.removing, "{} was not removed", service.spec.name);
            let rollout = warren_core::rollout(&cluster.state, service, cluster.now);
            let slots: BTreeSet<u32> = cluster.live(service.id.0.0).into_iter().map(|(slot, _)| slot).collect();
            prop_assert_eq!(u32::try_from(slots.len()).unwrap(), rollout.total, "{:?}", service.spec);
            let has_reason = rollout.stop_reason.is_some() || rollout.waiting_reason.is_some();
            let done = rollout.updated == rollout.total || has_reason;
            prop_assert!(done, "{rollout:?}");
        }
        for task in cluster.state.tasks().filter(|task| task.is_live()) {
            let runs = task.observed.state == TaskState::Running;
            let refused = placement.refusals.get(task).is_some();
            prop_assert!(runs || refused, "{} neither runs nor says why", task.id);
        }
        let held = cluster.state.tasks().filter(|task| task.holds_resources() && !task.is_live()).count();
        prop_assert_eq!(held, 0, "something was left on a node");
    }
}
