//! The cluster's level, and how a changed meaning is gated by it.

use warren_core::{Answer, Change, Command, LEVEL, Outcome, Plan, State, reconcile_level};
use warren_types::*;

use crate::world::*;

fn raise(level: u32) -> Command {
    Command::RaiseLevel { term: TERM, level }
}

#[test]
fn a_cluster_begins_at_the_level_of_who_founds_it() {
    let mut state = State::new();
    assert_eq!(state.level(), 0);
    assert_eq!(state.apply(TERM, 1, &raise(5)), Outcome::Rejected(warren_core::Refusal::NoCluster));
    assert_eq!(World::new().state.level(), LEVEL);
}

#[test]
fn a_level_only_rises() {
    let mut world = World::new();
    let raised = Outcome::Applied { answer: Answer::Done, changes: vec![Change::Cluster] };
    let unchanged = Outcome::Unchanged { answer: Answer::Done };
    assert_eq!(world.run(&raise(LEVEL + 2)), raised);
    for level in [LEVEL + 2, LEVEL + 1, 0] {
        assert_eq!(world.run(&raise(level)), unchanged, "to {level}");
        assert_eq!(world.state.level(), LEVEL + 2);
    }
    assert_eq!(world.run(&raise(u32::MAX)), raised);
    let stale = Command::RaiseLevel { term: TERM - 1, level: u32::MAX };
    assert_eq!(world.refuse(stale), "the plan is of term 2, the entry of term 3; plan again");
    assert_eq!(State::restore(world.state.export()).unwrap().level(), u32::MAX);
}

#[test]
fn the_level_is_raised_to_what_every_member_supports() {
    let mut world = World::new();
    assert_eq!(reconcile_level(&world.state), Plan::default(), "nobody has said what it supports");
    let hash = TokenHash([1; 32]);
    let (id, role, expires_at, max_uses, at) = (TokenId(Id(1)), NodeRole::Manager, None, None, world.now);
    world.accept(manager(1, LEVEL + 3));
    world.accept(Command::CreateToken { id, role, hash, expires_at, max_uses, at });
    for (number, level) in [(2, LEVEL), (3, LEVEL + 2)] {
        let Command::RegisterMember { id, name, address, .. } = manager(number, level) else {
            unreachable!()
        };
        world.accept(Command::JoinManager { hash, id, name, address, level, at });
    }
    assert_eq!(reconcile_level(&world.state), Plan::default());
    assert!(matches!(world.run(&raise(LEVEL + 1)), Outcome::Unchanged { .. }), "one of them would stop");
    world.accept(manager(2, LEVEL + 1));
    assert_eq!(reconcile_level(&world.state).commands, [raise(LEVEL + 1)]);
    world.carry_out(|state, _| reconcile_level(state));
    assert_eq!(world.state.level(), LEVEL + 1);
}

/// A manager says that it supports this level.
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

/// A cluster of a version that knew one manager only.
fn at_level_1() -> World {
    let mut world = World { state: State::new(), now: Timestamp(1_795_185_000_000) };
    let ranges = vec!["10.0.0.0/8".parse().unwrap()];
    world.accept(Command::CreateCluster { id: ClusterId(Id(9)), ranges, level: 1, at: world.now });
    world
}

#[test]
fn below_level_2_removed_nodes_are_not_remembered_and_a_node_joins_with_any_token() {
    let mut world = at_level_1();
    let (hash, at) = (TokenHash([1; 32]), world.now);
    let (id, role, expires_at, max_uses) = (TokenId(Id(1)), NodeRole::Manager, None, None);
    world.accept(Command::CreateToken { id, role, hash, expires_at, max_uses, at });
    let join = |number| {
        let name = format!("n{number}").parse().unwrap();
        Command::JoinNode {
            hash,
            id: node_id(number),
            name,
            description: description(resources(1000, 512)),
            at,
        }
    };
    world.accept(join(1));
    world.accept(join(2));
    world.remove_node(1);
    assert_eq!(world.state.removed_at(&node_id(1)), None);
    world.accept(manager(1, LEVEL));
    world.carry_out(|state, _| reconcile_level(state));
    assert_eq!(world.state.level(), LEVEL);
    assert!(world.refuse(join(1)).starts_with("the token is for a manager, not for a worker"));
    world.remove_node(2);
    assert_eq!(world.state.removed_at(&node_id(2)), Some(world.state.applied().index));
}

/// Two programs, of which the newer one rounds what a person scales to up to an even number. The gate is the
/// pattern of the text at `LEVEL`: the meaning is chosen by the state, never by the program.
fn apply(state: &mut State, supports: u32, command: &Command) -> Result<(), String> {
    // What the codec does on reading.
    if let Command::RaiseLevel { level, .. } = command
        && *level > supports
    {
        return Err(format!("level {level} is more than {supports}"));
    }
    let mut command = command.clone();
    if let Command::ScaleService { replicas, .. } = &mut command
        && state.level() > LEVEL
    {
        *replicas = replicas.next_multiple_of(2);
    }
    state.apply(TERM, state.applied().index + 1, &command);
    Ok(())
}

#[test]
fn a_gated_meaning_changes_at_the_same_entry_on_every_member() {
    let (old, new) = (LEVEL, LEVEL + 1);
    let mut world = World::new();
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

    // The old member comes back with the new program: on its own state and with the rest of the log, or from
    // the first entry on.
    for command in &log[2..] {
        apply(&mut on_old, new, command).unwrap();
    }
    let mut replayed = world.state.clone();
    log.iter().for_each(|command| apply(&mut replayed, new, command).unwrap());
    assert_eq!([on_old.digest(), replayed.digest()], [on_new.digest(); 2]);
}
