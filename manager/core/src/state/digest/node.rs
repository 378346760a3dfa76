//! Digests of nodes, managers, join tokens, and users.

use warren_types::{
    Availability, LoginToken, ManagerId, Member, Node, NodeCheckOutcome, NodeCheckResult, NodeCondition,
    NodeDescription, NodeId, NodeRole, NodeStatus, NodeVerification, PublicKeyHash, Resources, RevokedKey,
    Suffrage, Token, User, UserRole, VerificationState,
};
use xxhash_rust::xxh3::xxh3_64;

use super::{HashKind, extension, flags, halves, hash, labels, list, net, pair, text};
use crate::state::DepartedManager;

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
        taints,
        description,
        number,
        subnets,
        status,
        status_since,
        session,
        assignment_index: assignment,
        conditions,
        manager,
        verification,
        key,
    } = node;
    let [high, low] = halves(id.0);
    let status = match status {
        NodeStatus::Unknown => 0,
        NodeStatus::Ready => 1,
        NodeStatus::Down => 2,
    };
    let known = hash([
        HashKind::Node as u64,
        high,
        low,
        text(name.as_str()),
        *version,
        created_at.0,
        node_description(description),
        // As in versions in which each node had one.
        subnets.first().map_or(0, net),
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
    let known = extension(known, 1, list(conditions.iter().map(|condition| node_condition(*condition))));
    let known = extension(extension(known, 2, manager.unwrap_or(0)), 3, u64::from(*number));
    let known = extension(known, 4, list(subnets.iter().skip(1).map(net)));
    let known = extension(known, 5, list(taints.iter().map(|taint| text(&taint.to_string()))));
    let known = extension(known, 6, verification.as_deref().map_or(0, node_verification));
    extension(known, 7, key.map_or(0, |key| xxh3_64(&key.0)))
}

fn node_verification(verification: &NodeVerification) -> u64 {
    let NodeVerification { state, since, failures, requested, answered, results } = verification;
    let state = match state {
        VerificationState::Unverified => 1,
        VerificationState::Pending => 2,
        VerificationState::InProgress => 3,
        VerificationState::Verified => 4,
        VerificationState::Failed => 5,
    };
    let result = |NodeCheckResult { name, outcome, message }: &NodeCheckResult| {
        let outcome = match outcome {
            NodeCheckOutcome::Passed => 1,
            NodeCheckOutcome::Warning => 2,
            NodeCheckOutcome::Failed => 3,
        };
        [text(name), outcome, text(message)]
    };
    let results = list(results.iter().flat_map(result));
    list([state, since.0, u64::from(*failures), *requested, *answered, results].into_iter())
}

fn node_condition(condition: NodeCondition) -> u64 {
    match condition {
        NodeCondition::RuntimeUnavailable => 1,
        NodeCondition::NetworkUnavailable => 2,
        NodeCondition::DiskPressure => 3,
        NodeCondition::MemoryPressure => 4,
        NodeCondition::ClockSkew => 5,
        NodeCondition::RangeConflict => 6,
        NodeCondition::NetworkDegraded => 7,
        NodeCondition::PeersUnreachable => 8,
    }
}

/// A join token.
pub(in crate::state) fn token(token: &Token) -> u64 {
    let Token { id, version, role, hash: secret, created_at, expires_at, uses, max_uses, labels: given } =
        token;
    let [high, low] = halves(id.0);
    let known = hash([
        HashKind::Token as u64,
        high,
        low,
        *version,
        role_word(*role),
        xxh3_64(&secret.0),
        created_at.0,
        flags([expires_at.is_some(), max_uses.is_some()]).into(),
        expires_at.unwrap_or_default().0,
        pair(*uses, max_uses.unwrap_or(0)),
    ]);
    extension(known, 1, if given.is_empty() { 0 } else { labels(given) })
}

/// A user.
pub(in crate::state) fn user(user: &User) -> u64 {
    let User { id, name, role, version, created_at, expires_at, login, keys } = user;
    let [high, low] = halves(id.0);
    let role = match role {
        UserRole::Viewer => 1,
        UserRole::Operator => 2,
        UserRole::Admin => 3,
    };
    let login = login.iter().flat_map(|LoginToken { hash, expires_at, used_by }| {
        [xxh3_64(&hash.0), expires_at.0, used_by.map_or(0, |key| xxh3_64(&key.0))]
    });
    hash([
        HashKind::User as u64,
        high,
        low,
        text(name.as_str()),
        role,
        *version,
        created_at.0,
        u64::from(expires_at.is_some()),
        expires_at.unwrap_or_default().0,
        list(login),
        list(keys.iter().flat_map(|(key, added_at)| [xxh3_64(&key.0), added_at.0])),
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
        data_address,
        wireguard_key,
        apparmor_missing,
        labels: given,
    } = description;
    let Resources { cpu, memory } = resources;
    let known = hash([
        HashKind::NodeDescription as u64,
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
    ]);
    let known = extension(known, 1, data_address.map_or(0, |address| u64::from(u32::from(address))));
    let known = extension(known, 2, wireguard_key.map_or(0, |key| text(&key.to_string())));
    extension(known, 3, u64::from(*apparmor_missing))
}

/// The address cursor of a node.
pub(in crate::state) fn cursor(node: NodeId, place: u32) -> u64 {
    let [high, low] = halves(node.0);
    hash([HashKind::Cursor as u64, high, low, place.into()])
}

/// A manager.
pub(in crate::state) fn member(held: &Member) -> u64 {
    let Member {
        member_id: member,
        manager_id: id,
        name,
        address,
        desired_suffrage: wanted,
        replaces,
        removing,
        level,
        version,
        created_at,
        administrator_key,
    } = held;
    let [high, low] = halves(id.0);
    let desired = match wanted {
        Suffrage::Voter => 1,
        Suffrage::Learner => 2,
    };
    let known = hash([
        HashKind::Member as u64,
        *member,
        high,
        low,
        text(name.as_str()),
        text(&address.to_string()),
        desired,
        replaces.unwrap_or(0),
        flags([replaces.is_some(), *removing]).into(),
        u64::from(*level),
        *version,
        created_at.0,
    ]);
    extension(known, 1, administrator_key.map_or(0, |key| xxh3_64(&key.0)))
}

/// A manager that left.
pub(in crate::state) fn departed_manager(manager: ManagerId, departed: DepartedManager) -> u64 {
    let [high, low] = halves(manager.0);
    let DepartedManager { member, index } = departed;
    hash([HashKind::DepartedManager as u64, high, low, member, index])
}

/// A key that a user had.
pub(in crate::state) fn revoked_key(key: &PublicKeyHash, revoked: &RevokedKey) -> u64 {
    let RevokedKey { holder, revoked_at } = revoked;
    hash([HashKind::RevokedKey as u64, xxh3_64(&key.0), text(holder), revoked_at.0])
}

/// A node that was removed at that entry.
pub(in crate::state) fn removed_node(node: NodeId, index: u64) -> u64 {
    let [high, low] = halves(node.0);
    hash([HashKind::RemovedNode as u64, high, low, index])
}
