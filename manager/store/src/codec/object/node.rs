//! Nodes and join tokens.

use warren_proto::convert::{availability, node_role, node_status};
use warren_proto::v1;
use warren_types::{Node, Token, Violations};

use super::super::field::{conditions, hash_bytes, parse, required, timestamp, token_hash, wire_conditions};

pub(super) fn stored_node(node: &Node, address_cursor: u32) -> v1::StoredNode {
    v1::StoredNode {
        id: node.id.to_string(),
        name: node.name.to_string(),
        version: node.version,
        created_at: node.created_at.0,
        description: Some((&node.description).into()),
        subnet: node.subnet.to_string(),
        status: v1::NodeStatus::from(node.status).into(),
        status_since: node.status_since.0,
        session: node.session,
        assignment_index: node.assignment_index,
        address_cursor,
        role: v1::NodeRole::from(node.role).into(),
        labels: node.labels.clone(),
        availability: v1::Availability::from(node.availability).into(),
        conditions: wire_conditions(&node.conditions),
        manager_member_id: node.manager.unwrap_or(0),
    }
}

pub(super) fn node(stored: v1::StoredNode) -> Result<Node, Violations> {
    Ok(Node {
        id: parse("node.id", &stored.id)?,
        name: parse("node.name", &stored.name)?,
        version: stored.version,
        created_at: timestamp(stored.created_at),
        role: node_role(stored.role)?,
        labels: stored.labels,
        availability: availability(stored.availability)?,
        description: required("node.description", stored.description)?.try_into()?,
        subnet: parse("node.subnet", &stored.subnet)?,
        status: node_status(stored.status)?,
        status_since: timestamp(stored.status_since),
        session: stored.session,
        assignment_index: stored.assignment_index,
        conditions: conditions(&stored.conditions)?,
        manager: (stored.manager_member_id > 0).then_some(stored.manager_member_id),
    })
}

pub(super) fn stored_token(token: &Token) -> v1::StoredToken {
    v1::StoredToken {
        id: token.id.to_string(),
        version: token.version,
        role: v1::NodeRole::from(token.role).into(),
        hash: hash_bytes(&token.hash),
        created_at: token.created_at.0,
        expires_at: token.expires_at.map(|at| at.0),
        uses: token.uses,
        max_uses: token.max_uses,
    }
}

pub(super) fn token(stored: v1::StoredToken) -> Result<Token, Violations> {
    Ok(Token {
        id: parse("token.id", &stored.id)?,
        version: stored.version,
        role: node_role(stored.role)?,
        hash: token_hash("token.hash", &stored.hash)?,
        created_at: timestamp(stored.created_at),
        expires_at: stored.expires_at.map(timestamp),
        uses: stored.uses,
        max_uses: stored.max_uses,
    })
}
