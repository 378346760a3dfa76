//! What the tasks of a node use and how their checks go, as its agent last said: in memory only, and bounded.

use std::collections::{BTreeMap, BTreeSet};

use warren_proto::v1;
use warren_types::TaskId;

use super::conversation::cut;

/// Results of checks that are kept of a task.
const CHECKS: usize = 5;
/// Longest output of a check that is kept, in bytes.
const MAX_OUTPUT: usize = 512;

/// Of one task.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Vitals {
    /// As of the last heartbeat that told of it.
    pub usage: Option<v1::TaskUsage>,
    /// The last runs of its check, newest last.
    pub checks: Vec<v1::CheckResult>,
}

/// Of the tasks of one node.
#[derive(Debug, Default)]
pub struct NodeVitals(BTreeMap<TaskId, Vitals>);

impl NodeVitals {
    /// Takes over what a heartbeat told. Only of the tasks in `there`, those of the node, something is kept; so an
    /// agent cannot fill the memory with others.
    pub fn take(&mut self, told: Vec<v1::TaskVitals>, there: &BTreeSet<TaskId>) {
        self.0.retain(|task, _| there.contains(task));
        for v1::TaskVitals { task_id, usage, mut checks } in told {
            let Some(task) = task_id.parse().ok().filter(|task| there.contains(task)) else { continue };
            let vitals = self.0.entry(task).or_default();
            vitals.usage = usage;
            checks.drain(..checks.len().saturating_sub(CHECKS));
            checks.iter_mut().for_each(|check| cut(&mut check.output, MAX_OUTPUT));
            let old = vitals.checks.len();
            vitals.checks.drain(..(old + checks.len()).saturating_sub(CHECKS).min(old));
            vitals.checks.append(&mut checks);
        }
    }

    /// All there is, as it is told to other managers.
    pub fn told(&self) -> Vec<v1::TaskVitals> {
        let told = |(task, vitals): (&TaskId, &Vitals)| v1::TaskVitals {
            task_id: task.to_string(),
            usage: vitals.usage,
            checks: vitals.checks.clone(),
        };
        self.0.iter().map(told).collect()
    }

    /// Of that task.
    pub fn get(&self, task: &TaskId) -> Option<&Vitals> {
        self.0.get(task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_types::{Id, ServiceId};

    fn task(number: u64) -> TaskId {
        TaskId { service: ServiceId(Id(1)), number }
    }

    fn told(number: u64, checks: std::ops::Range<u64>) -> v1::TaskVitals {
        let check = |at| v1::CheckResult { at, output: "x".repeat(600), ..Default::default() };
        let usage = v1::TaskUsage { pids: u32::try_from(checks.end).unwrap(), ..Default::default() };
        let checks = checks.map(check).collect();
        v1::TaskVitals { task_id: task(number).to_string(), usage: Some(usage), checks }
    }

    #[test]
    fn the_last_results_are_kept_and_only_of_tasks_that_are_there() {
        let (mut vitals, there) = (NodeVitals::default(), BTreeSet::from([task(1), task(2)]));
        let times = |vitals: &NodeVitals, number| {
            vitals.get(&task(number)).map(|kept| kept.checks.iter().map(|check| check.at).collect::<Vec<_>>())
        };
        for (range, wanted) in [
            (0..2, vec![0, 1]),
            (2..3, vec![0, 1, 2]),
            (3..6, vec![1, 2, 3, 4, 5]),
            (6..6, vec![1, 2, 3, 4, 5]),
            (6..20, vec![15, 16, 17, 18, 19]),
        ] {
            vitals.take(vec![told(1, range.clone()), told(3, range)], &there);
            assert_eq!(times(&vitals, 1), Some(wanted));
        }
        assert_eq!(times(&vitals, 3), None, "of another node's task nothing is kept");
        let kept = vitals.get(&task(1)).unwrap();
        assert_eq!(kept.usage.unwrap().pids, 20);
        assert!(kept.checks.iter().all(|check| check.output.len() == MAX_OUTPUT));
        let nonsense = v1::TaskVitals { task_id: "!".into(), ..Default::default() };
        vitals.take(vec![nonsense, told(2, 0..1)], &BTreeSet::from([task(2)]));
        assert_eq!((times(&vitals, 1), times(&vitals, 2)), (None, Some(vec![0])));
    }
}
