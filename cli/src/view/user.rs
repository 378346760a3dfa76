//! A user.

use serde::Serialize;
use warren_proto::convert::user_role;
use warren_proto::v1;
use warren_types::{Timestamp, Violations};

use super::{TimeView, age, invalid_response, until};
use crate::failure::CommandError;
use crate::output::{Column, FilterKey, ListedRow, TableRow, column, wide};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UserView {
    id: String,
    name: String,
    role: &'static str,
    version: u64,
    created_at: TimeView,
    /// Absent if the user never expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<TimeView>,
    /// Absent without an unused login token.
    #[serde(skip_serializing_if = "Option::is_none")]
    login_token_expires_at: Option<TimeView>,
    logins: Vec<LoginView>,
}

/// A machine on which the user is logged in.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct LoginView {
    /// SHA-256 of its public key.
    key: String,
    at: TimeView,
}

impl TryFrom<v1::User> for UserView {
    type Error = CommandError;

    fn try_from(wire: v1::User) -> Result<Self, CommandError> {
        let v1::User { id, name, role, version, created_at, expires_at, login_expires_at, logins } = wire;
        let under =
            |wrong: Violations| Violations(wrong.0.into_iter().map(|v| v.with_parent("role")).collect());
        let role = user_role(role).map_err(under).map_err(invalid_response("the user"))?.as_str();
        let login = |v1::UserLogin { key, at }| LoginView { key, at: TimeView::new(at) };
        Ok(Self {
            id,
            name,
            role,
            version,
            created_at: TimeView::new(created_at),
            expires_at: expires_at.map(TimeView::new),
            login_token_expires_at: login_expires_at.map(TimeView::new),
            logins: logins.into_iter().map(login).collect(),
        })
    }
}

impl UserView {
    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl TableRow for UserView {
    const COLUMNS: &'static [Column] = &[
        column("NAME"),
        column("ROLE"),
        column("LOGINS"),
        column("EXPIRES"),
        column("AGE"),
        wide("ID"),
        wide("VERSION"),
    ];

    fn cells(&self, _wide: bool, now: Timestamp) -> Vec<String> {
        let expires = match self.expires_at {
            None => "never".to_owned(),
            Some(end) if end.0 <= now => format!("{} ago", age(end.0, now)),
            Some(end) => format!("in {}", until(end.0, now)),
        };
        vec![
            self.name.clone(),
            self.role.to_owned(),
            self.logins.len().to_string(),
            expires,
            age(self.created_at.0, now),
            self.id.clone(),
            self.version.to_string(),
        ]
    }
}

impl ListedRow for UserView {
    const FILTER_KEYS: &'static [FilterKey<Self>] = &[
        ("name", |it, name| it.name.contains(name)),
        ("id", |it, id| it.id.starts_with(id)),
        ("role", |it, role| it.role == role),
    ];

    fn key(&self) -> String {
        self.name.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::tests::table_text_of;

    #[test]
    fn users_show_roles_and_logins() {
        let wire = |name: &str, role: v1::UserRole, expires_at| v1::User {
            id: "3k2v9x0000000000000000abc".into(),
            name: name.into(),
            role: role.into(),
            version: 4,
            created_at: 1000,
            expires_at,
            login_expires_at: None,
            logins: vec![v1::UserLogin { key: "00".repeat(32), at: 2000 }],
        };
        let users =
            [wire("ann", v1::UserRole::Admin, None), wire("ci", v1::UserRole::Operator, Some(86_401_000))];
        let users: Vec<UserView> = users.into_iter().map(|user| UserView::try_from(user).unwrap()).collect();
        insta::assert_snapshot!(table_text_of(&users, false, Timestamp(5000)), @r"
        NAME   ROLE       LOGINS   EXPIRES   AGE
        ann    admin      1        never     4s
        ci     operator   1        in 23h    4s
        ");
    }
}
