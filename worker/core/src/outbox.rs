//! Which reports wait to be sent and confirmed: the newest word on each task, until a manager has stored it.
//!
//! `M` is a moment of a clock that nobody sets.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Sub;
use std::time::Duration;

use warren_types::{TaskId, TaskReport};

use crate::order::supersedes;

/// How many reports go in one message.
pub const BATCH: usize = 256;
/// How many messages may wait for their confirmation.
pub const MAX_IN_FLIGHT: usize = 8;
/// A message that is not confirmed after this is sent again.
pub const CONFIRMED_WITHIN: Duration = Duration::from_secs(10);

/// Between those who report and the session, which sends. At most one report per task is kept.
#[derive(Debug)]
pub struct Outbox<M> {
    /// The newest report of each task that the node has.
    newest: BTreeMap<TaskId, TaskReport>,
    /// Those that are to be sent.
    unsent: BTreeSet<TaskId>,
    in_flight: BTreeMap<u64, Flight<M>>,
    last_number: u64,
}

#[derive(Debug)]
struct Flight<M> {
    sent_at: M,
    reports: Vec<TaskReport>,
}

/// One message of reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Counts up; the confirmation names it.
    pub number: u64,
    /// At most one per task.
    pub reports: Vec<TaskReport>,
}

impl<M> Default for Outbox<M> {
    fn default() -> Self {
        Self { newest: BTreeMap::new(), unsent: BTreeSet::new(), in_flight: BTreeMap::new(), last_number: 0 }
    }
}

impl<M: Copy + Ord + Sub<Output = Duration>> Outbox<M> {
    /// Takes a report; false when it says nothing new, or less than an earlier one.
    pub fn tell(&mut self, report: TaskReport) -> bool {
        if let Some(last) = self.newest.get(&report.task)
            && (*last == report || !supersedes(&report, last))
        {
            return false;
        }
        self.unsent.insert(report.task);
        self.newest.insert(report.task, report);
        true
    }

    /// The task is no longer the node's: nobody wants to hear of it.
    pub fn forget(&mut self, task: &TaskId) {
        self.newest.remove(task);
        self.unsent.remove(task);
    }

    /// The task is wanted again, in another life of the cluster. That nothing is left of it was said when nobody
    /// wanted it, and would pass for its last word.
    pub fn forget_removal(&mut self, task: &TaskId) {
        if self.newest.get(task).is_some_and(|last| last.removed) {
            self.forget(task);
        }
    }

    /// A new session: everything is said again, since another manager may know less.
    pub fn restart(&mut self) {
        self.in_flight.clear();
        self.unsent = self.newest.keys().copied().collect();
    }

    /// The next message at `now`; `None` while there is nothing to say or enough is on its way.
    pub fn next_batch(&mut self, now: M) -> Option<Batch> {
        self.return_late(now);
        if self.unsent.is_empty() || self.in_flight.len() >= MAX_IN_FLIGHT {
            return None;
        }
        let mut reports = Vec::with_capacity(self.unsent.len().min(BATCH));
        while reports.len() < BATCH
            && let Some(id) = self.unsent.pop_first()
        {
            reports.extend(self.newest.get(&id).cloned());
        }
        self.last_number += 1;
        let flight = Flight { sent_at: now, reports: reports.clone() };
        self.in_flight.insert(self.last_number, flight);
        Some(Batch { number: self.last_number, reports })
    }

    /// When the oldest message was sent that is not confirmed. [`CONFIRMED_WITHIN`] later it is to be sent again.
    pub fn oldest_flight(&self) -> Option<M> {
        self.in_flight.values().map(|flight| flight.sent_at).min()
    }

    /// The manager stored the message with this number.
    pub fn stored(&mut self, number: u64) {
        self.in_flight.remove(&number);
    }

    /// What was last reported of a task.
    pub fn newest(&self, task: &TaskId) -> Option<&TaskReport> {
        self.newest.get(task)
    }

    /// What was not confirmed in time is to be sent again, unless there is a newer word by now.
    fn return_late(&mut self, now: M) {
        let is_late = |flight: &Flight<M>| now - flight.sent_at >= CONFIRMED_WITHIN;
        let late: Vec<u64> =
            self.in_flight.iter().filter(|(_, flight)| is_late(flight)).map(|(number, _)| *number).collect();
        for number in late {
            let reports = self.in_flight.remove(&number).map(|flight| flight.reports).unwrap_or_default();
            let same = |report: &TaskReport| self.newest.get(&report.task) == Some(report);
            let again: Vec<TaskId> = reports.iter().filter(|r| same(r)).map(|r| r.task).collect();
            self.unsent.extend(again);
        }
    }
}

#[cfg(test)]
mod tests {
    use warren_types::{Health, Id, ServiceId, TaskState, Timestamp};

    use super::*;

    fn said(number: u64, state: TaskState, removed: bool) -> TaskReport {
        TaskReport {
            task: TaskId { service: ServiceId(Id(1)), number },
            attempt: 1,
            state,
            since: Timestamp(0),
            reason: String::new(),
            ready: false,
            exit: None,
            removed,
            next_attempt: None,
            image: None,
            health: Health::None,
        }
    }

    #[test]
    fn a_last_word_stands_until_the_task_is_forgotten() {
        let mut outbox = Outbox::<Duration>::default();
        assert!(outbox.tell(said(1, TaskState::Shutdown, true)));
        let anew = said(1, TaskState::Preparing, false);
        assert!(!outbox.tell(anew.clone()), "it would pass for an older word");
        outbox.forget(&anew.task);
        assert!(outbox.tell(anew.clone()) && outbox.newest(&anew.task) == Some(&anew));
    }

    #[test]
    fn of_a_task_that_is_wanted_again_only_the_removal_is_forgotten() {
        let mut outbox = Outbox::<Duration>::default();
        outbox.tell(said(1, TaskState::Shutdown, true));
        outbox.tell(said(2, TaskState::Running, false));
        outbox.tell(said(3, TaskState::Shutdown, true));
        for number in [1, 2] {
            outbox.forget_removal(&said(number, TaskState::Shutdown, true).task);
        }
        let left = [said(2, TaskState::Running, false), said(3, TaskState::Shutdown, true)];
        assert_eq!(outbox.next_batch(Duration::ZERO).unwrap().reports, left);
        let ended = said(1, TaskState::Shutdown, false);
        assert!(outbox.tell(ended.clone()), "it is heard of what is there now");
        assert_eq!(outbox.newest(&ended.task), Some(&ended));
    }

    #[test]
    fn what_is_late_is_said_again_unless_there_is_a_newer_word() {
        let mut outbox = Outbox::default();
        let (start, late) = (Duration::ZERO, CONFIRMED_WITHIN);
        outbox.tell(said(1, TaskState::Starting, false));
        outbox.tell(said(2, TaskState::Starting, false));
        let first = outbox.next_batch(start).unwrap();
        assert_eq!((first.number, first.reports.len(), outbox.oldest_flight()), (1, 2, Some(start)));
        outbox.tell(said(2, TaskState::Running, false));
        let second = outbox.next_batch(start).unwrap();
        outbox.stored(second.number);
        assert_eq!(outbox.next_batch(late - Duration::from_millis(1)), None);
        let again = outbox.next_batch(late).unwrap();
        assert_eq!(again.reports, [said(1, TaskState::Starting, false)]);
        outbox.stored(again.number);
        assert_eq!((outbox.next_batch(late * 9), outbox.oldest_flight()), (None, None));
    }
}
