//! Objects in the log and in snapshots.

use prost::bytes;
use warren_types::{
    Bytes, CaHolder, CaRotation, FailureOutcome, KeyRotation, LoginToken, Member, Network,
    NextSecretObjectKey, Node, ReleasedVolume, RolloutFailure, RolloutKind, RolloutRecord, SealedData,
    SealedItem, SealedUnlockKey, SecretObject, Timestamp, Token, User, Violation, Violations, Volume,
};

use super::fields::FieldReader;
use super::wire_form::{
    WireForm, field, number_or_zero, read_field, required_messages, user_keys, wire_structs,
};
use crate::v1;
use crate::v1::ca_holder::Holder;
use crate::v1::resealed_item::Item;
use crate::v1::rollout_failure::Outcome;

wire_structs! {
    CaRotation as StoredCaRotation {
        digest, sealed, predecessors, phase, began_at, member_ids: managers, node_ids: nodes, keys
    };
    KeyRotation as StoredKeyRotation { number, phase, began_at, sealing, next, member_ids: managers };
    Member as StoredMember {
        member_id, id: manager_id, name, address, desired_suffrage, replaces, removing, feature_level: level, version,
        created_at, administrator_key
    };
    Network as StoredNetwork { id, name, version, created_at, labels, internal, number };
    Node as StoredNode {
        id, name, version, created_at, description, subnets, status, status_since, session, assignment_index, role,
        labels, availability, conditions, manager_member_id: manager, taints, verification, key,
        number by number_or_zero
    } beside address_cursor;
    RolloutFailure as RolloutFailure { revision, task_id: task, slot, reason, at, outcome };
    RolloutRecord as StoredRollout {
        good_revision, is_rollback: kind, resumed_at, updated, updated_at, failures, image_reason
    };
    NextSecretObjectKey as StoredNextSecretObjectKey { id, sealed };
    SealedUnlockKey as StoredUnlockKey { id, sealed };
    SecretObject as StoredSecretObject { id, kind, name, version, created_at, updated_at, labels, versions };
    LoginToken as StoredLoginToken { hash, expires_at, used_by };
    User as StoredUser { id, name, role, version, created_at, expires_at, login, keys by user_keys };
    Token as StoredToken { id, version, role, hash, created_at, expires_at, uses, max_uses, labels };
}

impl WireForm<v1::StoredSealedData> for SealedData {
    fn to_wire(&self) -> v1::StoredSealedData {
        v1::StoredSealedData {
            size: self.size,
            fingerprint: self.fingerprint.to_wire(),
            sealed: bytes::Bytes::copy_from_slice(&self.sealed),
        }
    }

    fn from_wire(wire: v1::StoredSealedData) -> Result<Self, Violations> {
        let v1::StoredSealedData { size, fingerprint, sealed } = wire;
        Ok(Self { size, fingerprint: read_field("fingerprint", fingerprint)?, sealed: sealed.into() })
    }
}

required_messages! { SealedData as StoredSealedData }

impl WireForm<v1::CaHolder> for CaHolder {
    fn to_wire(&self) -> v1::CaHolder {
        let holder = match self {
            Self::Manager(member) => Holder::MemberId(*member),
            Self::Node(node) => Holder::NodeId(node.to_wire()),
            Self::User(key) => Holder::Key(key.to_wire()),
        };
        v1::CaHolder { holder: Some(holder) }
    }

    fn from_wire(wire: v1::CaHolder) -> Result<Self, Violations> {
        match wire.holder {
            Some(Holder::MemberId(member)) => Ok(Self::Manager(member)),
            Some(Holder::NodeId(node)) => read_field("node_id", node).map(Self::Node),
            Some(Holder::Key(key)) => read_field("key", key).map(Self::User),
            None => Err(Violation::new("holder", "is missing").into()),
        }
    }
}

required_messages! { CaHolder as CaHolder }

impl WireForm<v1::ResealedItem> for (SealedItem, SealedData) {
    fn to_wire(&self) -> v1::ResealedItem {
        let item = match self.0 {
            SealedItem::SecretObject { id, number } => {
                Item::SecretObject(v1::SealedVersion { id: id.to_wire(), number })
            }
            SealedItem::Authority => Item::Authority(true),
            SealedItem::UnlockKey => Item::UnlockKey(true),
        };
        v1::ResealedItem { item: Some(item), data: self.1.to_wire() }
    }

    fn from_wire(wire: v1::ResealedItem) -> Result<Self, Violations> {
        let item = match wire.item {
            Some(Item::SecretObject(v1::SealedVersion { id, number })) => {
                SealedItem::SecretObject { id: read_field("id", id)?, number }
            }
            Some(Item::Authority(_)) => SealedItem::Authority,
            Some(Item::UnlockKey(_)) => SealedItem::UnlockKey,
            None => return Err(Violation::new("item", "is missing").into()),
        };
        Ok((item, read_field("data", wire.data)?))
    }
}

impl WireForm<v1::StoredVolume> for Volume {
    fn to_wire(&self) -> v1::StoredVolume {
        v1::StoredVolume {
            id: self.id.to_wire(),
            name: self.name.to_wire(),
            version: self.version,
            created_at: self.created_at.to_wire(),
            labels: self.labels.clone(),
            driver: self.driver.to_wire(),
            options: self.options.clone(),
            node_id: self.node.to_wire(),
            removing: self.removing,
            released_at: self.released.map(|released| released.at.0),
            released_size: self.released.and_then(|released| released.size).map(|size| size.0),
        }
    }

    fn from_wire(wire: v1::StoredVolume) -> Result<Self, Violations> {
        let released = |at| ReleasedVolume { at: Timestamp(at), size: wire.released_size.map(Bytes) };
        Ok(Self {
            id: read_field("id", wire.id)?,
            name: read_field("name", wire.name)?,
            version: wire.version,
            created_at: Timestamp(wire.created_at),
            labels: wire.labels,
            driver: read_field("driver", wire.driver)?,
            options: wire.options,
            node: read_field("node_id", wire.node_id)?,
            removing: wire.removing,
            released: wire.released_at.map(released),
        })
    }
}

/// `None` for one without anything.
impl WireForm<Option<v1::StoredRollout>> for RolloutRecord {
    fn to_wire(&self) -> Option<v1::StoredRollout> {
        (*self != Self::default()).then(|| self.to_wire())
    }

    fn from_wire(wire: Option<v1::StoredRollout>) -> Result<Self, Violations> {
        Self::from_wire(wire.unwrap_or_default())
    }
}

/// Whether it is a rollback.
impl WireForm<bool> for RolloutKind {
    fn to_wire(&self) -> bool {
        *self == Self::Rollback
    }

    fn from_wire(is_rollback: bool) -> Result<Self, Violations> {
        Ok(if is_rollback { Self::Rollback } else { Self::Update })
    }
}

impl WireForm<Option<Outcome>> for FailureOutcome {
    fn to_wire(&self) -> Option<Outcome> {
        Some(match *self {
            Self::RolledBack { to } => Outcome::RolledBackTo(to),
            Self::Paused(cause) => Outcome::Paused(cause.to_wire()),
        })
    }

    fn from_wire(wire: Option<Outcome>) -> Result<Self, Violations> {
        match wire {
            Some(Outcome::RolledBackTo(to)) => Ok(Self::RolledBack { to }),
            Some(Outcome::Paused(cause)) => WireForm::from_wire(cause).map(Self::Paused),
            None => Err(Violation::new("", "is missing").into()),
        }
    }
}
