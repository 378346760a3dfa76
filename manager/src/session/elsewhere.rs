//! What other managers tell of the progress of tasks whose nodes have their sessions there. It is listened to while
//! somebody here watches, and forgotten after that.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warren_core::State;
use warren_types::{MemberId, NodeId, TaskId, TaskReport};

use super::registry::order;

/// As many words may be kept before it is looked whether they are still of use.
const ROOM: usize = 1024;

/// The newest words. Cheap to clone; all clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Elsewhere(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    words: BTreeMap<TaskId, Word>,
    /// How many there were when those of no use were last dropped.
    pruned: usize,
}

#[derive(Debug, Clone, PartialEq)]
struct Word {
    /// The manager that told it.
    from: MemberId,
    node: NodeId,
    report: TaskReport,
}

impl Elsewhere {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a word, unless it is older than what is kept of the task; true when it is another one.
    pub(super) fn note(&self, from: MemberId, node: NodeId, report: TaskReport) -> bool {
        let word = Word { from, node, report };
        let words = &mut self.lock().words;
        let known = words.get(&word.report.task);
        // A node that has another manager now begins anew.
        let older =
            known.is_some_and(|known| known.node == node && order(&known.report) > order(&word.report));
        if older || known == Some(&word) {
            return false;
        }
        words.insert(word.report.task, word);
        true
    }

    /// The newest word on a task of that node.
    pub fn progress(&self, node: NodeId, task: &TaskId) -> Option<TaskReport> {
        self.lock().words.get(task).filter(|word| word.node == node).map(|word| word.report.clone())
    }

    /// Drops what the state says as well by now, once there is enough of it.
    pub fn prune(&self, state: &State) {
        let mut kept = self.lock();
        if kept.words.len() < ROOM.max(2 * kept.pruned) {
            return;
        }
        kept.words.retain(|id, word| {
            let task = state.task(id).filter(|task| task.node == Some(word.node));
            task.is_some_and(|task| {
                let observed = &task.observed;
                (observed.removed, observed.attempt, observed.state) < order(&word.report)
            })
        });
        kept.pruned = kept.words.len();
    }

    /// Forgets what that manager told.
    pub fn forget(&self, from: MemberId) {
        self.lock().words.retain(|_, word| word.from != from);
    }

    /// Forgets everything.
    pub fn clear(&self) {
        *self.lock() = Kept::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_types::{Health, Id, ServiceId, TaskState, Timestamp};

    fn task(number: u64) -> TaskId {
        TaskId { service: ServiceId(Id(1)), number }
    }

    fn report(number: u64, attempt: u32, state: TaskState) -> TaskReport {
        TaskReport {
            task: task(number),
            attempt,
            state,
            since: Timestamp(0),
            reason: String::new(),
            ready: false,
            exit: None,
            removed: false,
            next_attempt: None,
            image: None,
            health: Health::None,
        }
    }

    #[test]
    fn words_only_rise_and_are_of_the_tasks_node() {
        let (elsewhere, node, other) = (Elsewhere::default(), NodeId(Id(1)), NodeId(Id(2)));
        let shown = |node| elsewhere.progress(node, &task(1)).map(|report| report.state);
        assert!(elsewhere.note(2, node, report(1, 0, TaskState::Starting)));
        assert!(!elsewhere.note(2, node, report(1, 0, TaskState::Starting)), "nothing new");
        assert!(!elsewhere.note(3, node, report(1, 0, TaskState::Preparing)), "older");
        assert_eq!((shown(node), shown(other)), (Some(TaskState::Starting), None));
        elsewhere.forget(3);
        assert_eq!(shown(node), Some(TaskState::Starting), "somebody else told it");
        elsewhere.forget(2);
        assert_eq!(shown(node), None);
    }

    #[test]
    fn what_is_of_no_use_any_more_is_dropped() {
        let (elsewhere, node) = (Elsewhere::default(), NodeId(Id(1)));
        for number in 0..=ROOM as u64 {
            elsewhere.prune(&State::new());
            elsewhere.note(2, node, report(number, 0, TaskState::Preparing));
        }
        assert_eq!(elsewhere.lock().words.len(), 1, "the state knows none of them");
        elsewhere.clear();
        assert!(elsewhere.lock().words.is_empty());
    }
}
