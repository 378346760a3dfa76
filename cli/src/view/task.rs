//! One placement of a slot: where it is, how far, and why not.

use serde::Serialize;
use warren_proto::convert::{desired, health, task_state};
use warren_proto::v1;
use warren_types::{Health, PublishedPort, Signal, TaskSpec, TaskState, Timestamp, Violation, Violations};

use super::vitals::{CheckView, ContentUseView, UsageView};
use super::{Time, age, given, unreadable, until};
use crate::failure::Failure;
use crate::output::{Column, Row, column, wide};

/// What people see of a task whose node is down: the worker's last word is no longer known to be true.
pub const LOST: &str = "LOST";

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskView {
    id: String,
    name: String,
    service_id: String,
    service_name: String,
    slot: u32,
    revision: u64,
    created_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_before: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    desired: &'static str,
    state: &'static str,
    state_since: Time,
    ready: bool,
    /// Left out for one without a check, or that does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    health: Option<&'static str>,
    attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit: Option<ExitView>,
    /// When the worker starts it again, while it waits for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_attempt: Option<Time>,
    /// It runs on this node or nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    bound_to: Option<String>,
    /// What its image is; left out until a worker has said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    removed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost_since: Option<Time>,
    /// The last runs of its check, newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    checks: Vec<CheckView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageView>,
    /// Which versions of secrets and configs it sees.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    contents: Vec<ContentUseView>,
    spec: TaskSpec,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ports: Vec<PublishedPort>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ExitView {
    code: i32,
    /// Which one ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<String>,
    out_of_memory: bool,
}

impl From<v1::Exit> for ExitView {
    fn from(wire: v1::Exit) -> Self {
        let v1::Exit { code, out_of_memory } = wire;
        let signal = code.checked_sub(128).and_then(Signal::from_number);
        Self { code, signal: signal.map(|signal| signal.to_string()), out_of_memory }
    }
}

impl ExitView {
    /// `with 1`, `by SIGKILL, out of memory`.
    fn in_words(&self) -> String {
        let end = match &self.signal {
            Some(signal) => format!("by {signal}"),
            None => format!("with {}", self.code),
        };
        format!("{end}{}", if self.out_of_memory { ", out of memory" } else { "" })
    }
}

impl TryFrom<v1::Task> for TaskView {
    type Error = Failure;

    fn try_from(wire: v1::Task) -> Result<Self, Failure> {
        parse(wire).map_err(unreadable("the task"))
    }
}

fn parse(wire: v1::Task) -> Result<TaskView, Violations> {
    let name = name(&wire);
    let under = |field: &'static str| {
        move |wrong: Violations| Violations(wrong.0.into_iter().map(|v| v.under(field)).collect())
    };
    // Named one by one, so that none is forgotten.
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
        desired: wanted,
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
        contents,
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
        created_at: Time::new(created_at),
        not_before: not_before.map(Time::new),
        node_id: given(node_id),
        node_name: given(node_name),
        address: given(address),
        desired: desired(wanted).map_err(under("desired"))?.as_str(),
        state: task_state(state).map_err(under("state"))?.as_str(),
        state_since: Time::new(state_since),
        ready,
        health: (checked != Health::None).then(|| checked.as_str()),
        attempt,
        reason: given(reason),
        exit: exit.map(Into::into),
        next_attempt: next_attempt.map(Time::new),
        bound_to: given(bound_to),
        digest: given(digest),
        removed,
        lost_since: lost_since.map(Time::new),
        checks: checks.into_iter().map(Into::into).collect(),
        usage: usage.map(Into::into),
        contents: ContentUseView::all(contents)?,
        spec: TaskSpec::try_from(spec).map_err(under("spec"))?,
        ports: ports.collect::<Result<_, _>>().map_err(under("ports"))?,
    })
}

/// `web.3`.
pub fn name(task: &v1::Task) -> String {
    format!("{}.{}", task.service_name, task.slot)
}

impl TaskView {
    /// The state as people see it, and since when.
    fn shown_state(&self) -> (&'static str, Timestamp) {
        match self.lost_since {
            Some(since) if !is_terminal(self.state) => (LOST, since.0),
            _ => (self.state, self.state_since.0),
        }
    }

    /// The state with what is missing for it to serve: `RUNNING (unhealthy)`.
    pub fn standing(&self) -> String {
        let (state, _) = self.shown_state();
        match self.health.unwrap_or("not ready") {
            short if state == TaskState::Running.as_str() && !self.ready => match short {
                // It may be well and still not get traffic yet.
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

    /// Its node's name; empty without one.
    pub fn node_name(&self) -> &str {
        self.node_name.as_deref().unwrap_or_default()
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// It has ended, or nothing of it is left.
    pub fn is_over(&self) -> bool {
        self.removed || is_terminal(self.state)
    }

    /// The order of lists: by service and slot, the newest task of a slot first.
    pub fn order(&self) -> (String, u32, std::cmp::Reverse<(Timestamp, u64)>) {
        let number = self.id.rsplit_once('-').and_then(|(_, number)| number.parse().ok()).unwrap_or(0);
        (self.service_name.clone(), self.slot, std::cmp::Reverse((self.created_at.0, number)))
    }
}

impl TaskView {
    /// Why it does not run, and when that is tried again.
    fn why(&self, now: Timestamp) -> String {
        let again = self.next_attempt.filter(|_| !is_terminal(self.state));
        let again = again.map(|at| format!("restarts in {}", until(at.0, now)));
        let placed = self.not_before.filter(|at| self.node_id.is_none() && at.0 > now);
        let placed = placed.map(|at| format!("is placed in {}", until(at.0, now)));
        // The worker's words say how its process ended; without any the end itself does.
        let ended = self.exit.as_ref().filter(|_| self.state != TaskState::Running.as_str());
        let ended = ended.map(|exit| format!("ended {}", exit.in_words()));
        let parts = self.reason.clone().or(ended).into_iter().chain(again).chain(placed);
        parts.collect::<Vec<_>>().join("; ")
    }
}

fn is_terminal(state: &str) -> bool {
    TaskState::ALL.into_iter().any(|known| known.as_str() == state && known.is_terminal())
}

impl Row for TaskView {
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
        wide("HEALTH"),
        wide("CPU"),
        wide("MEMORY"),
        wide("ID"),
        column("REASON"),
    ];

    fn cells(&self, _: bool, now: Timestamp) -> Vec<String> {
        let (_, since) = self.shown_state();
        let used = self.usage.as_ref().map(UsageView::cells).unwrap_or_default();
        let [cpu, memory, ..] = used;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        vec![
            self.name.clone(),
            self.standing(),
            age(since, now),
            text(&self.node_name),
            text(&self.address),
            self.attempt.to_string(),
            self.exit.as_ref().map(ExitView::in_words).unwrap_or_default(),
            self.desired.to_owned(),
            self.revision.to_string(),
            self.health.unwrap_or_default().to_owned(),
            cpu,
            memory,
            self.id.clone(),
            self.why(now),
        ]
    }
}

#[cfg(test)]
mod tests;
