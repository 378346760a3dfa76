//! Usage and health checks of a node's tasks, as reported by its agent: in memory only, and limited in size.

use std::collections::{BTreeMap, BTreeSet};

use warren_proto::v1;
use warren_types::TaskId;

/// Check results kept per task.
const MAX_CHECK_RESULTS: usize = 5;
/// Maximum length of a check's output in bytes.
const MAX_OUTPUT_BYTES: usize = 512;

/// Telemetry of one task.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TaskTelemetry {
    /// Usage in the last heartbeat that contained it.
    pub usage: Option<v1::TaskUsage>,
    /// The last results of its health check, newest last.
    pub checks: Vec<v1::CheckResult>,
}

/// Telemetry of the tasks of one node.
#[derive(Debug, Default)]
pub struct NodeTelemetry(BTreeMap<TaskId, TaskTelemetry>);

impl NodeTelemetry {
    /// Records the telemetry of a heartbeat. Only tasks in `assigned`, those of the node, are recorded, so an
    /// agent cannot fill the memory with others.
    pub fn update(&mut self, reported: Vec<v1::TaskStats>, assigned: &BTreeSet<TaskId>) {
        self.0.retain(|task, _| assigned.contains(task));
        for v1::TaskStats { task_id, usage, mut checks } in reported {
            let Some(task) = task_id.parse().ok().filter(|task| assigned.contains(task)) else { continue };
            let telemetry = self.0.entry(task).or_default();
            telemetry.usage = usage;
            checks.drain(..checks.len().saturating_sub(MAX_CHECK_RESULTS));
            checks.iter_mut().for_each(|check| truncate(&mut check.output, MAX_OUTPUT_BYTES));
            let old = telemetry.checks.len();
            telemetry.checks.drain(..(old + checks.len()).saturating_sub(MAX_CHECK_RESULTS).min(old));
            telemetry.checks.append(&mut checks);
        }
    }

    /// All telemetry in the form that other managers receive.
    pub fn to_wire(&self) -> Vec<v1::TaskStats> {
        let to_wire = |(task, telemetry): (&TaskId, &TaskTelemetry)| v1::TaskStats {
            task_id: task.to_string(),
            usage: telemetry.usage,
            checks: telemetry.checks.clone(),
        };
        self.0.iter().map(to_wire).collect()
    }

    /// Telemetry of the task.
    pub fn get(&self, task: &TaskId) -> Option<&TaskTelemetry> {
        self.0.get(task)
    }
}

/// Truncates the text to at most `most` bytes at a character boundary.
pub(super) fn truncate(text: &mut String, most: usize) {
    text.truncate(text.floor_char_boundary(most));
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_types::{Id, ServiceId};

    fn task(number: u64) -> TaskId {
        TaskId { service: ServiceId(Id(1)), number }
    }

    fn told(number: u64, checks: std::ops::Range<u64>) -> v1::TaskStats {
        let check = |at| v1::CheckResult { at, output: "x".repeat(600), ..Default::default() };
        let usage = v1::TaskUsage { pids: u32::try_from(checks.end).unwrap(), ..Default::default() };
        let checks = checks.map(check).collect();
        v1::TaskStats { task_id: task(number).to_string(), usage: Some(usage), checks }
    }

    #[test]
    fn last_check_results_of_present_tasks_are_kept() {
        let (mut vitals, there) = (NodeTelemetry::default(), BTreeSet::from([task(1), task(2)]));
        let times = |vitals: &NodeTelemetry, number| {
            vitals.get(&task(number)).map(|kept| kept.checks.iter().map(|check| check.at).collect::<Vec<_>>())
        };
        for (range, expected) in [
            (0..2, vec![0, 1]),
            (2..3, vec![0, 1, 2]),
            (3..6, vec![1, 2, 3, 4, 5]),
            (6..6, vec![1, 2, 3, 4, 5]),
            (6..20, vec![15, 16, 17, 18, 19]),
        ] {
            vitals.update(vec![told(1, range.clone()), told(3, range)], &there);
            assert_eq!(times(&vitals, 1), Some(expected));
        }
        assert_eq!(times(&vitals, 3), None, "of another node's task nothing is kept");
        let kept = vitals.get(&task(1)).unwrap();
        assert_eq!(kept.usage.unwrap().pids, 20);
        assert!(kept.checks.iter().all(|check| check.output.len() == MAX_OUTPUT_BYTES));
        let nonsense = v1::TaskStats { task_id: "!".into(), ..Default::default() };
        vitals.update(vec![nonsense, told(2, 0..1)], &BTreeSet::from([task(2)]));
        assert_eq!((times(&vitals, 1), times(&vitals, 2)), (None, Some(vec![0])));
    }
}
