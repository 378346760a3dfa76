//! A task: its node, its state, and the reason for it.

use serde::Serialize;
use warren_proto::convert::{desired_task_state, health, task_state};
use warren_proto::v1;
use warren_types::{
    DesiredTaskState, Health, PublishedPort, Signal, TaskSpec, TaskState, Timestamp, Violation, Violations,
};

use super::usage::{CheckResultView, SecretObjectVersionView, TaskUsageView};
use super::{TimeView, age, invalid_response, non_empty, until};
use crate::failure::CommandError;
use crate::output::{Column, FilterKey, ListedRow, TableRow, column, wide};
use crate::task_output::shortened;

/// Displayed state of a task whose node is down: its real state is unknown.
pub const LOST: &str = "LOST";
/// Displayed state of a task that is no longer desired and has not ended yet.
pub const STOPPING: &str = "STOPPING";

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskView {
    id: String,
    name: String,
    service_id: String,
    service_name: String,
    slot: u32,
    revision: u64,
    created_at: TimeView,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_before: Option<TimeView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    desired: &'static str,
    state: &'static str,
    state_since: TimeView,
    ready: bool,
    /// Milliseconds for which it must still run until it counts as ready for updates and for waiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    settles_in_ms: Option<u64>,
    /// Absent without a health check, and while the task does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    health: Option<&'static str>,
    attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit: Option<ExitView>,
    /// Time of the next restart by the worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_attempt: Option<TimeView>,
    /// The only node that the task can run on.
    #[serde(skip_serializing_if = "Option::is_none")]
    bound_to: Option<String>,
    /// The value of the label of the service that the task is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    label_value: Option<String>,
    /// Digest of the image; absent until a worker has reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    removed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost_since: Option<TimeView>,
    /// Latest results of the health check, newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    checks: Vec<CheckResultView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<TaskUsageView>,
    /// Versions of the mounted secrets and configs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    secret_objects: Vec<SecretObjectVersionView>,
    spec: TaskSpec,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ports: Vec<PublishedPort>,
    /// The last lines of the log of an ended task, if they were requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub last_lines: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ExitView {
    code: i32,
    /// Signal that ended the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<String>,
    out_of_memory: bool,
}

impl From<v1::TaskExit> for ExitView {
    fn from(wire: v1::TaskExit) -> Self {
        let v1::TaskExit { code, out_of_memory } = wire;
        let signal = code.checked_sub(128).and_then(Signal::from_number);
        Self { code, signal: signal.map(|signal| signal.to_string()), out_of_memory }
    }
}

impl ExitView {
    /// `with 1`, `by SIGKILL, out of memory`.
    fn summary(&self) -> String {
        let end = match &self.signal {
            Some(signal) => format!("by {signal}"),
            None => format!("with {}", self.code),
        };
        format!("{end}{}", if self.out_of_memory { ", out of memory" } else { "" })
    }
}

impl TryFrom<v1::Task> for TaskView {
    type Error = CommandError;

    fn try_from(wire: v1::Task) -> Result<Self, CommandError> {
        parse(wire).map_err(invalid_response("the task"))
    }
}

fn parse(wire: v1::Task) -> Result<TaskView, Violations> {
    let name = name(&wire);
    let under = |field: &'static str| {
        move |wrong: Violations| Violations(wrong.0.into_iter().map(|v| v.with_parent(field)).collect())
    };
    // Destructured in full, so that a new field cannot be missed.
    let v1::Task {
        id,
        service_id,
        service_name,
        slot,
        revision,
        spec,
        ports,
        created_at,
        not_before,
        node_id,
        node_name,
        address,
        desired: expected,
        state,
        attempt,
        state_since,
        reason,
        ready,
        exit,
        removed,
        lost_since,
        next_attempt,
        bound_to,
        digest,
        health: checked,
        checks,
        usage,
        secret_objects: objects,
        settles_in_ms,
        label_value,
    } = wire;
    let checked = health(checked).map_err(under("health"))?;
    let spec = spec.ok_or_else(|| Violation::new("spec", "is missing"))?;
    let ports = ports.into_iter().map(PublishedPort::try_from);
    Ok(TaskView {
        name,
        id,
        service_id,
        service_name,
        slot,
        revision,
        created_at: TimeView::new(created_at),
        not_before: not_before.map(TimeView::new),
        node_id: non_empty(node_id),
        node_name: non_empty(node_name),
        address: non_empty(address),
        desired: desired_task_state(expected).map_err(under("desired"))?.as_str(),
        state: task_state(state).map_err(under("state"))?.as_str(),
        state_since: TimeView::new(state_since),
        ready,
        settles_in_ms: Some(settles_in_ms).filter(|left| *left > 0),
        health: (checked != Health::None).then(|| checked.as_str()),
        attempt,
        reason: non_empty(reason),
        exit: exit.map(Into::into),
        next_attempt: next_attempt.map(TimeView::new),
        bound_to: non_empty(bound_to),
        label_value,
        digest: non_empty(digest),
        removed,
        lost_since: lost_since.map(TimeView::new),
        checks: checks.into_iter().map(Into::into).collect(),
        usage: usage.map(Into::into),
        secret_objects: SecretObjectVersionView::all(objects)?,
        spec: TaskSpec::try_from(spec).map_err(under("spec"))?,
        ports: ports.collect::<Result<_, _>>().map_err(under("ports"))?,
        last_lines: Vec::new(),
    })
}

/// Whole seconds, rounded up: `3s`.
pub fn settling_text(left_ms: u64) -> String {
    format!("{}s", left_ms.div_ceil(1000))
}

/// `web.3`.
pub fn name(task: &v1::Task) -> String {
    format!("{}.{}", task.service_name, task.slot)
}

impl TaskView {
    /// The displayed state and its start.
    fn effective_state(&self) -> (&'static str, Timestamp) {
        match self.lost_since {
            Some(since) if !is_terminal(self.state) => (LOST, since.0),
            None if self.is_stopping() => (STOPPING, self.state_since.0),
            _ => (self.state, self.state_since.0),
        }
    }

    fn is_stopping(&self) -> bool {
        let stopped = [DesiredTaskState::Shutdown, DesiredTaskState::Remove];
        stopped.into_iter().any(|desired| desired.as_str() == self.desired) && !is_terminal(self.state)
    }

    /// The displayed state and why the task is not ready: `RUNNING (unhealthy)`.
    pub fn status_text(&self) -> String {
        let (state, _) = self.effective_state();
        if let Some(left) = self.settles_in_ms {
            return format!("{state} (settling {})", settling_text(left));
        }
        match self.health.unwrap_or("not ready") {
            short if state == TaskState::Running.as_str() && !self.ready => match short {
                // A healthy task may not receive traffic yet.
                "healthy" => format!("{state} (not ready)"),
                short => format!("{state} ({short})"),
            },
            _ => state.to_owned(),
        }
    }

    /// `web.3`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of the node; empty without one.
    pub fn node_name(&self) -> &str {
        self.node_name.as_deref().unwrap_or_default()
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether `node` is the name, the id or an id prefix of its node.
    fn is_on(&self, node: &str) -> bool {
        let id = self.node_id.as_deref().unwrap_or_default();
        self.node_name() == node || (!node.is_empty() && id.starts_with(node))
    }

    /// Its process runs, on a node that is not lost.
    pub fn is_running(&self) -> bool {
        self.effective_state().0 == TaskState::Running.as_str()
    }

    /// It should run.
    pub fn is_desired(&self) -> bool {
        self.desired == DesiredTaskState::Running.as_str()
    }

    /// The task has ended or was removed.
    pub fn is_finished(&self) -> bool {
        self.removed || is_terminal(self.state)
    }

    /// The task ran and has ended: its node may have its log.
    pub fn has_log_of_ended(&self) -> bool {
        self.is_finished() && self.node_id.is_some() && self.attempt > 0
    }

    /// Sort key of lists: service, slot, then the newest task first.
    pub fn sort_key(&self) -> (String, u32, std::cmp::Reverse<(Timestamp, u64)>) {
        (self.service_name.clone(), self.slot, std::cmp::Reverse(self.age_key()))
    }

    /// Later for a task that was created later.
    pub fn age_key(&self) -> (Timestamp, u64) {
        let number = self.id.rsplit_once('-').and_then(|(_, number)| number.parse().ok()).unwrap_or(0);
        (self.created_at.0, number)
    }
}

/// How each ended task ended, with the last lines of its log, as a list below the table.
pub fn ended_tasks_text(tasks: &[TaskView], now: Timestamp) -> String {
    let mut text = String::new();
    for task in tasks.iter().filter(|task| task.has_log_of_ended()) {
        let ago = age(task.state_since.0, now);
        let why = task.reason_text(now);
        let why = if why.is_empty() { why } else { format!(": {why}") };
        let (name, state, node) = (&task.name, task.state, task.node_name());
        text += &format!("\n{name} is {state} since {ago} on {node}{why}\n");
        for line in &task.last_lines {
            text += &format!("  | {}\n", shortened(line));
        }
        text += &format!("  try: warren task logs {}\n", task.id);
    }
    text
}

impl TaskView {
    /// The reason for the state, and the time of the next attempt.
    pub fn reason_text(&self, now: Timestamp) -> String {
        let again = self.next_attempt.filter(|_| !is_terminal(self.state));
        let again = again.map(|at| format!("restarts in {}", until(at.0, now)));
        let placed = self.not_before.filter(|at| self.node_id.is_none() && at.0 > now);
        let placed = placed.map(|at| format!("is placed in {}", until(at.0, now)));
        // The reason of the worker contains the exit; without a reason the exit is shown.
        let ended = self.exit.as_ref().filter(|_| self.state != TaskState::Running.as_str());
        let ended = ended.map(|exit| format!("ended {}", exit.summary()));
        let parts = self.reason.clone().or(ended).into_iter().chain(again).chain(placed);
        parts.collect::<Vec<_>>().join("; ")
    }
}

fn is_terminal(state: &str) -> bool {
    TaskState::ALL.into_iter().any(|known| known.as_str() == state && known.is_terminal())
}

impl TableRow for TaskView {
    const COLUMNS: &'static [Column] = &[
        column("NAME"),
        column("STATE"),
        column("SINCE"),
        column("NODE"),
        column("ADDRESS"),
        column("ATTEMPT"),
        wide("ENDED"),
        wide("DESIRED"),
        wide("REVISION"),
        wide("IMAGE"),
        wide("HEALTH"),
        wide("CPU").measured(),
        wide("MEMORY").measured(),
        wide("ID"),
        column("REASON"),
    ];

    fn cells(&self, _: bool, now: Timestamp) -> Vec<String> {
        let (_, since) = self.effective_state();
        let used = self.usage.as_ref().map(TaskUsageView::cells).unwrap_or_default();
        let [cpu, memory, ..] = used;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let value = self.label_value.as_ref().map(|value| format!(" ({value})")).unwrap_or_default();
        vec![
            format!("{}{value}", self.name),
            self.status_text(),
            age(since, now),
            text(&self.node_name),
            text(&self.address),
            self.attempt.to_string(),
            self.exit.as_ref().map(ExitView::summary).unwrap_or_default(),
            self.desired.to_owned(),
            self.revision.to_string(),
            self.spec.image.to_string(),
            self.health.unwrap_or_default().to_owned(),
            cpu,
            memory,
            self.id.clone(),
            self.reason_text(now),
        ]
    }
}

impl ListedRow for TaskView {
    const FILTER_KEYS: &'static [FilterKey<Self>] = &[
        ("name", |it, name| it.name.starts_with(name)),
        ("id", |it, id| it.id.starts_with(id)),
        ("service", |it, text| it.service_name == text || it.service_id.starts_with(text)),
        ("node", |it, text| it.is_on(text)),
        ("state", |it, state| it.effective_state().0.eq_ignore_ascii_case(state)),
        ("desired-state", |it, state| it.desired.eq_ignore_ascii_case(state)),
    ];
    const FIELD_ALIASES: &'static [(&'static str, &'static str)] =
        &[("CurrentState", "STATE"), ("DesiredState", "DESIRED"), ("Error", "REASON")];

    fn key(&self) -> String {
        self.id.clone()
    }
}

#[cfg(test)]
mod tests;
