//! Managers, with so few numbers that names and addresses conflict.

use proptest::prelude::*;
use warren_core::Command;
use warren_types::*;

use super::{secret, term, time};

fn member() -> impl Strategy<Value = MemberId> {
    prop_oneof![9 => 0..7u64, 1 => Just(u64::MAX)]
}

fn id() -> impl Strategy<Value = ManagerId> {
    (1..6u128).prop_map(|number| ManagerId(Id(number)))
}

fn name() -> impl Strategy<Value = NodeName> {
    "[abc]".prop_map(|name| name.parse().unwrap())
}

fn address() -> impl Strategy<Value = ManagerAddress> {
    "h[123]:80".prop_map(|address| address.parse().unwrap())
}

pub fn command() -> impl Strategy<Value = Command> {
    let expected = prop::option::of(prop_oneof![Just(Suffrage::Voter), Just(Suffrage::Learner)]);
    let version = prop::option::weighted(0.2, 0..9u64);
    prop_oneof![
        2 => (member(), id(), name(), address(), 0..4u32, time()).prop_map(
            |(member, id, name, address, level, at)| {
                Command::RegisterMember { member, id, name, address, level, at }
            }
        ),
        4 => (secret(), id(), name(), address(), 1..4u32, time()).prop_map(
            |(hash, id, name, address, level, at)| Command::JoinManager { hash, id, name, address, level, at }
        ),
        2 => (member(), version, expected, prop::option::of(address()), time()).prop_map(
            |(member, version, expected, address, at)| {
                Command::UpdateMember { member, version, desired_suffrage: expected, address, at }
            }
        ),
        1 => (member(), time()).prop_map(|(member, at)| Command::RemoveMember { member, at }),
        1 => (term(), member()).prop_map(|(term, member)| Command::DeleteMember { term, member }),
    ]
}
