//! Nodes, managers, and the tokens that make machines either, as one number each.

use warren_types::{
    Availability, ManagerId, Member, Node, NodeCondition, NodeDescription, NodeId, NodeRole, NodeStatus,
    Resources, Suffrage, Token,
};
use xxhash_rust::xxh3::xxh3_64;

use super::{Kind, flags, halves, hash, labels, later, list, net, pair, text};
use crate::state::Departed;

/// A node.
pub(in crate::state) fn node(node: &Node) -> u64 {
    let Node {
        id,
        name,
        version,
        created_at,
        role,
        labels: given,
        availability,
        description,
        subnet,
        status,
        status_since,
        session,
        assignment,
        conditions,
        manager,
    } = node;
    let [high, low] = halves(id.0);
    let status = match status {
        NodeStatus::Unknown => 0,
        NodeStatus::Ready => 1,
        NodeStatus::Down => 2,
    };
    let known = hash([
        Kind::Node as u64,
        high,
        low,
        text(name.as_str()),
        *version,
        created_at.0,
        node_description(description),
        net(subnet),
        status,
        status_since.0,
        *session,
        *assignment,
        role_word(*role),
        labels(given),
        match availability {
            Availability::Active => 1,
            Availability::Pause => 2,
            Availability::Drain => 3,
        },
    ]);
    let known = later(known, 1, list(conditions.iter().map(|condition| node_condition(*condition))));
    later(known, 2, manager.unwrap_or(0))
}

fn node_condition(condition: NodeCondition) -> u64 {
    match condition {
        NodeCondition::RuntimeDown => 1,
        NodeCondition::NetworkBroken => 2,
        NodeCondition::DiskLow => 3,
        NodeCondition::MemoryPressure => 4,
        NodeCondition::ClockOff => 5,
    }
}

/// A join token.
pub(in crate::state) fn token(token: &Token) -> u64 {
    let Token { id, version, role, hash: secret, created_at, expires_at, uses, max_uses } = token;
    let [high, low] = halves(id.0);
    hash([
        Kind::Token as u64,
        high,
        low,
        *version,
        role_word(*role),
        xxh3_64(&secret.0),
        created_at.0,
        flags([expires_at.is_some(), max_uses.is_some()]).into(),
        expires_at.unwrap_or_default().0,
        pair(*uses, max_uses.unwrap_or(0)),
    ])
}

fn role_word(role: NodeRole) -> u64 {
    match role {
        NodeRole::Worker => 1,
        NodeRole::Manager => 2,
    }
}

fn node_description(description: &NodeDescription) -> u64 {
    let NodeDescription {
        resources,
        disk,
        os,
        architecture,
        kernel,
        runtime,
        version,
        address,
        labels: given,
    } = description;
    let Resources { cpu, memory } = resources;
    hash([
        Kind::NodeDescription as u64,
        cpu.0,
        memory.0,
        text(architecture),
        text(kernel),
        text(runtime),
        text(version),
        text(address),
        disk.0,
        text(os),
        labels(given),
    ])
}

/// Which address of a node is tried next.
pub(in crate::state) fn cursor(node: NodeId, place: u32) -> u64 {
    let [high, low] = halves(node.0);
    hash([Kind::Cursor as u64, high, low, place.into()])
}

/// A manager.
pub(in crate::state) fn member(held: &Member) -> u64 {
    let Member { member, id, name, address, wanted, replaces, removing, level, version, created_at } = held;
    let [high, low] = halves(id.0);
    let wanted = match wanted {
        Suffrage::Voter => 1,
        Suffrage::Learner => 2,
    };
    hash([
        Kind::Member as u64,
        *member,
        high,
        low,
        text(name.as_str()),
        text(&address.to_string()),
        wanted,
        replaces.unwrap_or(0),
        flags([replaces.is_some(), *removing]).into(),
        u64::from(*level),
        *version,
        created_at.0,
    ])
}

/// A manager that left.
pub(in crate::state) fn departed(manager: ManagerId, departed: Departed) -> u64 {
    let [high, low] = halves(manager.0);
    let Departed { member, index } = departed;
    hash([Kind::Departed as u64, high, low, member, index])
}

/// A node that was removed at that entry.
pub(in crate::state) fn removed(node: NodeId, index: u64) -> u64 {
    let [high, low] = halves(node.0);
    hash([Kind::Removed as u64, high, low, index])
}
