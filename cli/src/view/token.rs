//! A join token.

use std::collections::BTreeMap;

use serde::Serialize;
use warren_proto::convert::node_role;
use warren_proto::v1;
use warren_types::{Timestamp, Violations};

use super::{TimeView, age, invalid_response, short_id, until};
use crate::failure::CommandError;
use crate::output::{Column, FilterKey, ListedRow, TableRow, column, has_label, wide};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenView {
    id: String,
    version: u64,
    role: &'static str,
    created_at: TimeView,
    /// Absent if the token never expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<TimeView>,
    uses: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_uses: Option<u32>,
    /// Of each node that joins with it for the first time.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
}

impl TryFrom<v1::Token> for TokenView {
    type Error = CommandError;

    fn try_from(wire: v1::Token) -> Result<Self, CommandError> {
        let v1::Token { id, version, role, created_at, expires_at, uses, max_uses, labels } = wire;
        let under =
            |wrong: Violations| Violations(wrong.0.into_iter().map(|v| v.with_parent("role")).collect());
        let role = node_role(role).map_err(under).map_err(invalid_response("the token"))?.as_str();
        let (created_at, expires_at) = (TimeView::new(created_at), expires_at.map(TimeView::new));
        Ok(Self { id, version, role, created_at, expires_at, uses, max_uses, labels })
    }
}

impl TokenView {
    /// `for 3 machines, within 24h`.
    pub fn validity_text(&self, now: Timestamp) -> String {
        let machines = match self.max_uses {
            None => "any number of machines".to_owned(),
            Some(1) => "1 machine".to_owned(),
            Some(most) => format!("{most} machines"),
        };
        match self.expires_at {
            None => format!("for {machines}, without end"),
            Some(end) => format!("for {machines}, within {}", until(end.0, now)),
        }
    }

    fn expires(&self, now: Timestamp) -> String {
        match self.expires_at {
            None => "never".to_owned(),
            Some(end) if end.0 <= now => format!("{} ago", age(end.0, now)),
            Some(end) => format!("in {}", until(end.0, now)),
        }
    }
}

impl TableRow for TokenView {
    const COLUMNS: &'static [Column] = &[
        column("ID"),
        column("ROLE"),
        column("USES"),
        column("EXPIRES"),
        column("AGE"),
        column("LABELS"),
        wide("VERSION"),
    ];

    fn cells(&self, wide: bool, now: Timestamp) -> Vec<String> {
        let most = self.max_uses.map_or_else(|| "any".to_owned(), |most| most.to_string());
        let labels: Vec<String> = self.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        vec![
            if wide { self.id.clone() } else { short_id(&self.id) },
            self.role.to_owned(),
            format!("{}/{most}", self.uses),
            self.expires(now),
            age(self.created_at.0, now),
            labels.join(","),
            self.version.to_string(),
        ]
    }
}

impl ListedRow for TokenView {
    const FILTER_KEYS: &'static [FilterKey<Self>] = &[
        ("id", |it, id| it.id.starts_with(id)),
        ("role", |it, role| it.role == role),
        ("label", |it, label| has_label(&it.labels, label)),
    ];

    fn key(&self) -> String {
        self.id.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::OutputFormat;
    use crate::output::tests::{rendered, table_text_of};

    fn view(expires_at: Option<u64>, max_uses: Option<u32>) -> TokenView {
        let wire = v1::Token {
            id: "3k2v9x0000000000000000abc".into(),
            version: 4,
            role: v1::NodeRole::Worker.into(),
            created_at: 1000,
            expires_at,
            uses: 2,
            max_uses,
            labels: max_uses.map(|_| ("zone".to_owned(), "b".to_owned())).into_iter().collect(),
        };
        TokenView::try_from(wire).unwrap()
    }

    #[test]
    fn tokens_show_ttl_and_uses() {
        let tokens = [view(Some(86_401_000), Some(3)), view(None, None), view(Some(3000), Some(1))];
        insta::assert_snapshot!(table_text_of(&tokens, false, Timestamp(5000)), @r"
        ID           ROLE     USES    EXPIRES   AGE   LABELS
        3k2v9x0000   worker   2/3     in 23h    4s    zone=b
        3k2v9x0000   worker   2/any   never     4s
        3k2v9x0000   worker   2/1     2s ago    4s    zone=b
        ");
        assert_eq!(tokens[0].validity_text(Timestamp(1000)), "for 3 machines, within 24h");
        assert_eq!(tokens[1].validity_text(Timestamp(1000)), "for any number of machines, without end");
        insta::assert_snapshot!(rendered(OutputFormat::Yaml, &tokens[0]), @r#"
        id: 3k2v9x0000000000000000abc
        version: 4
        role: worker
        createdAt: "1970-01-01T00:00:01.000Z"
        expiresAt: "1970-01-02T00:00:01.000Z"
        uses: 2
        maxUses: 3
        labels:
          zone: b
        "#);
    }
}
