//! A key of a user, or of the administrator of a manager's machine.

use serde::Serialize;
use warren_proto::v1;
use warren_types::Timestamp;

use super::{TimeView, age, until};
use crate::output::{Column, FilterKey, ListedRow, TableRow, column};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UserKeyView {
    /// SHA-256 of the public key.
    key: String,
    user: String,
    /// Absent for a user, and if it is revoked.
    #[serde(skip_serializing_if = "Option::is_none")]
    manager: Option<String>,
    /// Absent for an administrator, and if it is revoked.
    #[serde(skip_serializing_if = "Option::is_none")]
    listed_at: Option<TimeView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_at: Option<TimeView>,
    /// When its last certificate has expired.
    #[serde(skip_serializing_if = "Option::is_none")]
    ends_at: Option<TimeView>,
}

impl From<v1::UserKey> for UserKeyView {
    fn from(wire: v1::UserKey) -> Self {
        let v1::UserKey { key, user, manager, listed_at, revoked_at, ends_at } = wire;
        Self {
            key,
            user,
            manager: Some(manager).filter(|manager| !manager.is_empty()),
            listed_at: listed_at.map(TimeView::new),
            revoked_at: revoked_at.map(TimeView::new),
            ends_at: ends_at.map(TimeView::new),
        }
    }
}

/// Digits of a key in a table; a command takes 8.
const SHOWN_DIGITS: usize = 16;

impl UserKeyView {
    fn status(&self) -> &'static str {
        if self.revoked_at.is_some() { "revoked" } else { "listed" }
    }
}

impl TableRow for UserKeyView {
    const COLUMNS: &'static [Column] = &[
        column("KEY"),
        column("USER"),
        column("MANAGER"),
        column("STATUS"),
        column("SINCE"),
        column("ENDS"),
    ];

    fn cells(&self, wide: bool, now: Timestamp) -> Vec<String> {
        let since = self.revoked_at.as_ref().or(self.listed_at.as_ref());
        vec![
            if wide { self.key.clone() } else { self.key.chars().take(SHOWN_DIGITS).collect() },
            self.user.clone(),
            self.manager.clone().unwrap_or_default(),
            self.status().to_owned(),
            since.map(|since| age(since.0, now)).unwrap_or_default(),
            self.ends_at.as_ref().map(|end| format!("in {}", until(end.0, now))).unwrap_or_default(),
        ]
    }
}

impl ListedRow for UserKeyView {
    const FILTER_KEYS: &'static [FilterKey<Self>] = &[
        ("key", |it, key| it.key.starts_with(key)),
        ("user", |it, user| it.user == user),
        ("manager", |it, manager| it.manager.as_deref() == Some(manager)),
        ("status", |it, status| it.status() == status),
    ];

    fn key(&self) -> String {
        self.key.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::tests::table_text_of;

    #[test]
    fn keys_show_their_holders_and_their_end() {
        let key = |digits: &str, user: &str| v1::UserKey {
            key: digits.repeat(32),
            user: user.into(),
            ..v1::UserKey::default()
        };
        let keys = [
            v1::UserKey { listed_at: Some(1000), ..key("0a", "ann") },
            v1::UserKey { manager: "m1".into(), ..key("1b", "admin") },
            v1::UserKey { revoked_at: Some(2000), ends_at: Some(86_401_000), ..key("2c", "bob") },
        ];
        let keys: Vec<UserKeyView> = keys.into_iter().map(UserKeyView::from).collect();
        insta::assert_snapshot!(table_text_of(&keys, false, Timestamp(5000)), @r"
        KEY                USER    MANAGER   STATUS    SINCE   ENDS
        0a0a0a0a0a0a0a0a   ann               listed    4s
        1b1b1b1b1b1b1b1b   admin   m1        listed
        2c2c2c2c2c2c2c2c   bob               revoked   3s      in 23h
        ");
    }
}
