//! An exported state can be restored, and invalid parts are rejected.

use std::sync::Arc;

use warren_core::state::{MAX_MEMBERS, MAX_REMOVED_NODES, StateParts};
use warren_core::{Command, FEATURE_LEVEL, State};
use warren_types::*;

use crate::test_cluster::*;

fn parts() -> StateParts {
    let mut world = TestCluster::with_nodes(2);
    world.service(1, publishing("web", 3, 8080));
    world.service(2, reserving("api", 2, resources(100, 64)));
    world.secret(1, "key", 1);
    world.secret(2, "cert", 1);
    world.update_secret(1, 2);
    world.volume(1, "spare", None);
    let mounts = with_volumes("db", 1, &["data"]).task.mounts;
    let mut db = with_secrets("db", 1, &["key"]);
    db.task.mounts = mounts;
    world.service(3, db);
    world.settle();
    world.observe(task_id(1, 2), TaskState::Failed);
    world.set_down(2);
    world.settle();
    world.node(3, resources(1, 1));
    world.remove_node(3);
    managers(&mut world);
    world.state.export()
}

/// 1 and 3, 2 that is replaced by 4, 5 that is being removed, and 6 that left.
fn managers(world: &mut TestCluster) {
    let (role, hash, at) = (NodeRole::Manager, TokenHash([1; 32]), world.now);
    let (expires_at, max_uses, labels) = (None, None, Default::default());
    world.accept(Command::CreateToken { id: TokenId(Id(1)), role, hash, expires_at, max_uses, labels, at });
    for (number, host) in [(1, 1), (2, 2), (3, 3), (4, 2), (5, 5), (6, 6)] {
        let (id, name) = (ManagerId(Id(number)), format!("m{number}").parse().unwrap());
        let (level, address) = (FEATURE_LEVEL, format!("10.0.0.{host}:8080").parse().unwrap());
        world.accept(match number {
            1 => Command::RegisterMember { member: 1, id, name, address, level, at },
            _ => Command::JoinManager { hash, id, name, address, level, at },
        });
    }
    world.accept(Command::RemoveMember { member: 5, at });
    world.accept(Command::RemoveMember { member: 6, at });
    world.accept(Command::DeleteMember { term: TERM, member: 6 });
}

#[test]
fn a_restored_state_is_the_same() {
    let parts = parts();
    let restored = State::restore(parts.clone()).unwrap();
    restored.check().unwrap();
    assert_eq!(restored.export(), parts);
}

#[test]
fn restored_tasks_share_revision() {
    let mut parts = parts();
    for task in &mut parts.tasks {
        let copy = Revision::clone(&task.revision);
        Arc::make_mut(task).revision = Arc::new(copy);
    }
    let restored = State::restore(parts.clone()).unwrap();
    assert_eq!(restored.export(), parts);
    for task in restored.tasks() {
        assert!(Arc::ptr_eq(&task.revision, &restored.service(&task.id.service).unwrap().revision));
    }
}

/// A damaged snapshot is rejected.
#[track_caller]
fn check(damage: impl FnOnce(&mut StateParts), expected: &str) {
    let mut parts = parts();
    damage(&mut parts);
    let broken = State::restore(parts).unwrap_err().to_string();
    assert!(broken.contains(expected), "{broken}");
}

#[test]
fn inconsistent_snapshot_is_refused() {
    fn task(parts: &mut StateParts) -> &mut Task {
        Arc::make_mut(&mut parts.tasks[0])
    }
    fn node(parts: &mut StateParts) -> &mut Node {
        Arc::make_mut(&mut parts.nodes[0].0)
    }
    check(|parts| parts.cluster = None, "without a cluster");
    check(|parts| drop(parts.services.remove(0)), "without a service");
    check(|parts| drop(parts.nodes.remove(0)), "on a node that was removed");
    check(|parts| node(parts).subnets[0] = "11.0.0.0/24".parse().unwrap(), "is not of a range");
    check(|parts| node(parts).number = 0, "number 0 was given twice");
    check(|parts| parts.applied.index = 0, "is of a later entry");
    check(|parts| parts.clock = Timestamp(0), "in the future");
    let crowd = |parts: &mut StateParts| parts.tasks.iter_mut().for_each(|task| Arc::make_mut(task).slot = 2);
    check(crowd, "is the third live one of slot 2");
    check(|parts| task(parts).slot = 0, "has slot 0");
    check(|parts| task(parts).address = Some([10, 0, 0, 1].into()), "is not for tasks of");
    check(|parts| task(parts).address = None, "with None");
    check(
        |parts| task(parts).rare.update(|special| special.lost_since = Some(Timestamp(1))),
        "is lost since",
    );
    check(|parts| task(parts).observed.removed = true, "is removed and");
    check(|parts| task(parts).observed.state = TaskState::Starting, "is ready and");
    check(
        |parts| Arc::make_mut(&mut task(parts).revision).number = 1 << 40,
        "which its service does not know",
    );
    check(|parts| Arc::make_mut(&mut task(parts).revision).ports.clear(), "has another revision 1");
    check(|parts| task(parts).id.number = 99, "has a number to come");
    check(|parts| node(parts).subnets[0] = "10.0.1.0/24".parse().unwrap(), "was given twice");
    check(|parts| node(parts).name = "node-2".parse().unwrap(), "two nodes are called node-2");
    check(|parts| node(parts).session = 0, "in session 0");
    let taken = |parts: &mut StateParts| {
        let address =
            parts.tasks.iter().filter_map(|t| t.address.filter(|a| a.octets()[2] == 0)).collect::<Vec<_>>();
        for shared in &mut parts.tasks {
            let task = Arc::make_mut(shared);
            if task.address == Some(address[1]) {
                task.address = Some(address[0]);
            }
        }
    };
    check(taken, "is held by");
}

#[test]
fn inconsistent_storage_snapshot_is_refused() {
    fn content(parts: &mut StateParts) -> &mut SecretObject {
        Arc::make_mut(&mut parts.secret_objects[1])
    }
    fn volume<'a>(parts: &'a mut StateParts, name: &str) -> &'a mut Volume {
        let found = parts.volumes.iter_mut().find(|volume| volume.name.as_str() == name);
        Arc::make_mut(found.unwrap())
    }
    fn user(parts: &mut StateParts) -> &mut Task {
        Arc::make_mut(parts.tasks.iter_mut().find(|task| task.id.service == service_id(3)).unwrap())
    }
    fn db(parts: &mut StateParts) -> &mut Service {
        Arc::make_mut(&mut parts.services[2])
    }
    check(|parts| parts.secret_objects.clear(), "which is gone");
    check(|parts| content(parts).versions.clear(), "keeps 0 versions");
    check(|parts| drop(Arc::make_mut(&mut parts.secret_objects[0]).versions.remove(&2)), "which is gone");
    check(
        |parts| Arc::make_mut(&mut parts.secret_objects[0]).kind = SecretObjectKind::Config,
        "which is gone",
    );
    let shift = |parts: &mut StateParts| {
        let versions = &mut content(parts).versions;
        let first = versions[&1].clone();
        versions.insert(7, first);
    };
    check(shift, "keeps the versions [1, 7]");
    check(|parts| content(parts).name = "key".parse().unwrap(), "two of kind secret are called key");
    check(|parts| content(parts).version = 1 << 40, "is of a later entry");
    check(|parts| content(parts).updated_at = Timestamp(u64::MAX), "in the future");
    check(|parts| Arc::make_mut(content(parts).versions.get_mut(&1).unwrap()).size = 1 << 30, "is too large");
    check(
        |parts| Arc::make_mut(content(parts).versions.get_mut(&1).unwrap()).sealed[0] = 9,
        "the digest of its content",
    );
    check(|parts| parts.volumes.clear(), "has not its volume");
    check(|parts| volume(parts, "data").removing = true, "has not its volume");
    check(|parts| volume(parts, "data").node = Some(node_id(9)), "has not its volume");
    check(|parts| volume(parts, "spare").name = "data".parse().unwrap(), "two volumes are called data");
    check(|parts| volume(parts, "spare").removing = true, "waits for its end");
    check(|parts| volume(parts, "spare").options = [("x".into(), "y".into())].into(), "is not an option");
    check(|parts| volume(parts, "spare").version = 1 << 40, "is of a later entry");
    check(|parts| user(parts).rare.update(|special| special.volumes.clear()), "has the volumes []");
    check(|parts| Arc::make_mut(&mut db(parts).spec).task.secrets.clear(), "and should use {}");
    check(|parts| user(parts).observed.health = Health::Unhealthy, "is Running and Unhealthy");
}

#[test]
fn inconsistent_member_snapshot_is_refused() {
    fn member(parts: &mut StateParts, number: usize) -> &mut Member {
        Arc::make_mut(&mut parts.members[number - 1])
    }
    let add = |parts: &mut StateParts, number: usize| {
        let id = ManagerId(Id(number as u128 * 1000));
        let (name, address) = (format!("n{number}"), format!("n{number}:1"));
        let (name, address) = (name.parse().unwrap(), address.parse().unwrap());
        let like =
            Member { member_id: number as u64, manager_id: id, name, address, ..(*parts.members[0]).clone() };
        parts.members.push(Arc::new(like));
        parts.next_member_id = number as u64 + 1;
    };
    check(|parts| parts.next_member_id = 5, "member 5 was never given");
    check(|parts| parts.next_member_id = 0, "there are 5 managers, and the next is 0");
    check(|parts| parts.members.clear(), "there are 0 managers, and the next is 7");
    check(|parts| member(parts, 1).member_id = 0, "member 0 was never given");
    check(|parts| (6..=MAX_MEMBERS + 1).for_each(|number| add(parts, number)), "there are 17 managers");
    check(|parts| member(parts, 1).manager_id = ManagerId(Id(5)), "two managers are");
    check(|parts| member(parts, 1).version = 1 << 40, "member 1 is of a later entry");
    check(|parts| member(parts, 1).created_at = Timestamp(u64::MAX), "member 1 joined in the future");
    check(|parts| member(parts, 3).name = "m1".parse().unwrap(), "are both called m1");
    check(|parts| member(parts, 3).address = "10.0.0.1:8080".parse().unwrap(), "or reached at 10.0.0.1:8080");
    check(|parts| member(parts, 4).replaces = None, "managers 4 and Some(2) are both");
    check(|parts| member(parts, 4).replaces = Some(4), "member 4 cannot replace 4");
    check(|parts| member(parts, 4).replaces = Some(9), "member 4 cannot replace 9");
    check(|parts| member(parts, 4).removing = true, "member 4 cannot replace 2");
    check(|parts| member(parts, 3).replaces = Some(2), "member 2 is replaced by 4 and Some(3)");
    check(|parts| member(parts, 2).replaces = Some(1), "member 4 cannot replace 2");
    let demote = |parts: &mut StateParts, number| member(parts, number).desired_suffrage = Suffrage::Learner;
    check(|parts| [1, 3, 4].into_iter().for_each(|number| demote(parts, number)), "no manager is to vote");
    check(|parts| parts.removed_nodes[0].0 = node_id(1), "was removed and is there");
    check(|parts| parts.removed_nodes[0].1 = 1 << 40, "was removed by a later entry");
    let many = (0..=MAX_REMOVED_NODES as u128).map(|number| (node_id(1000 + number), 1));
    check(|parts| parts.removed_nodes = many.collect(), "1025 removed nodes are recorded");
    check(|parts| parts.removed_nodes.clear(), "the digest of its content");
    check(|parts| parts.departed_managers[0].0 = ManagerId(Id(1)), "left and is there");
    check(|parts| parts.departed_managers[0].1.member = 1, "which another one was or is");
    check(|parts| parts.departed_managers[0].1.member = 99, "which another one was or is");
    check(
        |parts| parts.departed_managers.push((ManagerId(Id(7)), parts.departed_managers[0].1)),
        "which another one was or is",
    );
    check(|parts| parts.departed_managers[0].1.index = 1 << 40, "left with a later entry");
    check(|parts| parts.departed_managers.clear(), "the digest of its content");
    let revoked = |at| RevokedKey { holder: "ann".to_owned(), revoked_at: at };
    let one = |at| vec![(PublicKeyHash([1; 32]), revoked(at))];
    check(|parts| parts.revoked_keys = one(Timestamp(1)), "the digest of its content");
    check(|parts| parts.revoked_keys = one(Timestamp(u64::MAX)), "is revoked in the future");
    check(|parts| parts.next_member_id = 8, "the digest of its content");
    check(|parts| member(parts, 1).level = 9, "the digest of its content");
}
