//! Managers: registration, suffrage, replacement and removal.

mod joining;

use warren_core::{ApplyOutcome, Command, CommandResponse, FEATURE_LEVEL, State, StateChange};
use warren_types::*;

use crate::test_cluster::*;

/// The id in the certificate of that manager.
fn manager_id(number: u128) -> ManagerId {
    ManagerId(Id(number << 64 | number))
}

fn address(host: &str) -> ManagerAddress {
    format!("{host}:8080").parse().unwrap()
}

/// Manager `id` registers as that member, on a host of its own.
fn register(world: &TestCluster, member: MemberId, id: u128) -> Command {
    let (name, address) = (format!("m{id}").parse().unwrap(), address(&format!("h{id}")));
    Command::RegisterMember { member, id: manager_id(id), name, address, level: FEATURE_LEVEL, at: world.now }
}

fn secret() -> TokenHash {
    TokenHash([7; 32])
}

/// The host `host` becomes manager `id`.
fn join(world: &TestCluster, id: u128, name: &str, host: &str) -> Command {
    let (id, name, address) = (manager_id(id), name.parse().unwrap(), address(host));
    Command::JoinManager { hash: secret(), id, name, address, level: FEATURE_LEVEL, at: world.now }
}

fn create_token(role: NodeRole, max_uses: Option<u32>) -> Command {
    let (id, at) = (TokenId(Id(1)), Timestamp(0));
    let labels = Default::default();
    Command::CreateToken { id, role, hash: secret(), expires_at: None, max_uses, labels, at }
}

fn want(member: MemberId, expected: Suffrage) -> Command {
    Command::UpdateMember {
        member,
        version: None,
        desired_suffrage: Some(expected),
        address: None,
        at: Timestamp(0),
    }
}

fn remove(member: MemberId) -> Command {
    Command::RemoveMember { member, at: Timestamp(0) }
}

fn delete(member: MemberId) -> Command {
    Command::DeleteMember { term: TERM, member }
}

/// A cluster with this many managers, on `h1`, `h2` and so on.
fn world(managers: u128) -> TestCluster {
    let mut world = TestCluster::new();
    world.accept(register(&world, 1, 1));
    world.accept(create_token(NodeRole::Manager, None));
    for id in 2..=managers {
        world.accept(join(&world, id, &format!("m{id}"), &format!("h{id}")));
    }
    world
}

/// The members: id, name, which one it replaces, whether it is being removed.
fn shown(world: &TestCluster) -> Vec<(MemberId, &str, Option<MemberId>, bool)> {
    let shown = |held: &'_ std::sync::Arc<Member>| (held.member_id, held.replaces, held.removing);
    let rest = world.state.members().map(shown);
    let names = world.state.members().map(|member| member.name.as_str());
    rest.zip(names).map(|((member, replaces, removing), name)| (member, name, replaces, removing)).collect()
}

#[test]
fn first_registration_creates_first_member() {
    let mut world = TestCluster::new();
    assert_eq!((world.state.next_member_id(), world.state.members().count()), (0, 0));
    let nobody = "member: 0 cannot be the first manager's; give 1 or more";
    assert_eq!(world.refuse(register(&world, 0, 1)), nobody);
    assert!(world.refuse(register(&world, u64::MAX, 1)).contains("cannot be the first manager's"));
    let command = register(&world, 3, 1);
    let ApplyOutcome::Applied { response: answer, changes } = world.apply(&command) else {
        panic!("it is new")
    };
    let member = world.state.member(3).unwrap().clone();
    assert_eq!((&answer, changes), (&CommandResponse::Member(member.clone()), vec![StateChange::Member(3)]));
    assert_eq!(member.version, 4);
    assert_eq!(
        (member.desired_suffrage, member.created_at, member.level),
        (Suffrage::Voter, world.now, FEATURE_LEVEL)
    );
    assert_eq!(world.state.next_member_id(), 4);
    assert_eq!(world.apply(&command), ApplyOutcome::Unchanged { answer });
    let missing =
        format!("manager \"{}\" does not exist; `warren manager ls` lists the existing ones", manager_id(2));
    assert_eq!(world.refuse(register(&world, 3, 2)), missing, "another one's id in the group");
    assert_eq!(world.refuse(register(&world, 4, 2)), missing, "it did not join");
}

#[test]
fn registration_updates_member() {
    let mut world = world(2);
    let before = world.state.member(2).unwrap().clone();
    let moved = |name: &str, host: &str, level| Command::RegisterMember {
        member: 2,
        id: manager_id(2),
        name: name.parse().unwrap(),
        address: address(host),
        level,
        at: Timestamp(0),
    };
    world.accept(moved("two", "h9", FEATURE_LEVEL + 1));
    let now = world.state.member_of_manager(&manager_id(2)).unwrap();
    assert_eq!((now.name.as_str(), &now.address, now.level), ("two", &address("h9"), FEATURE_LEVEL + 1));
    assert!(now.version > before.version && now.created_at == before.created_at);
    let taken = "manager m1 already exists; choose another name or remove it first";
    assert_eq!(world.refuse(moved("m1", "h9", FEATURE_LEVEL)), taken);
    let taken = "h1:8080 is the address of manager m1; use another address, or remove m1 first";
    assert_eq!(world.refuse(moved("two", "h1", FEATURE_LEVEL)), taken);
}

#[test]
fn repeated_member_commands_change_nothing() {
    let mut world = TestCluster::new();
    let moved = Some(address("h8"));
    let commands = [
        register(&world, 1, 1),
        create_token(NodeRole::Manager, Some(3)),
        join(&world, 2, "m2", "h2"),
        join(&world, 3, "m3", "h3"),
        want(3, Suffrage::Learner),
        want(3, Suffrage::Voter),
        Command::UpdateMember {
            member: 3,
            version: Some(12),
            desired_suffrage: None,
            address: moved,
            at: world.now,
        },
        join(&world, 4, "m2", "h2"),
        delete(2),
        remove(3),
        delete(3),
    ];
    for command in commands {
        let ApplyOutcome::Applied { response: answer, .. } = world.apply(&command) else {
            panic!("{command:?} changed nothing")
        };
        assert_eq!(world.apply(&command), ApplyOutcome::Unchanged { answer }, "{command:?}");
    }
    assert_eq!(shown(&world), [(1, "m1", None, false), (4, "m2", None, false)]);
    assert_eq!(world.state.token(&TokenId(Id(1))).unwrap().uses, 3);
}

#[test]
fn update_member_checks_version_and_last_voter() {
    let mut world = world(2);
    let update = |version, expected| Command::UpdateMember {
        member: 2,
        version: Some(version),
        desired_suffrage: Some(expected),
        address: None,
        at: Timestamp(0),
    };
    let conflict = "manager m2 is at version 4, not 3: it changed meanwhile; read it again and retry";
    assert_eq!(world.refuse(update(3, Suffrage::Learner)), conflict);
    world.accept(update(4, Suffrage::Learner));
    let last = "manager m1 is the last desired voter; add or promote another one first (`warren manager join`, \
                `warren manager promote`)";
    for command in [want(1, Suffrage::Learner), remove(1)] {
        assert_eq!(world.refuse(command), last);
    }
    world.accept(want(2, Suffrage::Voter));
    world.accept(remove(1));
    for command in [want(1, Suffrage::Learner), want(2, Suffrage::Learner), remove(2)] {
        world.refuse(command);
    }
    let going = "manager m1 is being removed; wait until it is removed (`warren manager ls`)";
    assert_eq!(world.refuse(want(1, Suffrage::Learner)), going);
    assert!(world.refuse(want(9, Suffrage::Voter)).starts_with("manager \"9\" does not exist"));
    let address = Some(address("h1"));
    world.accept(Command::UpdateMember {
        member: 2,
        version: None,
        desired_suffrage: None,
        address,
        at: world.now,
    });
}

#[test]
fn delete_member_requires_removing_and_plan() {
    let mut world = world(3);
    let stays = "manager m3 is not being removed or replaced; remove it first (`warren manager rm m3`)";
    assert_eq!(world.refuse(delete(3)), stays);
    assert_eq!(world.accept(remove(9)), CommandResponse::Done, "it is gone");
    world.accept(remove(3));
    let stale = Command::DeleteMember { term: TERM - 1, member: 3 };
    assert_eq!(world.refuse(stale), "the plan is of term 2, the entry of term 3; plan again");
    assert_eq!(world.accept(delete(3)), CommandResponse::Done);
    assert_eq!((world.state.member(3), world.state.next_member_id()), (None, 4));
    world.accept(join(&world, 3, "m3", "h3"));
    assert_eq!(
        world.state.member_of_manager(&manager_id(3)).unwrap().member_id,
        4,
        "ids are not given again"
    );
}

#[test]
fn node_settings_list_managers() {
    let mut world = world(2);
    world.node(1, resources(1000, 512));
    let reported = |world: &TestCluster| {
        let settings = world.state.node_settings(&node_id(1)).unwrap();
        settings.managers.iter().map(|manager| manager.host().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(reported(&world), ["h1", "h2"]);
    world.accept(join(&world, 3, "a", "h3"));
    world.accept(join(&world, 4, "m2", "h2"));
    assert_eq!(reported(&world), ["h1", "h2", "h3"], "a manager and its replacement have one address");
    world.accept(remove(1));
    assert_eq!(reported(&world), ["h2", "h3"]);
}

#[test]
fn session_records_its_manager() {
    let mut world = TestCluster::new();
    world.node(1, resources(1000, 512));
    let (node, description) = (node_id(1), description(resources(1000, 512)));
    let open =
        |manager| Command::OpenSession { node, description: description.clone(), manager, at: Timestamp(0) };
    for (manager, found) in [(2, Some(2)), (3, Some(3)), (0, None)] {
        world.accept(open(manager));
        assert_eq!(world.state.node(&node).unwrap().manager, found);
    }
}

#[test]
fn managers_are_found_by_name_id_prefix_and_address() {
    let mut world = world(3);
    let find = |world: &TestCluster, text: &str| match world.state.find_member(text) {
        Ok(member) => member.member_id.to_string(),
        Err(refusal) => refusal.to_string(),
    };
    let whole = manager_id(2).to_string();
    for text in ["m2", &whole, &whole[..24], "h2:8080"] {
        assert_eq!(find(&world, text), "2", "{text}");
    }
    assert!(find(&world, "0").starts_with("\"0\" is a prefix of more than one manager id"));
    for missing in ["", "m9", "h9:8080", "h2", "2"] {
        assert!(
            find(&world, missing).starts_with(&format!("manager {missing:?} does not exist")),
            "{missing}"
        );
    }
    world.accept(join(&world, 4, "m2", "h2"));
    assert_eq!([find(&world, "m2"), find(&world, "h2:8080"), find(&world, &whole)], ["4", "4", "2"]);
    world.accept(remove(3));
    assert_eq!([find(&world, "m3"), find(&world, "h3:8080")], ["3", "3"]);
    world.accept(join(&world, 5, "m3", "h3"));
    assert_eq!([find(&world, "m3"), find(&world, "h3:8080")], ["5", "5"]);
}

#[test]
fn new_incarnation_has_one_manager_and_new_ids() {
    let mut world = world(3);
    world.node(1, resources(1000, 512));
    world.accept(remove(3));
    let at = Timestamp(1);
    world.accept(Command::CreateService { id: service_id(1), spec: spec("web", 1), at });
    let old = world.state.clone();
    let reported = old.assignment_version(&node_id(1)).unwrap();
    let member = Member {
        member_id: 2,
        desired_suffrage: Suffrage::Learner,
        replaces: Some(1),
        removing: true,
        version: u64::MAX,
        created_at: Timestamp(u64::MAX),
        ..(**old.member(2).unwrap()).clone()
    };
    world.state.begin_incarnation(member.clone(), Timestamp(0));
    world.state.check().unwrap();
    assert_eq!(State::restore(world.state.export()).unwrap(), world.state);
    assert_eq!(shown(&world), [(2, "m2", None, false)]);
    // No id that the lost writes may have allocated is reused: a member with one was removed.
    assert_eq!(world.state.next_member_id(), 2_000);
    let now = world.state.assignment_version(&node_id(1)).unwrap();
    assert!(now > reported && now.incarnation == 2);
    assert_ne!(world.state.digest(), old.digest());
    // What lost writes may have allocated to tasks is not allocated again.
    let service = (**world.state.service(&service_id(1)).unwrap()).clone();
    assert_eq!(service.next_task_number, 1_000_001);
    let far = 253 / 4 * 3;
    let expected = warren_core::state::StateParts {
        services: vec![service.into()],
        subnet_cursor: old.export().subnet_cursor + 16,
        next_member_id: 2_000,
        departed_managers: world.state.departed_managers().collect(),
        nodes: old.nodes().map(|node| (node.clone(), far)).collect(),
        cluster: world.state.cluster().cloned(),
        members: world.state.members().cloned().collect(),
        digest: Some(world.state.digest().value),
        ..old.export()
    };
    assert_eq!(world.state.export(), expected, "nothing else changed");
    world.state.begin_incarnation(Member { member_id: 1_009, ..member }, Timestamp(3_999));
    world.state.check().unwrap();
    assert_eq!((world.state.next_member_id(), world.state.cluster().unwrap().incarnation), (3_000, 3));
    world.accept(join(&world, 5, "m5", "h5"));
    assert_eq!(world.state.member_of_manager(&manager_id(5)).unwrap().member_id, 3_000);
    // The same backup, restored later: that incarnation is newer than the one that it does not know of.
    let mut again = old.clone();
    again.begin_incarnation((**world.state.member(1_009).unwrap()).clone(), Timestamp(1_700_000_000_123));
    again.check().unwrap();
    assert_eq!(again.cluster().unwrap().incarnation, 1_700_000_000);
    assert_eq!(again.service(&service_id(1)).unwrap().next_task_number, 1_700_000_000_000);
    let mut nothing = State::new();
    nothing.begin_incarnation((**world.state.member(1_009).unwrap()).clone(), Timestamp(0));
    assert_eq!(nothing, State::new());
}

#[test]
fn departed_manager_is_recorded_until_it_rejoins() {
    let mut world = world(4);
    let left = |world: &TestCluster, id: u128| {
        world.state.departed_manager(&manager_id(id)).map(|departed| departed.member)
    };
    // Removed, replaced by 5, and demoted, which is not a departure.
    world.accept(remove(2));
    world.accept(join(&world, 5, "m3", "h3"));
    world.accept(want(4, Suffrage::Learner));
    assert_eq!([1, 2, 3, 4, 5].map(|id| left(&world, id)), [None; 5], "they are in the group still");
    world.accept(delete(2));
    world.accept(delete(3));
    world.accept(delete(3));
    assert_eq!([1, 2, 3, 4, 5, 9].map(|id| left(&world, id)), [None, Some(2), Some(3), None, None, None]);
    assert_eq!(State::restore(world.state.export()).unwrap(), world.state);
    world.accept(join(&world, 2, "again", "h2"));
    assert_eq!((left(&world, 2), left(&world, 3)), (None, Some(3)));
    assert_eq!(world.state.member_of_manager(&manager_id(2)).unwrap().member_id, 6, "by another number");
    assert_eq!(State::restore(world.state.export()).unwrap(), world.state);
}

#[test]
fn departed_managers_are_bounded() {
    let mut world = world(1);
    let most = warren_core::state::MAX_REMOVED_NODES as u128;
    for id in 2..=most + 3 {
        let member = world.state.next_member_id();
        for command in [join(&world, id, "m", "h"), remove(member), delete(member)] {
            world.state.apply(TERM, world.state.applied().index + 1, &command);
        }
    }
    world.state.check().unwrap();
    let known = |id| world.state.departed_manager(&manager_id(id)).is_some();
    assert_eq!([2, 3, 4, most + 3].map(known), [false, false, true, true]);
}

#[test]
fn new_incarnation_departs_others_and_skips_numbers() {
    let mut world = world(3);
    let now = Timestamp(1_700_000_000_000);
    let own = Member::clone(world.state.member(2).unwrap());
    let founder = world.state.first_member_id_at(now);
    let mut restored = world.state.clone();
    world.state.begin_incarnation(own.clone(), now);
    restored.begin_incarnation(Member { member_id: founder, manager_id: manager_id(9), ..own }, now);
    assert_eq!(founder, 1_700_000_000_000, "the number of the incarnation is in it");
    let left = |state: &State| {
        [1, 2, 3, 9].map(|id| state.departed_manager(&manager_id(id)).map(|left| left.member))
    };
    assert_eq!(left(&world.state), [Some(1), None, Some(3), None]);
    assert_eq!(left(&restored), [Some(1), Some(2), Some(3), None]);
    assert_eq!((world.state.next_member_id(), restored.next_member_id()), (founder, founder + 1));
    for state in [&world.state, &restored] {
        state.check().unwrap();
        assert_eq!(&State::restore(state.export()).unwrap(), state);
    }
    // Clocks may be wrong; then it is at least far from the ids of the last incarnation.
    assert_eq!(TestCluster::new().state.first_member_id_at(Timestamp(0)), 2_000);
    assert_eq!(restored.first_member_id_at(Timestamp(0)), founder + 1 + 1_000);
}
