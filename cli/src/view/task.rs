//! One placement of a slot: where it is, how far, and why not.

use serde::Serialize;
use warren_proto::convert::{desired, task_state};
use warren_proto::v1;
use warren_types::{PublishedPort, TaskSpec, TaskState, Timestamp, Violation, Violations};

use super::spec::{PortView, TaskSpecView};
use super::{Time, age, given, unreadable};
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
    out_of_memory: bool,
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
    let spec = wire.spec.ok_or_else(|| Violation::new("spec", "is missing"))?;
    let ports = wire.ports.into_iter().map(|port| PublishedPort::try_from(port).map(|port| (&port).into()));
    Ok(TaskView {
        name,
        id: wire.id,
        service_id: wire.service_id,
        service_name: wire.service_name,
        slot: wire.slot,
        revision: wire.revision,
        created_at: Time::new(wire.created_at),
        not_before: wire.not_before.map(Time::new),
        node_id: given(wire.node_id),
        node_name: given(wire.node_name),
        address: given(wire.address),
        desired: desired(wire.desired).map_err(under("desired"))?.as_str(),
        state: task_state(wire.state).map_err(under("state"))?.as_str(),
        state_since: Time::new(wire.state_since),
        ready: wire.ready,
        attempt: wire.attempt,
        reason: given(wire.reason),
        exit: wire.exit.map(|exit| ExitView { code: exit.code, out_of_memory: exit.out_of_memory }),
        removed: wire.removed,
        lost_since: wire.lost_since.map(Time::new),
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
            self.desired.to_owned(),
            self.revision.to_string(),
            self.id.clone(),
            text(&self.reason),
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
        let mut waiting = wire(4, 2, TaskState::Pending);
        (waiting.node_name, waiting.address, waiting.attempt) = (String::new(), String::new(), 0);
        waiting.reason = "0 of 1 nodes fit: 1 lacks CPU".into();
        let mut lost = wire(5, 3, TaskState::Running);
        lost.lost_since = Some(AT + 60_000);
        let mut failed_on_lost = wire(6, 4, TaskState::Failed);
        failed_on_lost.lost_since = Some(AT + 60_000);
        let mut unready = wire(7, 5, TaskState::Running);
        unready.ready = false;
        let first = wire(1, 1, TaskState::Failed);
        let tasks = [first, lost, starting, waiting, failed_on_lost, unready];
        let mut tasks = tasks.map(|task| TaskView::try_from(task).unwrap());
        tasks.sort_by_key(TaskView::order);
        insta::assert_snapshot!(shown(&tasks, false, Timestamp(AT + 90_000)), @r"
        NAME    STATE                 SINCE   NODE     ADDRESS      ATTEMPT   REASON
        web.1   STARTING              1m30s   node-1   10.210.1.2   3         exited with 1
        web.1   FAILED                1m30s   node-1   10.210.1.2   1
        web.2   PENDING               1m30s                         0         0 of 1 nodes fit: 1 lacks CPU
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
        DESIRED RUNNING
        REVISION 1
        ID 3k2v9x0000000000000000abc-2
        REASON exited with 1
        ");
    }

    #[test]
    fn documents_have_everything_and_keep_their_shape() {
        let mut task = wire(1, 1, TaskState::Failed);
        task.exit = Some(v1::Exit { code: 137, out_of_memory: true });
        task.reason = "was killed for want of memory".into();
        task.not_before = Some(AT);
        task.lost_since = Some(AT);
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
          outOfMemory: true
        removed: false
        lostSince: "2026-11-20T14:18:00.120Z"
        spec:
          image: nginx:1.27
          stopGrace: 10s
        "#);
    }

    #[test]
    fn a_state_of_a_later_version_is_not_misread() {
        let task = v1::Task { state: 513, ..wire(1, 1, TaskState::Running) };
        let failure = TaskView::try_from(task).unwrap_err().to_string();
        assert!(failure.contains("state: value 513 is not known to this version"), "{failure}");
    }
}
