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
    let plan = |world: &World, members: &[u32]| reconcile_level(&world.state, members.iter().copied());
    assert_eq!(plan(&world, &[LEVEL]), Plan::default());
    assert_eq!(plan(&world, &[LEVEL + 3, LEVEL, LEVEL + 1]), Plan::default());
    assert_eq!(plan(&world, &[]), Plan::default());
    assert_eq!(plan(&world, &[LEVEL + 3, LEVEL + 1, LEVEL + 2]).commands, [raise(LEVEL + 1)]);
    world.carry_out(|state, _| reconcile_level(state, [LEVEL + 3, LEVEL + 1]));
    assert_eq!(world.state.level(), LEVEL + 1);
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
