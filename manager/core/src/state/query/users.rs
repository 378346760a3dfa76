//! Users, and who has a key.

use std::ops::Bound;
use std::sync::Arc;

use warren_types::{ADMINISTRATOR, PublicKeyHash, Timestamp, TokenHash, User, UserName, UserRole};

use crate::state::State;

/// Who has a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyHolder {
    /// The name of the user, or [`ADMINISTRATOR`].
    pub name: String,
    /// What the holder may do.
    pub role: UserRole,
    /// When the holder stops being accepted; `None` for never.
    pub expires_at: Option<Timestamp>,
}

impl State {
    /// Users by name, from the first after `last`.
    pub fn users_after<'a>(
        &'a self,
        last: Option<&UserName>,
    ) -> impl Iterator<Item = &'a Arc<User>> + use<'a> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.index.user_names.range::<_, UserName>((from, Bound::Unbounded));
        names.filter_map(|(_, id)| self.users.get(id))
    }

    /// The user with a login token with that hash.
    pub fn user_by_login(&self, hash: &TokenHash) -> Option<&Arc<User>> {
        self.index.login_hashes.get(hash).and_then(|id| self.users.get(id))
    }

    /// The user that lists that key.
    pub fn user_by_key(&self, key: &PublicKeyHash) -> Option<&Arc<User>> {
        self.index.user_keys.get(key).and_then(|id| self.users.get(id))
    }

    /// Who is accepted with that key at that time: a user, or the administrator of a manager's machine.
    pub fn key_holder(&self, key: &PublicKeyHash, now: Timestamp) -> Option<KeyHolder> {
        if self.is_revoked(key) {
            return None;
        }
        if let Some(user) = self.user_by_key(key) {
            let holder =
                || KeyHolder { name: user.name.to_string(), role: user.role, expires_at: user.expires_at };
            return (!user.is_expired(now)).then(holder);
        }
        let lists_key =
            self.members().any(|member| member.administrator_key == Some(*key) && !member.removing);
        let administrator =
            || KeyHolder { name: ADMINISTRATOR.to_owned(), role: UserRole::Admin, expires_at: None };
        lists_key.then(administrator)
    }
}
