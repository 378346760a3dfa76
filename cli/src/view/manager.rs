//! A manager and its raft membership.

use serde::Serialize;
use warren_proto::v1;
use warren_types::Timestamp;

use super::{TimeView, age, non_empty, short_id};
use crate::failure::CommandError;
use crate::output::{Column, FilterKey, ListedRow, TableRow, column, wide};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ManagerView {
    id: String,
    /// Member id in the raft group.
    member_id: u64,
    name: String,
    address: String,
    version: u64,
    created_at: TimeView,
    /// Desired suffrage: voter or learner.
    desired_suffrage: &'static str,
    /// Current suffrage; absent while it is not in the group.
    #[serde(skip_serializing_if = "Option::is_none")]
    suffrage: Option<&'static str>,
    leader: bool,
    /// `READY` or `UNREACHABLE`.
    status: &'static str,
    /// Being removed.
    removing: bool,
    /// Applied log index; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    applied_index: Option<u64>,
    /// Absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    warren_version: Option<String>,
    /// Number of connected workers.
    sessions: u32,
    /// Node of the same machine; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    /// Whether it locks the keys on its disk: on, off or pending; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    autolock: Option<String>,
    /// Why the desired suffrage is not reached, or another problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl TryFrom<v1::Manager> for ManagerView {
    type Error = CommandError;

    fn try_from(wire: v1::Manager) -> Result<Self, CommandError> {
        let unreadable = |field: &str, found: i32| {
            CommandError::unreadable_answer(
                "the manager cannot be shown",
                format!("{field}: {found} is not known"),
            )
        };
        let word = |field: &str, found: i32| match v1::Suffrage::try_from(found) {
            Ok(v1::Suffrage::Unspecified) => Ok(None),
            Ok(v1::Suffrage::Voter) => Ok(Some("voter")),
            Ok(v1::Suffrage::Learner) => Ok(Some("learner")),
            Err(_) => Err(unreadable(field, found)),
        };
        let status = match v1::ManagerStatus::try_from(wire.status) {
            Ok(v1::ManagerStatus::Ready) => "READY",
            Ok(v1::ManagerStatus::Unreachable) => "UNREACHABLE",
            Ok(v1::ManagerStatus::Unspecified) => "UNKNOWN",
            Err(_) => return Err(unreadable("status", wire.status)),
        };
        let desired = word("desiredSuffrage", wire.desired_suffrage)?
            .ok_or_else(|| unreadable("desiredSuffrage", wire.desired_suffrage))?;
        let suffrage = word("suffrage", wire.suffrage)?;
        let v1::Manager {
            id, member_id: member, name, address, version, created_at, leader, applied, ..
        } = wire;
        let v1::Manager { warren_version, reason, removing, sessions, node, autolock, .. } = wire;
        Ok(Self {
            id,
            member_id: member,
            name,
            address,
            version,
            created_at: TimeView::new(created_at),
            desired_suffrage: desired,
            suffrage,
            leader,
            status,
            removing,
            applied_index: (applied > 0).then_some(applied),
            warren_version: non_empty(warren_version),
            sessions,
            node: non_empty(node),
            autolock: non_empty(autolock),
            reason: non_empty(reason),
        })
    }
}

impl ManagerView {
    /// Human-readable name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is a voter.
    pub fn is_voter(&self) -> bool {
        self.suffrage == Some("voter")
    }

    /// Whether the manager that answered can reach it.
    pub fn is_reachable(&self) -> bool {
        self.status == "READY"
    }

    /// Whether `text` is its name, address, id, or id prefix.
    pub fn has_name(&self, text: &str) -> bool {
        self.name == text || self.address == text || (!text.is_empty() && self.id.starts_with(text))
    }

    /// `leader`, `voter`, `learner`, or the state before it is in the group.
    fn role(&self) -> &'static str {
        match (self.leader, self.suffrage) {
            (true, _) => "leader",
            (false, Some(suffrage)) => suffrage,
            (false, None) => "joining",
        }
    }
}

impl TableRow for ManagerView {
    const COLUMNS: &'static [Column] = &[
        column("NAME"),
        column("ROLE"),
        column("STATUS"),
        column("ADDRESS"),
        column("SESSIONS"),
        column("AGE"),
        wide("DESIRED"),
        wide("MEMBER"),
        wide("APPLIED").measured(),
        wide("WARREN"),
        wide("NODE"),
        wide("AUTOLOCK"),
        column("ID"),
        column("REASON"),
    ];

    fn cells(&self, wide: bool, now: Timestamp) -> Vec<String> {
        vec![
            self.name.clone(),
            self.role().to_owned(),
            if self.removing { format!("{} (removing)", self.status) } else { self.status.to_owned() },
            self.address.clone(),
            self.sessions.to_string(),
            age(self.created_at.0, now),
            self.desired_suffrage.to_owned(),
            self.member_id.to_string(),
            self.applied_index.map(|applied| applied.to_string()).unwrap_or_default(),
            self.warren_version.clone().unwrap_or_default(),
            self.node.clone().unwrap_or_default(),
            self.autolock.clone().unwrap_or_default(),
            if wide { self.id.clone() } else { short_id(&self.id) },
            self.reason.clone().unwrap_or_default(),
        ]
    }
}

impl ListedRow for ManagerView {
    const FILTER_KEYS: &'static [FilterKey<Self>] = &[
        ("name", |it, name| it.name.starts_with(name)),
        ("id", |it, id| it.id.starts_with(id)),
        ("role", |it, role| it.role() == role),
        ("status", |it, status| it.status.eq_ignore_ascii_case(status)),
    ];

    fn key(&self) -> String {
        self.id.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::OutputFormat;
    use crate::output::tests::{rendered, table_text_of, vertical};

    fn wire() -> v1::Manager {
        v1::Manager {
            id: "3k2v9x0000000000000000abc".into(),
            member_id: 1,
            name: "n1".into(),
            address: "10.0.0.1:8080".into(),
            version: 9,
            created_at: 1000,
            desired_suffrage: v1::Suffrage::Voter.into(),
            suffrage: v1::Suffrage::Voter.into(),
            leader: true,
            status: v1::ManagerStatus::Ready.into(),
            applied: 42,
            warren_version: "0.6.0".into(),
            reason: String::new(),
            removing: false,
            sessions: 3,
            node: "n1".into(),
            autolock: "pending".into(),
        }
    }

    fn second() -> v1::Manager {
        v1::Manager {
            member_id: 2,
            name: "n2".into(),
            address: "10.0.0.2:8080".into(),
            suffrage: v1::Suffrage::Learner.into(),
            leader: false,
            reason: "it is 7 entries behind".into(),
            sessions: 0,
            ..wire()
        }
    }

    #[test]
    fn managers_have_a_line_each() {
        let gone = v1::Manager {
            member_id: 3,
            name: "n3".into(),
            address: "10.0.0.3:8080".into(),
            suffrage: v1::Suffrage::Unspecified.into(),
            status: v1::ManagerStatus::Unreachable.into(),
            removing: true,
            applied: 0,
            warren_version: String::new(),
            reason: "it is being removed".into(),
            ..second()
        };
        let managers = [wire(), second(), gone].map(|wire| ManagerView::try_from(wire).unwrap());
        insta::assert_snapshot!(table_text_of(&managers, false, Timestamp(6000)), @r"
        NAME   ROLE      STATUS                   ADDRESS         SESSIONS   AGE   ID           REASON
        n1     leader    READY                    10.0.0.1:8080   3          5s    3k2v9x0000
        n2     learner   READY                    10.0.0.2:8080   0          5s    3k2v9x0000   it is 7 entries behind
        n3     joining   UNREACHABLE (removing)   10.0.0.3:8080   0          5s    3k2v9x0000   it is being removed
        ");
        insta::assert_snapshot!(vertical(&managers[0], Timestamp(6000)), @r"
        NAME n1
        ROLE leader
        STATUS READY
        ADDRESS 10.0.0.1:8080
        SESSIONS 3
        AGE 5s
        DESIRED voter
        MEMBER 1
        APPLIED 42
        WARREN 0.6.0
        NODE n1
        AUTOLOCK pending
        ID 3k2v9x0000000000000000abc
        REASON
        ");
    }

    #[test]
    fn documents_have_everything_and_keep_their_shape() {
        insta::assert_snapshot!(rendered(OutputFormat::Yaml, &ManagerView::try_from(wire()).unwrap()), @r#"
        id: 3k2v9x0000000000000000abc
        memberId: 1
        name: n1
        address: 10.0.0.1:8080
        version: 9
        createdAt: "1970-01-01T00:00:01.000Z"
        desiredSuffrage: voter
        suffrage: voter
        leader: true
        status: READY
        removing: false
        appliedIndex: 42
        warrenVersion: "0.6.0"
        sessions: 3
        node: n1
        autolock: pending
        "#);
    }

    #[test]
    fn unknown_status_is_not_guessed() {
        for strange in [
            v1::Manager { desired_suffrage: 9, ..wire() },
            v1::Manager { desired_suffrage: 0, ..wire() },
            v1::Manager { suffrage: 9, ..wire() },
            v1::Manager { status: 9, ..wire() },
        ] {
            assert!(
                ManagerView::try_from(strange).unwrap_err().why.contains("cannot read the manager's answer")
            );
        }
    }

    #[test]
    fn manager_matches_by_visible_names() {
        let manager = ManagerView::try_from(wire()).unwrap();
        assert!(["n1", "10.0.0.1:8080", "3k2"].iter().all(|text| manager.has_name(text)));
        assert!(["", "n", "10.0.0.1", "k2"].iter().all(|text| !manager.has_name(text)));
    }
}
