//! A service and its rollout.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use warren_proto::convert::{read_field, stored_service_spec};
use warren_proto::v1;
use warren_types::{PublishedPort, ServiceSpec, Timestamp, Violation};

use super::{TimeView, age, invalid_response, non_empty, short_id};
use crate::failure::CommandError;
use crate::output::{Column, FilterKey, ListedRow, TableRow, column, has_label, wide};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceView {
    id: String,
    name: String,
    version: u64,
    created_at: TimeView,
    updated_at: TimeView,
    revision: u64,
    removing: bool,
    replicas: ReplicasView,
    /// Digest of the image; absent until it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// By network.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    virtual_addresses: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rollout: Option<RolloutView>,
    /// Large.
    spec: Box<ServiceSpec>,
}

/// A service in a list: what a table shows, and the document if the list shows documents.
#[derive(Debug)]
pub struct ServiceRow {
    /// Without ports and rollout, which are texts here.
    summary: v1::ServiceSummary,
    ports: String,
    /// What the rollout waits for, and how many replicas have no task.
    progress: String,
    document: Option<Box<ServiceView>>,
}

/// Progress of the rollout of the current revision.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RolloutView {
    state: &'static str,
    updated: u32,
    total: u32,
    /// Why the rollout failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<String>,
    /// What the rollout waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_reason: Option<String>,
    /// The update that failed, if this rollout takes it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    rolled_back: Option<RolledBackView>,
    /// The task whose failure stopped the rollout, or led to the rollback.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed_task: Option<String>,
}

/// An update that failed and was rolled back.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RolledBackView {
    reason: String,
    failed_revision: u64,
    restored_revision: u64,
}

impl From<v1::Rollout> for RolloutView {
    fn from(wire: v1::Rollout) -> Self {
        let state = match wire.state() {
            v1::RolloutState::Unspecified | v1::RolloutState::Updating => "updating",
            v1::RolloutState::Completed => "completed",
            v1::RolloutState::Paused => "paused",
            v1::RolloutState::RollingBack => "rolling back",
            v1::RolloutState::RolledBack => "rolled back",
            v1::RolloutState::RollbackPaused => "rollback paused",
        };
        let v1::Rollout {
            updated,
            total,
            stop_reason,
            waiting_reason,
            state: _,
            rollback_reason,
            failed_revision,
            restored_revision,
            failed_task,
        } = wire;
        let rolled_back = non_empty(rollback_reason);
        Self {
            state,
            updated,
            total,
            stop_reason: non_empty(stop_reason),
            waiting_reason: non_empty(waiting_reason),
            rolled_back: rolled_back.map(|reason| RolledBackView {
                reason,
                failed_revision,
                restored_revision,
            }),
            failed_task: non_empty(failed_task),
        }
    }
}

impl RolloutView {
    /// Empty without a rollout in progress.
    fn summary(&self) -> String {
        let Self { state, updated, total, .. } = self;
        match (&self.stop_reason, &self.rolled_back, &self.waiting_reason) {
            (Some(why), ..) => format!("{state} at {updated}/{total}: {why}"),
            (None, Some(update), _) => format!("{state} {updated}/{total}: {}", update.reason),
            (None, None, Some(what)) => format!("{updated}/{total}: {what}"),
            (None, None, None) if updated < total => format!("{updated}/{total}"),
            (None, None, None) => String::new(),
        }
    }
}

#[derive(Debug, Serialize)]
struct ReplicasView {
    desired: u32,
    running: u32,
    tasks: u32,
    /// Replicas without a task, for lack of room.
    #[serde(skip_serializing_if = "is_zero")]
    uncreated: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Empty if every replica has a task: `998,900 not created: no room`.
pub fn uncreated_summary(uncreated: u32) -> String {
    match uncreated {
        0 => String::new(),
        _ => format!("{} not created: no room", with_separators(uncreated)),
    }
}

/// `1,234,567`.
fn with_separators(number: u32) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    groups.map(|group| String::from_utf8_lossy(group)).collect::<Vec<_>>().join(",")
}

impl TryFrom<v1::Service> for ServiceView {
    type Error = CommandError;

    fn try_from(wire: v1::Service) -> Result<Self, CommandError> {
        let v1::Service {
            id,
            version,
            created_at,
            updated_at,
            spec,
            revision,
            removing,
            running,
            tasks,
            rollout,
            desired_tasks,
            digest,
            uncreated_tasks: uncreated,
            virtual_addresses,
            // `cluster check-security` shows them.
            earlier_defaults: _,
        } = wire;
        let missing = || Violation::new("spec", "is missing").into();
        let spec = spec.ok_or_else(missing).and_then(stored_service_spec);
        let mut spec = spec.map_err(invalid_response("the service"))?;
        // Who does it, whatever was asked for.
        spec.task.resolve_image = spec.task.image_resolver();
        let desired_tasks = spec.replicas().unwrap_or(desired_tasks);
        Ok(Self {
            id,
            name: spec.name.to_string(),
            version,
            created_at: TimeView::new(created_at),
            updated_at: TimeView::new(updated_at),
            revision,
            removing,
            replicas: ReplicasView { desired: desired_tasks, running, tasks, uncreated },
            digest: non_empty(digest),
            virtual_addresses: virtual_addresses.into_iter().collect(),
            rollout: rollout.map(Into::into),
            spec: Box::new(spec),
        })
    }
}

impl TryFrom<v1::ServiceSummary> for ServiceRow {
    type Error = CommandError;

    fn try_from(mut summary: v1::ServiceSummary) -> Result<Self, CommandError> {
        let ports: Vec<PublishedPort> = read_field("ports", std::mem::take(&mut summary.ports))
            .map_err(invalid_response("the service"))?;
        let ports = ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let rollout = summary.rollout.take().map(|rollout| RolloutView::from(rollout).summary());
        let parts = [rollout.unwrap_or_default(), uncreated_summary(summary.uncreated_tasks)];
        let progress = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
        Ok(Self { summary, ports, progress, document: None })
    }
}

/// With its document.
impl TryFrom<v1::Service> for ServiceRow {
    type Error = CommandError;

    fn try_from(wire: v1::Service) -> Result<Self, CommandError> {
        let row = Self::try_from(v1::ServiceSummary::from(&wire))?;
        Ok(Self { document: Some(Box::new(ServiceView::try_from(wire)?)), ..row })
    }
}

/// As its document, which a list of documents has.
impl Serialize for ServiceRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.document {
            Some(document) => document.serialize(serializer),
            None => Err(serde::ser::Error::custom("only its summary was fetched")),
        }
    }
}

impl ServiceRow {
    fn mode(&self) -> &'static str {
        if self.summary.global { "global" } else { "replicated" }
    }

    /// `global`, `global per node.labels.zone (bootstrap)`.
    fn mode_text(&self) -> String {
        let per = match self.summary.per.as_str() {
            "" => String::new(),
            label => format!(" per {label}"),
        };
        format!("{}{per}{}", self.mode(), if self.summary.bootstrap { " (bootstrap)" } else { "" })
    }
}

impl TableRow for ServiceRow {
    const COLUMNS: &'static [Column] = &[
        column("NAME"),
        column("MODE"),
        column("REPLICAS"),
        column("IMAGE"),
        column("PORTS"),
        column("AGE"),
        wide("VERSION"),
        wide("REVISION"),
        column("ID"),
        column("UPDATE"),
    ];

    fn cells(&self, wide: bool, now: Timestamp) -> Vec<String> {
        let Self { summary, ports, progress, document: _ } = self;
        let state = if summary.removing { " (removing)" } else { "" };
        vec![
            summary.name.clone(),
            self.mode_text(),
            format!("{}/{}{state}", summary.running, summary.replicas),
            summary.image.clone(),
            ports.clone(),
            age(Timestamp(summary.created_at), now),
            summary.version.to_string(),
            summary.revision.to_string(),
            if wide { summary.id.clone() } else { short_id(&summary.id) },
            progress.clone(),
        ]
    }
}

impl ListedRow for ServiceRow {
    const FILTER_KEYS: &'static [FilterKey<Self>] = &[
        ("name", |it, name| it.summary.name.starts_with(name)),
        ("id", |it, id| it.summary.id.starts_with(id)),
        ("label", |it, label| has_label(&it.summary.labels, label)),
        ("mode", |it, mode| it.mode() == mode),
    ];

    fn key(&self) -> String {
        self.summary.id.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::OutputFormat;
    use crate::output::tests::{rendered, table_text_of, vertical};

    fn wire() -> v1::Service {
        let port = |host_ip: &str, host_port, container_port| v1::PublishedPort {
            host_ip: host_ip.into(),
            host_port,
            container_port,
            protocol: v1::Protocol::Tcp.into(),
            mode: v1::PublishMode::Host.into(),
            prefer_local: false,
            client_affinity: false,
        };
        let list =
            |items: &[&str]| Some(v1::StringList { items: items.iter().map(ToString::to_string).collect() });
        let task = v1::TaskSpec {
            image: "nginx:1.27".into(),
            command: list(&["/bin/sh"]),
            args: list(&["-c", "sleep 1"]),
            env: vec![v1::EnvVar { name: "A".into(), value: "yes".into() }],
            limits: Some(v1::Limits { cpu_milli: Some(500), memory_bytes: Some(256 << 20), pids: Some(64) }),
            reservations: Some(v1::Resources { cpu_milli: 250, memory_bytes: 0 }),
            stop_grace_ms: Some(90_000),
            stop_after_ms: Some(30_000),
            ..Default::default()
        };
        let spec = v1::ServiceSpec {
            name: "web".into(),
            labels: [("app".to_owned(), "shop".to_owned())].into(),
            task: Some(task),
            ports: vec![port("", 8080, 80), port("127.0.0.1", 8443, 443)],
            mode: Some(v1::service_spec::Mode::Replicated(v1::Replicated { replicas: 3 })),
            placement: Some(v1::Placement { max_per_node: Some(2), ..Default::default() }),
            replace_after_ms: 90_000,
            ..Default::default()
        };
        v1::Service {
            id: "3k2v9x0000000000000000abc".into(),
            version: 17,
            created_at: 1_795_184_280_120,
            updated_at: 1_795_184_280_120,
            spec: Some(spec),
            revision: 1,
            removing: false,
            running: 2,
            tasks: 3,
            rollout: Some(v1::Rollout {
                updated: 3,
                total: 3,
                state: v1::RolloutState::Completed.into(),
                ..Default::default()
            }),
            desired_tasks: 3,
            virtual_addresses: [("default".into(), "10.128.0.9".into())].into(),
            digest: "sha256:1".into(),
            uncreated_tasks: 0,
            earlier_defaults: Vec::new(),
        }
    }

    #[test]
    fn services_have_a_line_each() {
        let mut going = wire();
        going.removing = true;
        let spec = going.spec.as_mut().unwrap();
        (spec.name, spec.ports) = ("shop".into(), Vec::new());
        spec.mode = Some(v1::service_spec::Mode::Global(v1::Global {}));
        spec.bootstrap = true;
        spec.placement = None;
        (going.desired_tasks, going.rollout) = (5, None);
        let mut per_value = going.clone();
        per_value.spec.as_mut().unwrap().per = "node.labels.zone".into();
        let mut one_port = wire();
        one_port.spec.as_mut().unwrap().ports.truncate(1);
        let services = [one_port, going].map(|service| ServiceRow::try_from(service).unwrap());
        let now = Timestamp(1_795_184_280_120 + 90_000);
        insta::assert_snapshot!(table_text_of(&services, false, now), @r"
        NAME   MODE                 REPLICAS         IMAGE        PORTS          AGE     ID           UPDATE
        web    replicated           2/3              nginx:1.27   8080->80/tcp   1m30s   3k2v9x0000
        shop   global (bootstrap)   2/5 (removing)   nginx:1.27                  1m30s   3k2v9x0000
        ");
        let per_value = ServiceRow::try_from(per_value).unwrap();
        assert_eq!(per_value.cells(false, now)[1], "global per node.labels.zone (bootstrap)");
        insta::assert_snapshot!(vertical(&services[0], now), @r"
        NAME web
        MODE replicated
        REPLICAS 2/3
        IMAGE nginx:1.27
        PORTS 8080->80/tcp
        AGE 1m30s
        VERSION 17
        REVISION 1
        ID 3k2v9x0000000000000000abc
        UPDATE
        ");
    }

    #[test]
    fn resolver_of_the_image_is_shown_as_it_is() {
        let resolver = |image: &str| {
            let mut service = wire();
            service.spec.as_mut().unwrap().task.as_mut().unwrap().image = image.into();
            serde_json::json!(ServiceView::try_from(service).unwrap())["spec"]["task"]["resolveImage"].clone()
        };
        assert_eq!(resolver("localhost:5000/web:1"), "worker");
        assert_eq!(resolver("nginx:1.27"), serde_json::Value::Null);
    }

    #[test]
    fn replicas_without_a_task_are_a_number() {
        let row = ServiceRow::try_from(v1::Service { uncreated_tasks: 998_900, ..wire() }).unwrap();
        assert_eq!(row.progress, "998,900 not created: no room");
        assert_eq!(serde_json::json!(row)["replicas"]["uncreated"], 998_900);
        let summary = ServiceRow::try_from(v1::ServiceSummary::from(&wire())).unwrap();
        assert!(serde_json::to_value(summary).is_err(), "it has no document");
        assert_eq!(
            ["7", "1,000", "1,234,567"],
            [7, 1_000, 1_234_567].map(with_separators).each_ref().map(|it| &**it)
        );
    }

    #[test]
    fn rollout_shows_progress_and_reason() {
        let check = |rollout: v1::Rollout, expected: &str| {
            let rollout = v1::Rollout { total: 3, ..rollout };
            assert_eq!(RolloutView::from(rollout).summary(), expected);
        };
        let at = |updated, state: v1::RolloutState| v1::Rollout {
            updated,
            state: state.into(),
            ..Default::default()
        };
        let updating = |updated| at(updated, v1::RolloutState::Updating);
        check(at(3, v1::RolloutState::Completed), "");
        check(updating(1), "1/3");
        check(v1::Rollout { waiting_reason: "web.2 pulls".into(), ..updating(1) }, "1/3: web.2 pulls");
        let stop_reason = "web.2 failed: exited with 1".to_owned();
        let paused = v1::Rollout { stop_reason, ..at(1, v1::RolloutState::Paused) };
        check(paused, "paused at 1/3: web.2 failed: exited with 1");
        let back = v1::Rollout {
            rollback_reason: "web.2 failed; revision 2 was rolled back".into(),
            ..at(3, v1::RolloutState::RolledBack)
        };
        check(back, "rolled back 3/3: web.2 failed; revision 2 was rolled back");
    }

    #[test]
    fn documents_have_everything_and_keep_their_shape() {
        let view = ServiceView::try_from(wire()).unwrap();
        insta::assert_snapshot!(rendered(OutputFormat::Yaml, &view), @r#"
        id: 3k2v9x0000000000000000abc
        name: web
        version: 17
        createdAt: "2026-11-20T14:18:00.120Z"
        updatedAt: "2026-11-20T14:18:00.120Z"
        revision: 1
        removing: false
        replicas:
          desired: 3
          running: 2
          tasks: 3
        digest: sha256:1
        virtualAddresses:
          default: "10.128.0.9"
        rollout:
          state: completed
          updated: 3
          total: 3
        spec:
          name: web
          labels:
            app: shop
          mode:
            replicated:
              replicas: 3
          task:
            image: nginx:1.27
            pull: missing
            command:
            - /bin/sh
            args:
            - -c
            - sleep 1
            env:
            - name: A
              value: "yes"
            tty: false
            init: false
            stopGrace: 1m30s
            limits:
              cpu: "0.5"
              memory: 256MiB
              pids: 64
            reservations:
              cpu: "0.25"
              memory: 0B
            privileged: false
            seccomp: default
            readOnly: false
            restart:
              condition: any
              delay: 1s
              max: 3
              window: 5m
            onDisconnect:
              stopAfter: 30s
            logs:
              maxSize: 10MiB
              maxFiles: 5
          ports:
          - hostPort: 8080
            containerPort: 80
            protocol: tcp
            mode: host
          - hostIp: "127.0.0.1"
            hostPort: 8443
            containerPort: 443
            protocol: tcp
            mode: host
          placement:
            maxPerNode: 2
          replaceAfter: 1m30s
        "#);
        let list: serde_json::Value = serde_json::from_str(&rendered(OutputFormat::Json, &[&view])).unwrap();
        assert_eq!(list, serde_json::json!([view]));
    }

    #[test]
    fn unknown_enum_value_is_refused() {
        let mut later = wire();
        later.spec.as_mut().unwrap().ports[0].protocol = 9;
        let summary = ServiceRow::try_from(v1::ServiceSummary::from(&later)).map(drop);
        for failed in [summary, ServiceView::try_from(later).map(drop)] {
            let failure = failed.unwrap_err().to_string();
            assert!(failure.contains("ports[0].protocol: value 9 is not known to this version"), "{failure}");
        }
    }
}
