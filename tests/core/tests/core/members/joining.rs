//! Joining with a token, and replacing a manager whose host lost its data.

use std::time::Duration;

use warren_core::state::MAX_MEMBERS;

use super::*;

fn uses(world: &TestCluster) -> u32 {
    world.state.token(&TokenId(Id(1))).unwrap().uses
}

#[test]
fn manager_token_counts_once_per_machine() {
    let mut world = TestCluster::new();
    world.accept(create_token(NodeRole::Manager, Some(1)));
    let early = "no manager has registered yet; try again shortly";
    assert_eq!(world.refuse(join(&world, 2, "m2", "h2")), early);
    world.accept(register(&world, 1, 1));
    let answer = world.accept(join(&world, 2, "m2", "h2"));
    assert_eq!(answer, CommandResponse::Member(world.state.member(2).unwrap().clone()));
    assert_eq!(
        world.apply(&join(&world, 2, "renamed", "h7")),
        ApplyOutcome::Unchanged { answer },
        "it may not know that it did"
    );
    assert_eq!(uses(&world), 1);
    let refusal = world.refuse(join(&world, 3, "m3", "h3"));
    assert!(refusal.starts_with("the token has been used 1 times, which is its limit"), "{refusal}");
    let joined = world.state.member(2).unwrap();
    assert_eq!(
        (joined.desired_suffrage, joined.replaces, joined.level),
        (Suffrage::Voter, None, FEATURE_LEVEL)
    );
}

#[test]
fn each_token_is_for_one_role() {
    let mut world = world(1);
    let node = |world: &TestCluster| Command::JoinNode {
        hash: secret(),
        id: node_id(1),
        name: "n1".parse().unwrap(),
        description: description(resources(1000, 512)),
        taints: Default::default(),
        at: world.now,
    };
    let text = "the token is for a manager, not for a worker: join with `warren manager join`, or create one \
                with `warren token create --role worker`";
    assert_eq!(world.refuse(node(&world)), text);
    world.accept(Command::RemoveToken { id: TokenId(Id(1)), at: world.now });
    world.accept(create_token(NodeRole::Worker, None));
    let text = "the token is for a worker, not for a manager: join with `warren worker join`, or create one with \
                `warren token create --role manager`";
    assert_eq!(world.refuse(join(&world, 2, "m2", "h2")), text);
    assert_eq!(uses(&world), 0);
    world.accept(node(&world));
}

#[test]
fn refused_join_does_not_use_token() {
    let mut world = world(2);
    world.accept(remove(2));
    let old = |level| match join(&TestCluster::new(), 3, "m3", "h3") {
        Command::JoinManager { hash, id, name, address, at, .. } => {
            Command::JoinManager { hash, id, name, address, level, at }
        }
        other => panic!("{other:?}"),
    };
    let table = [
        (join(&world, 3, "m1", "h3"), "manager m1 already exists; choose another name or remove it first"),
        (
            old(FEATURE_LEVEL - 1),
            "the cluster is at feature level 2 and this manager's version of Warren supports \
             feature levels up to 1; install",
        ),
        (join(&world, 2, "m2", "h2"), "manager m2 is being removed; wait until it is removed"),
    ];
    for (command, expected) in table {
        let found = world.refuse(command);
        assert!(found.starts_with(expected), "{found}");
    }
    assert_eq!((uses(&world), world.state.next_member_id()), (1, 3));
    world.accept(old(FEATURE_LEVEL + 1));
    world.advance_time(Duration::from_secs(1));
    world.accept(Command::RemoveToken { id: TokenId(Id(1)), at: world.now });
    assert!(world.refuse(join(&world, 4, "m4", "h4")).starts_with("unknown token"));
}

#[test]
fn number_of_managers_is_bounded() {
    let mut world = world(MAX_MEMBERS as u128);
    let full = "there are 16 managers, which is the limit of 16; remove one first (`warren manager ls`)";
    assert_eq!(world.refuse(join(&world, 99, "m99", "h99")), full);
    world.accept(remove(2));
    assert_eq!(world.refuse(join(&world, 99, "m99", "h99")), full, "it is still there");
    world.accept(delete(2));
    world.accept(join(&world, 99, "m99", "h99"));
}

#[test]
fn manager_with_lost_data_replaces_itself() {
    let mut world = world(3);
    world.accept(join(&world, 4, "m2", "h2"));
    assert_eq!(
        shown(&world)[1..],
        [(2, "m2", None, false), (3, "m3", None, false), (4, "m2", Some(2), false)]
    );
    // The name of the replaced one is still its own.
    assert!(world.refuse(join(&world, 5, "m2", "h5")).starts_with("manager m2 already exists"));
    world.accept(delete(2));
    assert_eq!(shown(&world)[1..], [(3, "m3", None, false), (4, "m2", None, false)]);
    // Again, and now that one is the replaced one.
    world.accept(join(&world, 5, "other", "h2"));
    assert_eq!(shown(&world)[2..], [(4, "m2", None, false), (5, "other", Some(4), false)]);
}

#[test]
fn second_replacement_drops_first() {
    let mut world = world(3);
    for id in 4..=6 {
        world.accept(join(&world, id, "m2", "h2"));
    }
    let expected = [
        (2, "m2", None, false),
        (3, "m3", None, false),
        (4, "m2", None, true),
        (5, "m2", None, true),
        (6, "m2", Some(2), false),
    ];
    assert_eq!(shown(&world)[1..], expected);
    world.accept(delete(5));
    world.accept(delete(4));
    world.accept(delete(2));
    assert_eq!(shown(&world)[1..], [(3, "m3", None, false), (6, "m2", None, false)]);
}

#[test]
fn removing_manager_frees_name_and_address() {
    let mut world = world(3);
    world.accept(remove(2));
    world.accept(join(&world, 4, "m2", "h2"));
    assert_eq!(shown(&world)[1..], [(2, "m2", None, true), (3, "m3", None, false), (4, "m2", None, false)]);
}

#[test]
fn removed_replacement_keeps_old_member() {
    let mut world = world(2);
    world.accept(join(&world, 3, "new", "h2"));
    world.accept(remove(3));
    assert_eq!(shown(&world)[1..], [(2, "m2", None, false), (3, "new", None, true)]);
    world.accept(delete(3));
    assert!(world.refuse(delete(2)).starts_with("manager m2 is not being removed or replaced"));
}

/// A member that is being replaced may never return, so the others cannot be removed because of it.
#[test]
fn replaced_member_is_not_a_desired_voter() {
    let mut world = world(2);
    world.accept(join(&world, 3, "m2", "h2"));
    world.accept(remove(1));
    for command in [remove(3), want(3, Suffrage::Learner)] {
        assert!(world.refuse(command).starts_with("manager m2 is the last desired voter"));
    }
    world.accept(remove(2));
    assert_eq!(shown(&world)[1..], [(2, "m2", None, true), (3, "m2", Some(2), false)]);
}

#[test]
fn moved_replacement_keeps_old_address_taken() {
    let mut world = world(2);
    world.accept(join(&world, 3, "new", "h2"));
    let address = Some(address("h3"));
    world.accept(Command::UpdateMember {
        member: 3,
        version: None,
        desired_suffrage: None,
        address,
        at: world.now,
    });
    let taken = "h2:8080 is the address of manager m2; use another address, or remove m2 first";
    assert_eq!(world.refuse(join(&world, 4, "m4", "h2")), taken);
    world.accept(remove(2));
    world.accept(join(&world, 4, "m4", "h2"));
    assert_eq!(
        shown(&world)[1..],
        [(2, "m2", None, true), (3, "new", Some(2), false), (4, "m4", None, false)]
    );
}

/// Of three managers, the second one has a node as well, at `host`: it runs both tasks of a service.
fn hybrid_world(host: &str) -> TestCluster {
    let mut world = world(3);
    let (name, role) = ("m2".parse().unwrap(), NodeRole::Manager);
    let own = NodeDescription { address: host.into(), ..description(resources(4000, 4096)) };
    world.accept(Command::RegisterNode {
        id: node_id(2),
        name,
        role,
        description: own,
        taints: Default::default(),
        at: world.now,
    });
    world.connect(2);
    world.service(1, spec("web", 2));
    world.settle();
    [1, 2].into_iter().for_each(|number| world.report(runs(number)));
    world
}

fn runs(number: u64) -> TaskReport {
    TaskReport { ready: true, ..report(task_id(1, number), 3, TaskState::Running) }
}

#[test]
fn tasks_of_reset_node_are_ended() {
    let mut world = hybrid_world("h2");
    world.accept(join(&world, 4, "m3", "h3"));
    assert!(world.task(1, 1).observed.ready, "another machine's disk was lost");

    world.accept(join(&world, 5, "m2", "h2"));
    let observed = world.task(1, 1).observed.clone();
    assert_eq!((observed.state, observed.ready, observed.removed), (TaskState::Shutdown, false, false));
    assert_eq!(observed.reason(), "node m2 rejoined without its data");
    world.connect(2);
    world.settle();
    assert_eq!(world.live(1), [(1, 3), (2, 4)], "others take their places");
    // An agent that lost nothing removes what it has, like one that lost everything.
    world.report(runs(1));
    assert_eq!(world.task(1, 1).observed, observed);
    world.report(TaskReport { removed: true, ..report(task_id(1, 2), 1, TaskState::Shutdown) });
    assert!(world.task(1, 2).observed.removed);
}

#[test]
fn tasks_of_other_node_with_same_name_continue() {
    let removed = [remove(2)];
    let gone = [remove(2), delete(2)];
    // Host of the node, what was done, which host joins, and whether it is the node's.
    let table = [
        ("h2", &removed[..], ("m2", "h9"), false),
        ("h2", &gone[..], ("m2", "h9"), false),
        ("h2", &gone[..], ("m2", "h2"), true),
        ("h9", &gone[..], ("m2", "h9"), true),
        // A manager's node need not be at its manager's address.
        ("h9", &[], ("m2", "h2"), true),
        ("h2", &[], ("new", "h2"), false),
    ];
    for (number, (host, done, (name, at), expected)) in table.into_iter().enumerate() {
        let mut world = hybrid_world(host);
        for command in done {
            world.accept(command.clone());
        }
        world.accept(join(&world, 4, name, at));
        let ended = [1, 2].map(|number| world.task(1, number).observed.state == TaskState::Shutdown);
        assert_eq!(ended, [expected; 2], "row {number}");
    }
}
