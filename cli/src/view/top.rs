//! A row of `service top`: the resource usage of a task.

use std::cmp::Reverse;

use serde::Serialize;
use warren_proto::v1;
use warren_types::{MilliCpu, Timestamp};

use super::rounded_bytes;
use super::task::TaskView;
use super::usage::TaskUsageView;
use crate::failure::CommandError;
use crate::output::{Column, TableRow, column, wide};

/// A task that has not ended.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct TaskUsageRow {
    task: TaskView,
    /// Limits: CPU in thousandths of a core, memory in bytes.
    #[serde(skip)]
    limits: (Option<u64>, Option<u64>),
}

impl TaskUsageRow {
    pub fn task(&self) -> &TaskView {
        &self.task
    }

    /// CPU in thousandths of a core, and memory in bytes, if its node reported them.
    pub fn measured(&self) -> Option<(u64, u64)> {
        self.task.usage.as_ref().map(|usage| (usage.measured.cpu_milli, usage.measured.memory_bytes))
    }

    /// Tasks that have not ended, busiest first; tasks without a report last.
    pub fn all(tasks: Vec<v1::Task>) -> Result<Vec<Self>, CommandError> {
        let mut views = Vec::new();
        for wire in tasks {
            let limits = wire.spec.as_ref().and_then(|spec| spec.limits).unwrap_or_default();
            let limits = (limits.cpu_milli, limits.memory_bytes);
            views.push(Self { task: TaskView::try_from(wire)?, limits });
        }
        views.retain(|view| !view.task.is_finished());
        views.sort_by_cached_key(|view| {
            let measured = view.task.usage.as_ref().map(|usage| usage.measured);
            (Reverse(measured.map(|usage| (usage.cpu_milli, usage.memory_bytes))), view.task.sort_key())
        });
        Ok(views)
    }
}

impl TableRow for TaskUsageRow {
    const COLUMNS: &'static [Column] = &[
        column("TASK"),
        column("NODE"),
        column("STATE"),
        column("CPU"),
        column("MEMORY"),
        column("RECEIVED"),
        column("SENT"),
        column("READ"),
        column("WRITTEN"),
        column("PIDS"),
        wide("ID"),
    ];

    fn cells(&self, _: bool, _: Timestamp) -> Vec<String> {
        let used = self.task.usage.as_ref().map(TaskUsageView::cells).unwrap_or_default();
        let [cpu, memory, rest @ ..] = used;
        let of = |used: String, limit: Option<String>| match limit {
            Some(limit) if !used.is_empty() => format!("{used}/{limit}"),
            _ => used,
        };
        let (cpu_limit, memory_limit) = self.limits;
        let mut cells = vec![
            self.task.name().to_owned(),
            self.task.node_name().to_owned(),
            self.task.status_text(),
            of(cpu, cpu_limit.map(|milli| MilliCpu(milli).to_string())),
            of(memory, memory_limit.map(rounded_bytes)),
        ];
        cells.extend(rest);
        cells.push(self.task.id().to_owned());
        cells
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::tests::table_text_of;

    fn wire(slot: u32, cpu_milli: Option<u64>) -> v1::Task {
        let limits = v1::Limits { cpu_milli: Some(500), memory_bytes: Some(64 << 20), pids: None };
        let limits = (slot != 2).then_some(limits);
        let usage = cpu_milli.map(|cpu_milli| v1::TaskUsage {
            cpu_milli,
            memory_bytes: 12 << 20,
            received_bytes: 1500,
            sent_bytes: 3 << 30,
            read_bytes: 0,
            written_bytes: 4096,
            pids: 7,
        });
        v1::Task {
            id: format!("3k2v9x0000000000000000abc-{slot}"),
            service_name: "web".into(),
            slot,
            node_name: "node-1".into(),
            spec: Some(v1::TaskSpec { image: "nginx".into(), limits, ..Default::default() }),
            desired: v1::DesiredTaskState::Running.into(),
            state: v1::TaskState::Running.into(),
            ready: true,
            usage,
            ..Default::default()
        }
    }

    #[test]
    fn busiest_task_is_first_and_ended_tasks_are_hidden() {
        let ended = v1::Task { state: v1::TaskState::Failed.into(), ..wire(4, Some(9000)) };
        let unhealthy = v1::Health::Unhealthy.into();
        let unwell = v1::Task { ready: false, health: unhealthy, ..wire(3, Some(70)) };
        let views = TaskUsageRow::all(vec![wire(1, None), wire(2, Some(1200)), unwell, ended]).unwrap();
        insta::assert_snapshot!(table_text_of(&views, false, Timestamp(0)), @r"
        TASK    NODE     STATE                 CPU        MEMORY        RECEIVED   SENT   READ   WRITTEN   PIDS
        web.2   node-1   RUNNING               1.2        12MiB         1.4KiB     3GiB   0B     4KiB      7
        web.3   node-1   RUNNING (unhealthy)   0.07/0.5   12MiB/64MiB   1.4KiB     3GiB   0B     4KiB      7
        web.1   node-1   RUNNING
        ");
    }
}
