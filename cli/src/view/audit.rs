//! An audit line: who called what, with which result.

use serde::Serialize;
use warren_proto::v1;
use warren_types::Timestamp;

use super::{TimeView, non_empty};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditLineView {
    number: u64,
    time: TimeView,
    manager: String,
    caller: CallerView,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<AuditObjectView>,
    /// `allowed`, `denied`, `failed` or `unknown`.
    outcome: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Denied calls of this caller, or renewals of the object, without a line.
    #[serde(skip_serializing_if = "Option::is_none")]
    suppressed: Option<u64>,
    /// Lines that could not be written before.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<u64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CallerView {
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AuditObjectView {
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

impl CallerView {
    /// `admin alice at 10.0.0.7:40112`, `uid 1000`, `anonymous at 10.0.0.7:40112`
    fn text(&self) -> String {
        let Self { kind, name, role, address, uid, .. } = self;
        let at = address.as_ref().map(|address| format!(" at {address}")).unwrap_or_default();
        match (uid, role, name) {
            (Some(uid), ..) => format!("uid {uid}"),
            (None, Some(role), Some(name)) => format!("{role} {name}{at}"),
            _ => format!("{kind}{at}"),
        }
    }
}

impl AuditLineView {
    pub fn new(line: v1::AuditLine) -> Self {
        let v1::AuditLine { number, at, manager_name, caller, method, object, outcome, .. } = line;
        let v1::AuditCaller { kind, id, name, role, address, uid } = caller.unwrap_or_default();
        let (id, name, role, address) = (non_empty(id), non_empty(name), non_empty(role), non_empty(address));
        let object = object.map(|object| {
            let v1::AuditObject { kind, id, name, version, detail } = object;
            AuditObjectView {
                kind,
                id: non_empty(id),
                name: non_empty(name),
                version,
                detail: non_empty(detail),
            }
        });
        let positive = |count: u64| (count > 0).then_some(count);
        Self {
            number,
            time: TimeView::new(at),
            manager: manager_name,
            caller: CallerView { kind, id, name, role, address, uid },
            method: non_empty(method),
            object,
            outcome,
            code: non_empty(line.code),
            reason: non_empty(line.reason),
            suppressed: positive(line.suppressed),
            lost: positive(line.lost),
        }
    }

    /// One line for people; `wide` adds the manager and the number.
    pub fn line(&self, wide: bool) -> String {
        let TimeView(Timestamp(at)) = self.time;
        let what = match (self.lost, self.suppressed) {
            (Some(lost), _) => format!("{lost} lines could not be written"),
            (_, Some(count)) => format!("{} more calls", count),
            _ => self.method.clone().unwrap_or_default(),
        };
        let object = self.object.as_ref().map(|object| {
            let AuditObjectView { kind, id, name, version, detail } = object;
            let name = name.as_ref().or(id.as_ref()).map(|name| format!("/{name}")).unwrap_or_default();
            let version = version.map(|version| format!(" version {version}")).unwrap_or_default();
            let detail = detail.as_ref().map(|detail| format!(" {detail}")).unwrap_or_default();
            format!(" {kind}{name}{version}{detail}")
        });
        let why = [&self.code, &self.reason].into_iter().flatten().filter(|code| *code != "OK");
        let why: String = why.map(|code| format!(" {code}")).collect();
        let position = if wide { format!("{}.{}  ", self.manager, self.number) } else { String::new() };
        let (caller, outcome) = (self.caller.text(), &self.outcome);
        let outcome = if self.lost.is_some() { "" } else { outcome };
        let line = format!(
            "{position}{}  {caller}  {what}{}  {outcome}{why}",
            Timestamp(at),
            object.unwrap_or_default()
        );
        line.split(['\n', '\r', '\t']).map(str::trim_end).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::OutputFormat;
    use crate::output::tests::rendered;

    fn update() -> v1::AuditLine {
        v1::AuditLine {
            number: 17,
            at: 1_795_185_005_120,
            manager_name: "m1".into(),
            caller: Some(v1::AuditCaller {
                kind: "certificate".into(),
                id: "alice".into(),
                name: "alice".into(),
                role: "admin".into(),
                address: "10.0.0.7:40112".into(),
                uid: None,
            }),
            method: "Services/Update".into(),
            object: Some(v1::AuditObject {
                kind: "service".into(),
                id: "0abc".into(),
                name: "web".into(),
                version: Some(812),
                detail: String::new(),
            }),
            outcome: "allowed".into(),
            code: "OK".into(),
            ..Default::default()
        }
    }

    #[test]
    fn audit_line_is_one_line() {
        let expected = "m1.17  2026-11-20T14:30:05Z  admin alice at 10.0.0.7:40112  Services/Update service/web \
                        version 812  allowed";
        assert_eq!(AuditLineView::new(update()).line(true), expected);
        let caller =
            v1::AuditCaller { kind: "anonymous".into(), address: "10.0.0.7".into(), ..Default::default() };
        let flood = v1::AuditLine {
            caller: Some(caller),
            outcome: "denied".into(),
            suppressed: 990,
            ..Default::default()
        };
        let line = AuditLineView::new(flood).line(false);
        assert!(line.ends_with("Z  anonymous at 10.0.0.7  990 more calls  denied"), "{line}");
        let denied = v1::AuditLine { outcome: "denied".into(), code: "PERMISSION_DENIED".into(), ..update() };
        let line = AuditLineView::new(denied).line(false);
        assert!(line.ends_with("812  denied PERMISSION_DENIED"), "{line}");
    }

    #[test]
    fn audit_line_has_a_stable_document() {
        insta::assert_snapshot!(rendered(OutputFormat::Json, &AuditLineView::new(update())), @r#"
        {
          "number": 17,
          "time": "2026-11-20T14:30:05.120Z",
          "manager": "m1",
          "caller": {
            "kind": "certificate",
            "id": "alice",
            "name": "alice",
            "role": "admin",
            "address": "10.0.0.7:40112"
          },
          "method": "Services/Update",
          "object": {
            "kind": "service",
            "id": "0abc",
            "name": "web",
            "version": 812
          },
          "outcome": "allowed",
          "code": "OK"
        }
        "#);
    }
}
