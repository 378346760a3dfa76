//! How long a slot that keeps failing waits for its next task.

use std::fmt;
use std::time::Duration;

use warren_types::{Task, TaskState, Timestamp};

use crate::state::{State, same_shape};

/// After the first failure; doubles with each further one.
const FIRST_DELAY: Duration = Duration::from_secs(5);
/// The longest delay. Also how long a task must last for its end to be the first of a new row.
const MAX_DELAY: Duration = Duration::from_secs(5 * 60);

/// How often in a row a slot's tasks ended by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ends {
    count: u32,
    /// The newest of them.
    last: Timestamp,
    /// The newest ended with success.
    completed: bool,
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.completed { "ended" } else { "failed" };
        match self.count {
            1 => write!(f, "{what}"),
            count => write!(f, "{what} {count} times in a row"),
        }
    }
}

impl Ends {
    /// Of the tasks of one slot, newest first. Tasks that were lost with their node or stopped because
    /// managers wanted it say nothing about the slot.
    fn of<'a>(newest_first: impl Iterator<Item = &'a Task>) -> Option<Self> {
        let mut ends: Option<Self> = None;
        for task in newest_first.filter(|task| ended_by_itself(task)) {
            let since = task.observed.since;
            let completed = task.observed.state == TaskState::Complete;
            ends.get_or_insert(Self { count: 0, last: since, completed }).count += 1;
            let lasted = since.since(task.created_at.max(task.not_before.unwrap_or_default()));
            if lasted >= MAX_DELAY {
                break;
            }
        }
        ends
    }

    /// When the slot may have its next task.
    fn next(self) -> Timestamp {
        let doubled = 1u32.checked_shl(self.count.saturating_sub(1)).unwrap_or(u32::MAX);
        self.last + FIRST_DELAY.saturating_mul(doubled).min(MAX_DELAY)
    }
}

fn ended_by_itself(task: &Task) -> bool {
    matches!(task.observed.state, TaskState::Complete | TaskState::Failed | TaskState::Rejected)
}

/// When the next task of the slot may be placed; `None` for at once. `ended` are the slot's tasks that are
/// over and run the same, oldest first.
pub(super) fn not_before<'a>(
    ended: impl DoubleEndedIterator<Item = &'a Task>,
    now: Timestamp,
) -> Option<Timestamp> {
    Ends::of(ended.rev()).map(Ends::next).filter(|time| *time > now)
}

/// What held the task back: how its predecessors in the slot ended.
pub(crate) fn ends_before(state: &State, task: &Task) -> Option<Ends> {
    let alike = |other: &Task| same_shape(&other.revision, &task.revision);
    let earlier = |other: &&Task| other.slot == task.slot && other.id < task.id && alike(other);
    Ends::of(state.unsettled_of(&task.id.service).rev().map(AsRef::as_ref).filter(earlier))
}
