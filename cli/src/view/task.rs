//! One placement of a slot: where it is, how far, and why not.

use serde::Serialize;
use warren_proto::convert::{desired, task_state};
use warren_proto::v1;
use warren_types::{PublishedPort, Signal, TaskSpec, TaskState, Timestamp, Violation, Violations};

use super::spec::{PortView, TaskSpecView};
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
    spec: TaskSpecView,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ports: Vec<PortView>,
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
    } = wire;
    let spec = spec.ok_or_else(|| Violation::new("spec", "is missing"))?;
    let ports = ports.into_iter().map(|port| PublishedPort::try_from(port).map(|port| (&port).into()));
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
        attempt,
        reason: given(reason),
        exit: exit.map(Into::into),
        next_attempt: next_attempt.map(Time::new),
        bound_to: given(bound_to),
        digest: given(digest),
        removed,
        lost_since: lost_since.map(Time::new),
        spec: (&TaskSpec::try_from(spec).map_err(under("spec"))?).into(),
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
        wide("ID"),
        column("REASON"),
    ];

    fn cells(&self, _: bool, now: Timestamp) -> Vec<String> {
        let (state, since) = self.shown_state();
        let unready = if state == "RUNNING" && !self.ready { " (not ready)" } else { "" };
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        vec![
            self.name.clone(),
            format!("{state}{unready}"),
            age(since, now),
            text(&self.node_name),
            text(&self.address),
            self.attempt.to_string(),
            self.exit.as_ref().map(ExitView::in_words).unwrap_or_default(),
            self.desired.to_owned(),
            self.revision.to_string(),
            self.id.clone(),
            self.why(now),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Format;
    use crate::output::tests::{rendered, shown, upright};

    const AT: u64 = 1_795_184_280_120;

    fn wire(number: u64, slot: u32, state: TaskState) -> v1::Task {
        v1::Task {
            id: format!("3k2v9x0000000000000000abc-{number}"),
            service_id: "3k2v9x0000000000000000abc".into(),
            service_name: "web".into(),
            slot,
            revision: 1,
            spec: Some(v1::TaskSpec { image: "nginx:1.27".into(), ..Default::default() }),
            created_at: AT + number,
            node_id: "1n".into(),
            node_name: "node-1".into(),
            address: "10.210.1.2".into(),
            desired: v1::Desired::Running.into(),
            state: v1::TaskState::from(state).into(),
            attempt: 1,
            state_since: AT,
            ready: state == TaskState::Running,
            ..Default::default()
        }
    }

    #[test]
    fn tasks_say_where_they_are_and_why_they_do_not_run() {
        let mut starting = wire(2, 1, TaskState::Starting);
        (starting.attempt, starting.reason) = (3, "exited with 1".into());
        starting.exit = Some(v1::Exit { code: 1, out_of_memory: false });
        starting.next_attempt = Some(AT + 93_500);
        let mut waiting = wire(4, 2, TaskState::Pending);
        (waiting.node_name, waiting.address, waiting.attempt) = (String::new(), String::new(), 0);
        waiting.reason = "1 lacks CPU".into();
        (waiting.node_id, waiting.not_before) = (String::new(), Some(AT + 98_000));
        let mut lost = wire(5, 3, TaskState::Running);
        lost.lost_since = Some(AT + 60_000);
        let mut failed_on_lost = wire(6, 4, TaskState::Failed);
        failed_on_lost.lost_since = Some(AT + 60_000);
        let mut unready = wire(7, 5, TaskState::Running);
        unready.ready = false;
        let mut first = wire(1, 1, TaskState::Failed);
        first.exit = Some(v1::Exit { code: 137, out_of_memory: true });
        let tasks = [first, lost, starting, waiting, failed_on_lost, unready];
        let mut tasks = tasks.map(|task| TaskView::try_from(task).unwrap());
        tasks.sort_by_key(TaskView::order);
        insta::assert_snapshot!(shown(&tasks, false, Timestamp(AT + 90_000)), @r"
        NAME    STATE                 SINCE   NODE     ADDRESS      ATTEMPT   REASON
        web.1   STARTING              1m30s   node-1   10.210.1.2   3         exited with 1; restarts in 4s
        web.1   FAILED                1m30s   node-1   10.210.1.2   1         ended by SIGKILL, out of memory
        web.2   PENDING               1m30s                         0         1 lacks CPU; is placed in 8s
        web.3   LOST                  30s     node-1   10.210.1.2   1
        web.4   FAILED                1m30s   node-1   10.210.1.2   1
        web.5   RUNNING (not ready)   1m30s   node-1   10.210.1.2   1
        ");
        insta::assert_snapshot!(upright(&tasks[0], Timestamp(AT + 90_000)), @r"
        NAME web.1
        STATE STARTING
        SINCE 1m30s
        NODE node-1
        ADDRESS 10.210.1.2
        ATTEMPT 3
        ENDED with 1
        DESIRED RUNNING
        REVISION 1
        ID 3k2v9x0000000000000000abc-2
        REASON exited with 1; restarts in 4s
        ");
    }

    #[test]
    fn documents_have_everything_and_keep_their_shape() {
        let mut task = wire(1, 1, TaskState::Failed);
        task.exit = Some(v1::Exit { code: 137, out_of_memory: true });
        task.reason = "was killed for want of memory".into();
        task.not_before = Some(AT);
        task.lost_since = Some(AT);
        task.next_attempt = Some(AT);
        (task.bound_to, task.digest) = ("1n".into(), "sha256:1".into());
        insta::assert_snapshot!(rendered(Format::Yaml, &TaskView::try_from(task).unwrap()), @r#"
        id: 3k2v9x0000000000000000abc-1
        name: web.1
        serviceId: 3k2v9x0000000000000000abc
        serviceName: web
        slot: 1
        revision: 1
        createdAt: "2026-11-20T14:18:00.121Z"
        notBefore: "2026-11-20T14:18:00.120Z"
        nodeId: 1n
        nodeName: node-1
        address: "10.210.1.2"
        desired: RUNNING
        state: FAILED
        stateSince: "2026-11-20T14:18:00.120Z"
        ready: false
        attempt: 1
        reason: was killed for want of memory
        exit:
          code: 137
          signal: SIGKILL
          outOfMemory: true
        nextAttempt: "2026-11-20T14:18:00.120Z"
        boundTo: 1n
        digest: sha256:1
        removed: false
        lostSince: "2026-11-20T14:18:00.120Z"
        spec:
          image: nginx:1.27
          pull: missing
          tty: false
          init: false
          stopGrace: 10s
          privileged: false
          noNewPrivileges: false
          seccomp: default
          readOnly: false
          restart:
            condition: any
            delay: 1s
            max: 3
            window: 5m
          logs:
            maxSize: 10MiB
            maxFiles: 5
        "#);
    }

    #[test]
    fn a_state_of_a_later_version_is_not_misread() {
        let task = v1::Task { state: 513, ..wire(1, 1, TaskState::Running) };
        let failure = TaskView::try_from(task).unwrap_err().to_string();
        assert!(failure.contains("state: value 513 is not known to this version"), "{failure}");
    }
}
