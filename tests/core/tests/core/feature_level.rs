//! The cluster's feature level, and how it gates changed semantics.

use warren_core::{
    ApplyOutcome, Command, CommandResponse, FEATURE_LEVEL, ReconcilePlan, State, StateChange,
    reconcile_feature_level,
};
use warren_types::*;

use crate::test_cluster::*;

fn raise(level: u32) -> Command {
    Command::RaiseFeatureLevel { term: TERM, level }
}

#[test]
fn new_cluster_has_founder_level() {
    let mut state = State::new();
    assert_eq!(state.feature_level(), 0);
    assert_eq!(state.apply(TERM, 1, &raise(5)), ApplyOutcome::Rejected(warren_core::Refusal::NoCluster));
    assert_eq!(TestCluster::new().state.feature_level(), FEATURE_LEVEL);
}

#[test]
fn a_level_only_rises() {
    let mut world = TestCluster::new();
    let raised =
        ApplyOutcome::Applied { response: CommandResponse::Done, changes: vec![StateChange::Cluster] };
    let unchanged = ApplyOutcome::Unchanged { answer: CommandResponse::Done };
    assert_eq!(world.apply(&raise(FEATURE_LEVEL + 2)), raised);
    for level in [FEATURE_LEVEL + 2, FEATURE_LEVEL + 1, 0] {
        assert_eq!(world.apply(&raise(level)), unchanged, "to {level}");
        assert_eq!(world.state.feature_level(), FEATURE_LEVEL + 2);
    }
    assert_eq!(world.apply(&raise(u32::MAX)), raised);
    let stale = Command::RaiseFeatureLevel { term: TERM - 1, level: u32::MAX };
    assert_eq!(world.refuse(stale), "the plan is of term 2, the entry of term 3; plan again");
    assert_eq!(State::restore(world.state.export()).unwrap().feature_level(), u32::MAX);
}

#[test]
fn level_is_raised_when_all_members_support_it() {
    let mut world = TestCluster::new();
    assert_eq!(
        reconcile_feature_level(&world.state),
        ReconcilePlan::default(),
        "nobody has said what it supports"
    );
    let hash = TokenHash([1; 32]);
    let (id, role, expires_at, max_uses, at) = (TokenId(Id(1)), NodeRole::Manager, None, None, world.now);
    let labels = Default::default();
    world.accept(manager(1, FEATURE_LEVEL + 3));
    world.accept(Command::CreateToken { id, role, hash, expires_at, max_uses, labels, at });
    for (number, level) in [(2, FEATURE_LEVEL), (3, FEATURE_LEVEL + 2)] {
        let Command::RegisterMember { id, name, address, .. } = manager(number, level) else {
            unreachable!()
        };
        world.accept(Command::JoinManager { hash, id, name, address, level, at });
    }
    assert_eq!(reconcile_feature_level(&world.state), ReconcilePlan::default());
    assert!(
        matches!(world.apply(&raise(FEATURE_LEVEL + 1)), ApplyOutcome::Unchanged { .. }),
        "one of them would stop"
    );
    world.accept(manager(2, FEATURE_LEVEL + 1));
    assert_eq!(reconcile_feature_level(&world.state).commands, [raise(FEATURE_LEVEL + 1)]);
    world.carry_out(|state, _| reconcile_feature_level(state));
    assert_eq!(world.state.feature_level(), FEATURE_LEVEL + 1);
}

/// A manager registers with this feature level.
fn manager(number: u64, level: u32) -> Command {
    Command::RegisterMember {
        member: number,
        id: ManagerId(Id(number.into())),
        name: format!("m{number}").parse().unwrap(),
        address: format!("10.0.0.{number}:8080").parse().unwrap(),
        level,
        at: Timestamp(1_795_185_000_000),
    }
}

/// A cluster of a version that supported only one manager.
fn at_level_1() -> TestCluster {
    let mut world = TestCluster {
        state: State::new(),
        now: Timestamp(1_795_185_000_000),
        changes: Vec::new(),
        events: Vec::new(),
    };
    let ranges = vec!["10.0.0.0/8".parse().unwrap()];
    world.accept(Command::CreateCluster { id: ClusterId(Id(9)), ranges, feature_level: 1, at: world.now });
    world
}

#[test]
fn level_1_has_no_removed_nodes_or_token_roles() {
    let mut world = at_level_1();
    let (hash, at) = (TokenHash([1; 32]), world.now);
    let (id, role, expires_at, max_uses) = (TokenId(Id(1)), NodeRole::Manager, None, None);
    let labels = Default::default();
    world.accept(Command::CreateToken { id, role, hash, expires_at, max_uses, labels, at });
    let join = |number| {
        let name = format!("n{number}").parse().unwrap();
        Command::JoinNode {
            hash,
            id: node_id(number),
            name,
            description: description(resources(1000, 512)),
            taints: Default::default(),
            at,
        }
    };
    world.accept(join(1));
    world.accept(join(2));
    world.remove_node(1);
    assert_eq!(world.state.node_removed_at(&node_id(1)), None);
    world.accept(manager(1, FEATURE_LEVEL));
    world.carry_out(|state, _| reconcile_feature_level(state));
    assert_eq!(world.state.feature_level(), FEATURE_LEVEL);
    assert!(world.refuse(join(1)).starts_with("the token is for a manager, not for a worker"));
    world.remove_node(2);
    assert_eq!(world.state.node_removed_at(&node_id(2)), Some(world.state.applied().index));
}

/// Two programs, of which the newer one rounds the replicas of a scale up to an even number. The gate is the
/// pattern of the documentation of `FEATURE_LEVEL`: the state decides, never the program.
fn apply(state: &mut State, supports: u32, command: &Command) -> Result<(), String> {
    // What the codec does when it decodes.
    if let Command::RaiseFeatureLevel { level, .. } = command
        && *level > supports
    {
        return Err(format!("level {level} is more than {supports}"));
    }
    let mut command = command.clone();
    if let Command::ScaleService { replicas, .. } = &mut command
        && state.feature_level() > FEATURE_LEVEL
    {
        *replicas = replicas.next_multiple_of(2);
    }
    state.apply(TERM, state.applied().index + 1, &command);
    Ok(())
}

#[test]
fn level_change_takes_effect_at_same_entry() {
    let (old, new) = (FEATURE_LEVEL, FEATURE_LEVEL + 1);
    let mut world = TestCluster::new();
    world.service(1, spec("web", 1));
    let scale = |replicas| Command::ScaleService {
        id: service_id(1),
        version: None,
        replicas,
        at: Timestamp(1_795_185_000_000),
    };
    let log = [scale(3), scale(5), raise(new), scale(7)];

    let (mut on_old, mut on_new) = (world.state.clone(), world.state.clone());
    for command in &log[..2] {
        apply(&mut on_old, old, command).unwrap();
        apply(&mut on_new, new, command).unwrap();
        assert_eq!(on_old.digest(), on_new.digest(), "before the raise both mean the same");
    }
    assert!(apply(&mut on_old, old, &log[2]).is_err(), "the old program stops at the raise");
    for command in &log[2..] {
        apply(&mut on_new, new, command).unwrap();
    }
    assert_eq!(on_new.service(&service_id(1)).unwrap().spec.replicas(), Some(8));

    // The old member restarts with the new program: on its own state and with the rest of the log, or from
    // the first entry on.
    for command in &log[2..] {
        apply(&mut on_old, new, command).unwrap();
    }
    let mut replayed = world.state.clone();
    log.iter().for_each(|command| apply(&mut replayed, new, command).unwrap());
    assert_eq!([on_old.digest(), replayed.digest()], [on_new.digest(); 2]);
}
