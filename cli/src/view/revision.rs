//! A revision of a service.

use serde::Serialize;
use serde_json::Value;
use warren_proto::v1;
use warren_types::{Placement, PublishedPort, TaskSpec, Timestamp, Violation, Violations};

use super::usage::SecretObjectVersionView;
use super::{TimeView, age, invalid_response, non_empty, short_digest, spec_diff};
use crate::failure::CommandError;
use crate::output::{Column, FilterKey, ListedRow, TableRow, column};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RevisionView {
    number: u64,
    created_at: TimeView,
    current: bool,
    running: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// Changes from the previous revision; absent if that is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<Vec<String>>,
    /// Versions of the mounted secrets and configs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    secret_objects: Vec<SecretObjectVersionView>,
    task: TaskSpec,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ports: Vec<PublishedPort>,
    placement: Placement,
}

impl RevisionView {
    /// All revisions of a service, newest first.
    pub fn all(wire: Vec<v1::Revision>) -> Result<Vec<Self>, CommandError> {
        let views = wire.into_iter().map(parse).collect::<Result<Vec<_>, _>>();
        let mut views = views.map_err(invalid_response("the history"))?;
        let documents: Vec<Value> = views.iter().map(RevisionView::task_document).collect();
        for (i, view) in views.iter_mut().enumerate() {
            view.changes =
                documents.get(i + 1).map(|before| spec_diff::describe_changes(before, &documents[i]));
        }
        Ok(views)
    }

    /// The fields that affect tasks.
    fn task_document(&self) -> Value {
        let mut document = serde_json::to_value(&self.task).unwrap_or_default();
        document["ports"] = serde_json::to_value(&self.ports).unwrap_or_default();
        document["placement"] = serde_json::to_value(&self.placement).unwrap_or_default();
        for content in &self.secret_objects {
            document[content.display_name()] = content.number().into();
        }
        document
    }

    fn change_summary(&self) -> String {
        match &self.changes {
            Some(changes) if changes.is_empty() => "nothing (--force)".to_owned(),
            Some(changes) => changes.join(", "),
            None => String::new(),
        }
    }
}

/// What another revision changes of the tasks of `from`; `None` if one of them is not in the history.
pub fn describe_changes_between(history: Vec<v1::Revision>, from: u64, to: u64) -> Option<Vec<String>> {
    let document = |number: u64| {
        let found = history.iter().find(|revision| revision.number == number)?;
        parse(found.clone()).ok().map(|view| view.task_document())
    };
    Some(spec_diff::describe_changes(&document(from)?, &document(to)?))
}

fn parse(wire: v1::Revision) -> Result<RevisionView, Violations> {
    let v1::Revision {
        number,
        created_at,
        task,
        ports,
        placement,
        digest,
        current,
        running,
        secret_objects: objects,
    } = wire;
    let under = |field: &'static str| {
        move |wrong: Violations| Violations(wrong.0.into_iter().map(|v| v.with_parent(field)).collect())
    };
    let task = task.ok_or_else(|| Violation::new("task", "is missing"))?;
    let task = TaskSpec::try_from(task).map_err(under("task"))?;
    let ports = ports.into_iter().map(PublishedPort::try_from);
    let placement = Placement::try_from(placement.unwrap_or_default()).map_err(under("placement"))?;
    Ok(RevisionView {
        number,
        created_at: TimeView::new(created_at),
        current,
        running,
        digest: non_empty(digest),
        secret_objects: SecretObjectVersionView::all(objects)?,
        changes: None,
        task,
        ports: ports.collect::<Result<_, _>>().map_err(under("ports"))?,
        placement,
    })
}

impl TableRow for RevisionView {
    const COLUMNS: &'static [Column] = &[
        column("REVISION"),
        column("WHEN"),
        column("IMAGE"),
        column("DIGEST"),
        column("RUNNING"),
        column("CONTENTS"),
        column("CHANGED"),
    ];

    fn cells(&self, wide: bool, now: Timestamp) -> Vec<String> {
        let digest = self.digest.clone().unwrap_or_default();
        let secret_objects =
            self.secret_objects.iter().map(|one| format!("{}:{}", one.display_name(), one.number()));
        vec![
            format!("{}{}", self.number, if self.current { " (current)" } else { "" }),
            format!("{} ago", age(self.created_at.0, now)),
            self.task.image.to_string(),
            if wide { digest } else { short_digest(&digest) },
            self.running.to_string(),
            secret_objects.collect::<Vec<_>>().join(", "),
            self.change_summary(),
        ]
    }
}

impl ListedRow for RevisionView {
    const FILTER_KEYS: &'static [FilterKey<Self>] =
        &[("number", |it, number| it.number.to_string() == number)];

    fn key(&self) -> String {
        self.number.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::OutputFormat;
    use crate::output::tests::{rendered, table_text_of};

    fn wire(number: u64, image: &str) -> v1::Revision {
        let task = v1::TaskSpec { image: image.into(), ..Default::default() };
        v1::Revision { number, created_at: number * 1000, task: Some(task), ..Default::default() }
    }

    #[test]
    fn revisions_show_changes() {
        let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
        let mut newest = v1::Revision { current: true, running: 2, digest, ..wire(4, "web:2") };
        newest.placement = Some(v1::Placement { max_per_node: Some(2), ..Default::default() });
        let mut third = wire(3, "web:2");
        let var = |name: &str| v1::EnvVar { name: name.into(), value: "secret".into() };
        third.task.as_mut().unwrap().env = vec![var("A")];
        newest.task.as_mut().unwrap().env = vec![var("B")];
        let forced = v1::Revision { number: 2, ..wire(1, "web:1") };
        let views = RevisionView::all(vec![newest, third, forced, wire(1, "web:1")]).unwrap();
        insta::assert_snapshot!(table_text_of(&views, false, Timestamp(10_000)), @r"
        REVISION      WHEN     IMAGE   DIGEST         RUNNING   CONTENTS   CHANGED
        4 (current)   6s ago   web:2   0123456789ab   2                    env +B -A, placement.maxPerNode none -> 2
        3             7s ago   web:2                  0                    env +A, image web:1 -> web:2
        2             9s ago   web:1                  0                    nothing (--force)
        1             9s ago   web:1                  0
        ");
        let documents: serde_json::Value =
            serde_json::from_str(&rendered(OutputFormat::Json, &views)).unwrap();
        assert_eq!(documents[1]["changes"], serde_json::json!(["env +A", "image web:1 -> web:2"]));
        assert_eq!(documents[3].get("changes"), None);
        assert_eq!(documents[0]["task"]["image"], "web:2");
    }

    #[test]
    fn changes_between_revisions_name_contents_and_environment() {
        let used = |version| v1::SecretObjectVersion {
            kind: v1::SecretObjectKind::Config.into(),
            name: "c".to_owned(),
            id: "1c".to_owned(),
            version_number: version,
        };
        let mut failed = v1::Revision { secret_objects: vec![used(3)], ..wire(2, "web:2") };
        failed.task.as_mut().unwrap().env = vec![v1::EnvVar { name: "A".into(), value: "secret".into() }];
        let restored = v1::Revision { secret_objects: vec![used(2)], ..wire(3, "web:1") };
        let changes = describe_changes_between(vec![restored, failed], 2, 3).unwrap();
        assert_eq!(changes, ["config c 3 -> 2", "env -A", "image web:2 -> web:1"]);
        assert_eq!(describe_changes_between(vec![wire(1, "web:1")], 1, 2), None);
    }

    #[test]
    fn revisions_list_secret_object_versions() {
        let seen = |number, kind: v1::SecretObjectKind, version| {
            let (kind, name, id) = (kind.into(), "db".to_owned(), "1c".to_owned());
            let objects = vec![v1::SecretObjectVersion { kind, name, id, version_number: version }];
            v1::Revision { secret_objects: objects, ..wire(number, "web:1") }
        };
        let (secret, config) = (v1::SecretObjectKind::Secret, v1::SecretObjectKind::Config);
        let views = vec![seen(4, config, 1), seen(3, secret, 3), seen(2, secret, 2), wire(1, "web:1")];
        let views = RevisionView::all(views).unwrap();
        insta::assert_snapshot!(table_text_of(&views, false, Timestamp(10_000)), @r"
        REVISION   WHEN     IMAGE   DIGEST   RUNNING   CONTENTS      CHANGED
        4          6s ago   web:1            0         config db:1   config db none -> 1, secret db 3 -> none
        3          7s ago   web:1            0         secret db:3   secret db 2 -> 3
        2          8s ago   web:1            0         secret db:2   secret db none -> 2
        1          9s ago   web:1            0
        ");
        let documents: serde_json::Value =
            serde_json::from_str(&rendered(OutputFormat::Json, &views)).unwrap();
        let used = serde_json::json!([{"kind": "secret", "name": "db", "versionNumber": 3, "id": "1c"}]);
        assert_eq!((&documents[1]["secretObjects"], documents[3].get("secretObjects")), (&used, None));
    }

    #[test]
    fn revision_with_unknown_field_is_refused() {
        let mut later = wire(1, "nginx:1");
        later.task.as_mut().unwrap().pull = 9;
        let failure = RevisionView::all(vec![later]).unwrap_err().to_string();
        assert!(failure.contains("task.pull: value 9 is not known to this version"), "{failure}");
    }
}
