use warren_types::{Id, ManagerId, Member, NodeId, PublicKeyHash, Suffrage, Timestamp};

use super::{check, member, removed_node};

fn given() -> Member {
    Member {
        member_id: 1,
        manager_id: ManagerId(Id(1)),
        name: "m1".parse().unwrap(),
        address: "10.0.0.7:8080".parse().unwrap(),
        desired_suffrage: Suffrage::Voter,
        replaces: None,
        removing: false,
        level: 2,
        version: 1,
        created_at: Timestamp(1),
        administrator_key: None,
    }
}

#[test]
fn every_member_field_changes_hash() {
    let changes: &[fn(&mut Member)] = &[
        |m| m.member_id = 2,
        |m| m.administrator_key = Some(PublicKeyHash([0; 32])),
        |m| m.manager_id = ManagerId(Id(2)),
        |m| m.manager_id = ManagerId(Id(1 << 64)),
        |m| m.name = "m2".parse().unwrap(),
        |m| m.address = "10.0.0.8:8080".parse().unwrap(),
        |m| m.address = "10.0.0.7:8081".parse().unwrap(),
        |m| m.desired_suffrage = Suffrage::Learner,
        |m| m.replaces = Some(0),
        |m| m.replaces = Some(2),
        |m| m.removing = true,
        |m| m.level = 3,
        |m| m.version = 2,
        |m| m.created_at = Timestamp(2),
    ];
    check(member, &given(), changes);
    let (one, other) = (NodeId(Id(1)), NodeId(Id(1 << 64)));
    check(
        |(node, index)| removed_node(*node, *index),
        &(one, 2),
        &[|r| r.0 = NodeId(Id(1 << 64)), |r| r.1 = 3],
    );
    assert_ne!(removed_node(one, 2), removed_node(other, 2));
}

/// Members of different versions compare these numbers.
#[test]
fn member_hashes_are_stable() {
    let found = [member(&given()), removed_node(NodeId(Id(9)), 3)];
    assert_eq!(found, [0xa38d_75da_99c9_68a4, 0x4000_3713_ec17_94dc], "{found:#x?}");
}
