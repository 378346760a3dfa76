//! An event: what changed of one object.

use serde::Serialize;
use warren_proto::v1;
use warren_types::Timestamp;

use super::{TimeView, non_empty};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EventView {
    /// Index of the entry in the log, and the number of the event in it.
    index: u64,
    number: u32,
    time: TimeView,
    kind: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// `created`, `updated` or `removed`.
    action: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changes: Vec<FieldChangeView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Of a task.
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    /// Of a task whose process has exited.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    out_of_memory: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FieldChangeView {
    field: String,
    from: String,
    to: String,
}

impl From<v1::FieldChange> for FieldChangeView {
    fn from(change: v1::FieldChange) -> Self {
        let v1::FieldChange { field, from, to } = change;
        Self { field, from, to }
    }
}

impl std::fmt::Display for FieldChangeView {
    /// `state ASSIGNED -> RUNNING`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { field, from, to } = self;
        let shown = |value: &str| if value.is_empty() { "none".to_owned() } else { value.to_owned() };
        match from.is_empty() && to.is_empty() {
            true => write!(f, "{field} changed"),
            false => write!(f, "{field} {} -> {}", shown(from), shown(to)),
        }
    }
}

impl EventView {
    pub fn new(position: v1::EventPosition, event: v1::ClusterEvent) -> Self {
        let v1::ClusterEvent {
            at,
            kind,
            id,
            name,
            action,
            changes,
            reason,
            service_name,
            slot,
            node_name,
            exit,
        } = event;
        Self {
            index: position.index,
            number: position.number.unwrap_or_default(),
            time: TimeView::new(at),
            kind,
            name,
            id: non_empty(id),
            action,
            changes: changes.into_iter().map(Into::into).collect(),
            reason: non_empty(reason),
            slot: (!service_name.is_empty()).then_some(slot),
            service: non_empty(service_name),
            node: non_empty(node_name),
            exit_code: exit.map(|exit| exit.code),
            out_of_memory: exit.is_some_and(|exit| exit.out_of_memory),
        }
    }

    /// One line for people; `wide` adds what `--since` accepts.
    pub fn line(&self, wide: bool) -> String {
        let Self { index, number, time: TimeView(Timestamp(at)), kind, name, action, .. } = self;
        let what = match self.changes.is_empty() {
            true => action.clone(),
            false => self.changes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        };
        let is_told = self.changes.iter().any(|change| change.field == "node");
        let node = self.node.as_ref().filter(|_| !is_told);
        let node = node.map(|node| format!(" on {node}")).unwrap_or_default();
        let reason = self.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let position = if wide { format!("{index}.{number}  ") } else { String::new() };
        let object = format!("{kind}/{name}");
        let line = format!("{position}{}  {object:<20}  {what}{node}{reason}", Timestamp(*at));
        line.split(['\n', '\r', '\t']).map(str::trim_end).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::OutputFormat;
    use crate::output::tests::rendered;

    fn task() -> EventView {
        let change = |field: &str, from: &str, to: &str| v1::FieldChange {
            field: field.into(),
            from: from.into(),
            to: to.into(),
        };
        let event = v1::ClusterEvent {
            at: 1_795_185_005_120,
            kind: "task".into(),
            id: "0abc-7".into(),
            name: "web.1".into(),
            action: "updated".into(),
            changes: vec![change("state", "RUNNING", "STARTING"), change("ready", "true", "false")],
            reason: "exited with code 1;\nattempt 2 starts".into(),
            service_name: "web".into(),
            slot: 1,
            node_name: "w1".into(),
            exit: Some(v1::TaskExit { code: 1, out_of_memory: false }),
        };
        EventView::new(v1::EventPosition { index: 812, number: Some(3) }, event)
    }

    #[test]
    fn event_is_one_line() {
        let expected = "2026-11-20T14:30:05Z  task/web.1            state RUNNING -> STARTING, ready true -> false on \
                        w1: exited with code 1; attempt 2 starts";
        assert_eq!(task().line(false), expected);
        assert!(task().line(true).starts_with("812.3  2026-11-20T14:30:05Z  task/web.1"));
        let event = v1::ClusterEvent {
            kind: "service".into(),
            name: "web".into(),
            action: "created".into(),
            ..Default::default()
        };
        let created = EventView::new(v1::EventPosition::default(), event.clone());
        assert!(created.line(false).ends_with("service/web           created"));
        let hidden = v1::FieldChange { field: "update".into(), ..Default::default() };
        let none = v1::FieldChange { field: "labels.a".into(), to: "1".into(), ..Default::default() };
        let updated = v1::ClusterEvent { changes: vec![hidden, none], ..event };
        let updated = EventView::new(v1::EventPosition::default(), updated);
        assert!(updated.line(false).ends_with("  update changed, labels.a none -> 1"));
    }

    #[test]
    fn event_has_a_stable_document() {
        insta::assert_snapshot!(rendered(OutputFormat::Json, &task()), @r#"
        {
          "index": 812,
          "number": 3,
          "time": "2026-11-20T14:30:05.120Z",
          "kind": "task",
          "name": "web.1",
          "id": "0abc-7",
          "action": "updated",
          "changes": [
            {
              "field": "state",
              "from": "RUNNING",
              "to": "STARTING"
            },
            {
              "field": "ready",
              "from": "true",
              "to": "false"
            }
          ],
          "reason": "exited with code 1;\nattempt 2 starts",
          "service": "web",
          "slot": 1,
          "node": "w1",
          "exitCode": 1
        }
        "#);
    }
}
