//! What is refused although its certificate is valid: removed nodes, departed managers, and keys of users and
//! administrators.

use imbl::OrdMap;
use warren_types::{ADMINISTRATOR, ManagerId, Member, NodeId, PublicKeyHash, RevokedKey, Timestamp};

use super::{DepartedManager, MAX_REVOKED_KEYS, State, digest};

/// What is revoked in a state. A copy is O(1), and later writes to the state do not change it.
#[derive(Debug, Clone)]
pub struct RevokedObjects {
    nodes: OrdMap<NodeId, u64>,
    managers: OrdMap<ManagerId, DepartedManager>,
    keys: OrdMap<PublicKeyHash, RevokedKey>,
}

impl RevokedObjects {
    /// The most recently removed nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.keys().copied()
    }

    /// The most recently departed managers.
    pub fn managers(&self) -> impl Iterator<Item = ManagerId> {
        self.managers.keys().copied()
    }

    /// The revoked keys of users and administrators.
    pub fn keys(&self) -> impl Iterator<Item = PublicKeyHash> {
        self.keys.keys().copied()
    }

    /// Whether nothing was revoked or came back between this and `state`, a later one.
    pub fn is_of(&self, state: &State) -> bool {
        self.nodes.ptr_eq(&state.removed_nodes)
            && self.managers.ptr_eq(&state.departed_managers)
            && self.keys.ptr_eq(&state.revoked_keys)
    }
}

impl State {
    /// What is revoked now.
    pub fn revoked(&self) -> RevokedObjects {
        RevokedObjects {
            nodes: self.removed_nodes.clone(),
            managers: self.departed_managers.clone(),
            keys: self.revoked_keys.clone(),
        }
    }

    /// The revoked keys of users and administrators. One stays here for a while after its last certificate has
    /// expired.
    pub fn revoked_keys(&self) -> impl Iterator<Item = (&PublicKeyHash, &RevokedKey)> {
        self.revoked_keys.iter()
    }

    /// When and of whom that key was revoked, if it was.
    pub fn revoked_key(&self, key: &PublicKeyHash) -> Option<&RevokedKey> {
        self.revoked_keys.get(key)
    }

    /// Whether a user or an administrator had that key and has it no more. A key that was revoked is never listed
    /// again.
    pub fn is_revoked(&self, key: &PublicKeyHash) -> bool {
        self.revoked_keys.contains_key(key)
    }

    /// Revokes a key that nobody has any more, and deletes what has ended at `now`. Beyond the limit the oldest one is
    /// deleted: what the state does not list is refused after the handshake.
    pub(super) fn record_revocation(&mut self, key: PublicKeyHash, holder: &str, now: Timestamp) {
        let ended = self.revoked_keys.iter().filter(|(_, known)| known.ends_at() <= now);
        let ended: Vec<PublicKeyHash> = ended.map(|(key, _)| *key).chain([key]).collect();
        ended.iter().for_each(|key| self.delete_revocation(key));
        let revoked = RevokedKey { holder: holder.to_owned(), revoked_at: now };
        self.digest_sum.add(digest::revoked_key(&key, &revoked));
        self.revoked_keys.insert(key, revoked);
        if self.revoked_keys.len() > MAX_REVOKED_KEYS {
            let oldest = self.revoked_keys.iter().min_by_key(|(key, known)| (known.revoked_at, **key));
            if let Some(key) = oldest.map(|(key, _)| *key) {
                self.delete_revocation(&key);
            }
        }
    }

    /// Revokes the key of the administrator of a manager's machine.
    pub(super) fn revoke_administrator(&mut self, member: &Member, now: Timestamp) {
        let is_listed = |key: &PublicKeyHash| self.index.user_keys.contains_key(key) || self.is_revoked(key);
        if let Some(key) = member.administrator_key.filter(|key| !is_listed(key)) {
            self.record_revocation(key, ADMINISTRATOR, now);
        }
    }

    fn delete_revocation(&mut self, key: &PublicKeyHash) {
        if let Some(revoked) = self.revoked_keys.remove(key) {
            self.digest_sum.remove(digest::revoked_key(key, &revoked));
        }
    }
}
