//! Managers: how they come, what people want of them, and how they go.

mod joining;

use warren_core::{Answer, Change, Command, LEVEL, Outcome, State};
use warren_types::*;

use crate::world::*;

/// The id in the certificate of that manager.
fn manager_id(number: u128) -> ManagerId {
    ManagerId(Id(number << 64 | number))
}

fn address(host: &str) -> ManagerAddress {
    format!("{host}:8080").parse().unwrap()
}

/// Manager `id` says at its start that it is that member, on a machine of its own.
fn register(world: &World, member: MemberId, id: u128) -> Command {
    let (name, address) = (format!("m{id}").parse().unwrap(), address(&format!("h{id}")));
    Command::RegisterMember { member, id: manager_id(id), name, address, level: LEVEL, at: world.now }
}

fn secret() -> TokenHash {
    TokenHash([7; 32])
}

/// A machine on `host` becomes manager `id`.
fn join(world: &World, id: u128, name: &str, host: &str) -> Command {
    let (id, name, address) = (manager_id(id), name.parse().unwrap(), address(host));
    Command::JoinManager { hash: secret(), id, name, address, level: LEVEL, at: world.now }
}

fn create_token(role: NodeRole, max_uses: Option<u32>) -> Command {
    let (id, at) = (TokenId(Id(1)), Timestamp(0));
    Command::CreateToken { id, role, hash: secret(), expires_at: None, max_uses, at }
}

fn want(member: MemberId, wanted: Suffrage) -> Command {
    Command::UpdateMember { member, version: None, wanted: Some(wanted), address: None, at: Timestamp(0) }
}

fn remove(member: MemberId) -> Command {
    Command::RemoveMember { member, at: Timestamp(0) }
}

fn delete(member: MemberId) -> Command {
    Command::DeleteMember { term: TERM, member }
}

/// A cluster with so many managers, on `h1`, `h2` and so on.
fn world(managers: u128) -> World {
    let mut world = World::new();
    world.accept(register(&world, 1, 1));
    world.accept(create_token(NodeRole::Manager, None));
    for id in 2..=managers {
        world.accept(join(&world, id, &format!("m{id}"), &format!("h{id}")));
    }
    world
}

/// The members: id, name, whom it replaces, whether it is being removed.
fn shown(world: &World) -> Vec<(MemberId, &str, Option<MemberId>, bool)> {
    let shown = |held: &'_ std::sync::Arc<Member>| (held.member, held.replaces, held.removing);
    let rest = world.state.members().map(shown);
    let names = world.state.members().map(|member| member.name.as_str());
    rest.zip(names).map(|((member, replaces, removing), name)| (member, name, replaces, removing)).collect()
}

#[test]
fn the_first_manager_says_who_it_is_and_makes_the_first_record() {
    let mut world = World::new();
    assert_eq!((world.state.next_member(), world.state.members().count()), (0, 0));
    let nobody = "member: 0 cannot be the first manager's; give 1 or more";
    assert_eq!(world.refuse(register(&world, 0, 1)), nobody);
    assert!(world.refuse(register(&world, u64::MAX, 1)).contains("cannot be the first manager's"));
    let command = register(&world, 3, 1);
    let Outcome::Applied { answer, changes } = world.run(&command) else { panic!("it is new") };
    let member = world.state.member(3).unwrap().clone();
    assert_eq!((&answer, changes), (&Answer::Member(member.clone()), vec![Change::Member(3)]));
    assert_eq!(member.version, 4);
    assert_eq!((member.wanted, member.created_at, member.level), (Suffrage::Voter, world.now, LEVEL));
    assert_eq!(world.state.next_member(), 4);
    assert_eq!(world.run(&command), Outcome::Unchanged { answer });
    let missing =
        format!("manager \"{}\" does not exist; `warren manager ls` shows what does", manager_id(2));
    assert_eq!(world.refuse(register(&world, 3, 2)), missing, "another one's id in the group");
    assert_eq!(world.refuse(register(&world, 4, 2)), missing, "it did not join");
}

#[test]
fn a_manager_says_what_became_of_it() {
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
    world.accept(moved("two", "h9", LEVEL + 1));
    let now = world.state.member_of(&manager_id(2)).unwrap();
    assert_eq!((now.name.as_str(), &now.address, now.level), ("two", &address("h9"), LEVEL + 1));
    assert!(now.version > before.version && now.created_at == before.created_at);
    let taken = "manager m1 already exists; choose another name or remove it first";
    assert_eq!(world.refuse(moved("m1", "h9", LEVEL)), taken);
    let taken = "h1:8080 is the address of manager m1; give this one's own address, or remove m1 first";
    assert_eq!(world.refuse(moved("two", "h1", LEVEL)), taken);
}

#[test]
fn every_command_is_harmless_the_second_time() {
    let mut world = World::new();
    let moved = Some(address("h8"));
    let commands = [
        register(&world, 1, 1),
        create_token(NodeRole::Manager, Some(3)),
        join(&world, 2, "m2", "h2"),
        join(&world, 3, "m3", "h3"),
        want(3, Suffrage::Learner),
        want(3, Suffrage::Voter),
        Command::UpdateMember { member: 3, version: Some(12), wanted: None, address: moved, at: world.now },
        join(&world, 4, "m2", "h2"),
        delete(2),
        remove(3),
        delete(3),
    ];
    for command in commands {
        let Outcome::Applied { answer, .. } = world.run(&command) else {
            panic!("{command:?} changed nothing")
        };
        assert_eq!(world.run(&command), Outcome::Unchanged { answer }, "{command:?}");
    }
    assert_eq!(shown(&world), [(1, "m1", None, false), (4, "m2", None, false)]);
    assert_eq!(world.state.token(&TokenId(Id(1))).unwrap().uses, 3);
}

#[test]
fn what_is_wanted_of_a_manager_depends_on_its_version_and_on_the_others() {
    let mut world = world(2);
    let update = |version, wanted| Command::UpdateMember {
        member: 2,
        version: Some(version),
        wanted: Some(wanted),
        address: None,
        at: Timestamp(0),
    };
    let conflict = "manager m2 is at version 4, not 3: it changed meanwhile; look again and repeat";
    assert_eq!(world.refuse(update(3, Suffrage::Learner)), conflict);
    world.accept(update(4, Suffrage::Learner));
    let last = "manager m1 is the last one that is to vote; add or promote another one first (`warren manager join`, \
                `warren manager promote`)";
    for command in [want(1, Suffrage::Learner), remove(1)] {
        assert_eq!(world.refuse(command), last);
    }
    world.accept(want(2, Suffrage::Voter));
    world.accept(remove(1));
    for command in [want(1, Suffrage::Learner), want(2, Suffrage::Learner), remove(2)] {
        world.refuse(command);
    }
    let going = "manager m1 is being removed; wait until it is gone (`warren manager ls`)";
    assert_eq!(world.refuse(want(1, Suffrage::Learner)), going);
    assert!(world.refuse(want(9, Suffrage::Voter)).starts_with("manager \"9\" does not exist"));
    let address = Some(address("h1"));
    world.accept(Command::UpdateMember { member: 2, version: None, wanted: None, address, at: world.now });
}

#[test]
fn only_a_manager_that_is_not_wanted_is_forgotten_and_only_by_a_plan() {
    let mut world = world(3);
    let stays = "manager m3 is neither being removed nor replaced; remove it first (`warren manager rm m3`)";
    assert_eq!(world.refuse(delete(3)), stays);
    assert_eq!(world.accept(remove(9)), Answer::Done, "it is gone");
    world.accept(remove(3));
    let stale = Command::DeleteMember { term: TERM - 1, member: 3 };
    assert_eq!(world.refuse(stale), "the plan is of term 2, the entry of term 3; plan again");
    assert_eq!(world.accept(delete(3)), Answer::Done);
    assert_eq!((world.state.member(3), world.state.next_member()), (None, 4));
    world.accept(join(&world, 3, "m3", "h3"));
    assert_eq!(world.state.member_of(&manager_id(3)).unwrap().member, 4, "ids are not given again");
}

#[test]
fn nodes_are_told_where_managers_are() {
    let mut world = world(2);
    world.node(1, resources(1000, 512));
    let told = |world: &World| {
        let settings = world.state.node_settings(&node_id(1)).unwrap();
        settings.managers.iter().map(|manager| manager.host().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(told(&world), ["h1", "h2"]);
    world.accept(join(&world, 3, "a", "h3"));
    world.accept(join(&world, 4, "m2", "h2"));
    assert_eq!(told(&world), ["h1", "h2", "h3"], "a manager and its replacement have one address");
    world.accept(remove(1));
    assert_eq!(told(&world), ["h2", "h3"]);
}

#[test]
fn a_session_says_which_manager_holds_it() {
    let mut world = World::new();
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
fn managers_are_found_by_name_id_beginning_and_address() {
    let mut world = world(3);
    let find = |world: &World, text: &str| match world.state.find_member(text) {
        Ok(member) => member.member.to_string(),
        Err(refusal) => refusal.to_string(),
    };
    let whole = manager_id(2).to_string();
    for text in ["m2", &whole, &whole[..24], "h2:8080"] {
        assert_eq!(find(&world, text), "2", "{text}");
    }
    assert!(find(&world, "0").starts_with("\"0\" begins more than one manager id"));
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
fn a_new_life_begins_with_one_manager_and_gives_no_id_again() {
    let mut world = world(3);
    world.node(1, resources(1000, 512));
    world.accept(remove(3));
    let at = Timestamp(1);
    world.accept(Command::CreateService { id: service_id(1), spec: spec("web", 1), at });
    let old = world.state.clone();
    let told = old.assignment_version(&node_id(1)).unwrap();
    let member = Member {
        member: 2,
        wanted: Suffrage::Learner,
        replaces: Some(1),
        removing: true,
        version: u64::MAX,
        created_at: Timestamp(u64::MAX),
        ..(**old.member(2).unwrap()).clone()
    };
    world.state.begin_new_life(member.clone(), Timestamp(0));
    world.state.check().unwrap();
    assert_eq!(State::restore(world.state.export()).unwrap(), world.state);
    assert_eq!(shown(&world), [(2, "m2", None, false)]);
    // Nor is any that may have been given by what was lost: whoever has one was removed.
    assert_eq!(world.state.next_member(), 2_000);
    let now = world.state.assignment_version(&node_id(1)).unwrap();
    assert!(now > told && now.incarnation == 2);
    assert_ne!(world.state.digest(), old.digest());
    // What lost entries may have given to tasks is given to nobody else.
    let service = (**world.state.service(&service_id(1)).unwrap()).clone();
    assert_eq!(service.next_task, 1_000_001);
    let far = 253 / 4 * 3;
    let expected = warren_core::state::Parts {
        services: vec![service.into()],
        subnets: old.export().subnets + 16,
        next_member: 2_000,
        departed: world.state.all_departed().collect(),
        nodes: old.nodes().map(|node| (node.clone(), far)).collect(),
        cluster: world.state.cluster().cloned(),
        members: world.state.members().cloned().collect(),
        digest: Some(world.state.digest().value),
        ..old.export()
    };
    assert_eq!(world.state.export(), expected, "nothing else changed");
    world.state.begin_new_life(Member { member: 1_009, ..member }, Timestamp(3_999));
    world.state.check().unwrap();
    assert_eq!((world.state.next_member(), world.state.cluster().unwrap().incarnation), (3_000, 3));
    world.accept(join(&world, 5, "m5", "h5"));
    assert_eq!(world.state.member_of(&manager_id(5)).unwrap().member, 3_000);
    // The same backup, restored later: that life is newer than the one that it knows nothing of.
    let mut again = old.clone();
    again.begin_new_life((**world.state.member(1_009).unwrap()).clone(), Timestamp(1_700_000_000_123));
    again.check().unwrap();
    assert_eq!(again.cluster().unwrap().incarnation, 1_700_000_000);
    assert_eq!(again.service(&service_id(1)).unwrap().next_task, 1_700_000_000_000);
    let mut nothing = State::new();
    nothing.begin_new_life((**world.state.member(1_009).unwrap()).clone(), Timestamp(0));
    assert_eq!(nothing, State::new());
}

#[test]
fn a_manager_that_left_is_remembered_until_it_joins_anew() {
    let mut world = world(4);
    let left =
        |world: &World, id: u128| world.state.departed(&manager_id(id)).map(|departed| departed.member);
    // Removed, replaced by 5, and demoted, which is no departure.
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
    assert_eq!(world.state.member_of(&manager_id(2)).unwrap().member, 6, "by another number");
    assert_eq!(State::restore(world.state.export()).unwrap(), world.state);
}

#[test]
fn of_too_many_managers_that_left_the_first_are_forgotten() {
    let mut world = world(1);
    let most = warren_core::state::MAX_REMOVED as u128;
    for id in 2..=most + 3 {
        let member = world.state.next_member();
        for command in [join(&world, id, "m", "h"), remove(member), delete(member)] {
            world.state.apply(TERM, world.state.applied().index + 1, &command);
        }
    }
    world.state.check().unwrap();
    let known = |id| world.state.departed(&manager_id(id)).is_some();
    assert_eq!([2, 3, 4, most + 3].map(known), [false, false, true, true]);
}

#[test]
fn in_a_new_life_of_the_cluster_all_others_left_and_no_number_is_given_again() {
    let mut world = world(3);
    let now = Timestamp(1_700_000_000_000);
    let own = Member::clone(world.state.member(2).unwrap());
    let founder = world.state.founder_at(now);
    let mut restored = world.state.clone();
    world.state.begin_new_life(own.clone(), now);
    restored.begin_new_life(Member { member: founder, id: manager_id(9), ..own }, now);
    assert_eq!(founder, 1_700_000_000_000, "the life's number is in it");
    let left = |state: &State| [1, 2, 3, 9].map(|id| state.departed(&manager_id(id)).map(|left| left.member));
    assert_eq!(left(&world.state), [Some(1), None, Some(3), None]);
    assert_eq!(left(&restored), [Some(1), Some(2), Some(3), None]);
    assert_eq!((world.state.next_member(), restored.next_member()), (founder, founder + 1));
    for state in [&world.state, &restored] {
        state.check().unwrap();
        assert_eq!(&State::restore(state.export()).unwrap(), state);
    }
    // Clocks may be wrong; then it is at least far from what the last life may have given.
    assert_eq!(World::new().state.founder_at(Timestamp(0)), 2_000);
    assert_eq!(restored.founder_at(Timestamp(0)), founder + 1 + 1_000);
}
