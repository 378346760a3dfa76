//! Events of volumes, networks, secret objects, join tokens and users.

use warren_types::{
    NetworkId, SecretObject, SecretObjectId, TokenId, User, UserId, UserRole, Volume, VolumeId,
};

use super::{Comparison, EventAction, FieldChanges, ObjectEvent, action_of};
use crate::state::ObjectKind;

impl Comparison<'_> {
    pub(super) fn volume(&self, id: &VolumeId) -> Option<(ObjectKind, EventAction, ObjectEvent)> {
        let (before, after) = (self.before.volumes.get(id), self.after.volume(id));
        let action = action_of(before, after)?;
        let name = after.or(before).map(|volume| volume.name.clone())?;
        let mut changes = FieldChanges::default();
        if let (Some(before), Some(after)) = (before, after) {
            let node = |volume: &Volume| volume.node.map(|node| self.node_name(node)).unwrap_or_default();
            changes.compare("node", node(before), node(after), String::clone);
            changes.compare("removing", before.removing, after.removing, bool::to_string);
            let released = |volume: &Volume| volume.released.is_some();
            changes.compare("released", released(before), released(after), bool::to_string);
            changes.compare_labels(&before.labels, &after.labels);
        }
        Some((ObjectKind::Volume, action, ObjectEvent::new(id, name, changes)))
    }

    pub(super) fn network(&self, id: &NetworkId) -> Option<(ObjectKind, EventAction, ObjectEvent)> {
        let (before, after) = (self.before.networks.get(id), self.after.network(id));
        let action = action_of(before, after)?;
        let name = after.or(before).map(|network| network.name.clone())?;
        let mut changes = FieldChanges::default();
        if let (Some(before), Some(after)) = (before, after) {
            changes.compare("internal", before.internal, after.internal, bool::to_string);
            changes.compare_labels(&before.labels, &after.labels);
        }
        Some((ObjectKind::Network, action, ObjectEvent::new(id, name, changes)))
    }

    /// Only numbers of versions: never data.
    pub(super) fn secret_object(
        &self,
        id: &SecretObjectId,
    ) -> Option<(ObjectKind, EventAction, ObjectEvent)> {
        let (before, after) = (self.before.secret_objects.get(id), self.after.secret_object(id));
        let action = action_of(before, after)?;
        let newest = after.or(before)?;
        let mut changes = FieldChanges::default();
        if let (Some(before), Some(after)) = (before, after) {
            let number = |object: &SecretObject| object.versions.keys().next_back().copied().unwrap_or(0);
            changes.compare("version", number(before), number(after), u64::to_string);
            changes.compare_labels(&before.labels, &after.labels);
        }
        let kind = ObjectKind::SecretObject(newest.kind);
        Some((kind, action, ObjectEvent::new(id, &newest.name, changes)))
    }

    /// Never a hash of a token, or a key.
    pub(super) fn user(&self, id: &UserId) -> Option<(ObjectKind, EventAction, ObjectEvent)> {
        let (before, after) = (self.before.users.get(id), self.after.user(id));
        let action = action_of(before, after)?;
        let name = after.or(before).map(|user| user.name.clone())?;
        let mut changes = FieldChanges::default();
        if let (Some(before), Some(after)) = (before, after) {
            changes.compare("role", before.role, after.role, UserRole::to_string);
            changes.compare("logins", before.keys.len(), after.keys.len(), usize::to_string);
            let expiry = |user: &User| user.login.as_ref().map_or(0, |login| login.expires_at.0);
            changes.compare("loginToken", expiry(before), expiry(after), u64::to_string);
        }
        Some((ObjectKind::User, action, ObjectEvent::new(id, name, changes)))
    }

    pub(super) fn token(&self, id: &TokenId) -> Option<(ObjectKind, EventAction, ObjectEvent)> {
        let (before, after) = (self.before.tokens.get(id), self.after.token(id));
        let action = action_of(before, after)?;
        let mut changes = FieldChanges::default();
        if let (Some(before), Some(after)) = (before, after) {
            changes.compare("uses", before.uses, after.uses, u32::to_string);
        }
        Some((ObjectKind::Token, action, ObjectEvent::new(id, id, changes)))
    }
}
