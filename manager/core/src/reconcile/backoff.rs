//! How long a slot that keeps failing waits for its next task.

use std::cmp::Reverse;
use std::fmt;
use std::time::Duration;

use smallvec::SmallVec;
use warren_types::{Health, Task, TaskState, Timestamp};

use crate::state::{State, same_shape};

/// After the first failure; doubles with each further one.
const FIRST_DELAY: Duration = Duration::from_secs(5);
/// The longest delay. Also how long a task must last for its end to be the first of a new row, and for how long none
/// may end that way.
const MAX_DELAY: Duration = Duration::from_secs(5 * 60);

/// How often in a row a slot's tasks ended by themselves or were unhealthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ends {
    count: u32,
    /// The newest of them.
    last: Timestamp,
    /// How the newest ended.
    how: How,
}

/// How a task came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Completed,
    Failed,
    /// It is replaced because of its checks.
    Unhealthy,
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.how {
            How::Completed => "ended",
            How::Failed => "failed",
            How::Unhealthy => "was unhealthy",
        };
        match self.count {
            1 => write!(f, "{what}"),
            count => write!(f, "{what} {count} times in a row"),
        }
    }
}

impl How {
    /// `None` for a task that says nothing about its slot: lost with its node, or stopped because managers wanted it.
    fn of(task: &Task) -> Option<Self> {
        match task.observed.state {
            TaskState::Complete => Some(Self::Completed),
            TaskState::Failed | TaskState::Rejected => Some(Self::Failed),
            _ => (task.observed.health == Health::Unhealthy).then_some(Self::Unhealthy),
        }
    }
}

impl Ends {
    /// Of the tasks of one slot that run the same, in any order; the next one is made at `next`.
    ///
    /// Those that are over count as long as each followed the one before it and did not last. One that is live and
    /// unhealthy counts whatever was, from now on.
    fn of<'a>(tasks: impl Iterator<Item = &'a Task>, next: Timestamp) -> Option<Self> {
        let mut tasks: SmallVec<[(&Task, How); 8]> =
            tasks.filter_map(|task| Some((task, How::of(task)?))).collect();
        tasks.sort_unstable_by_key(|(task, _)| Reverse(task.id));
        let now = tasks.iter().any(|(task, _)| task.is_live()).then_some(next);
        let mut ends: Option<Self> = None;
        let (mut next, mut row) = (next, true);
        for (task, how) in tasks {
            // One that is being stopped ends with its replacement.
            let last = if task.observed.state.is_terminal() { task.observed.since } else { next };
            row &= next.since(last) < MAX_DELAY;
            if !row && !task.is_live() {
                continue;
            }
            ends.get_or_insert(Self { count: 0, last: now.unwrap_or(last), how }).count += 1;
            row &= last.since(task.created_at.max(task.not_before().unwrap_or_default())) < MAX_DELAY;
            next = task.created_at;
        }
        ends
    }

    /// When the slot may have its next task.
    fn next(self) -> Timestamp {
        let doubled = 1u32.checked_shl(self.count.saturating_sub(1)).unwrap_or(u32::MAX);
        self.last + FIRST_DELAY.saturating_mul(doubled).min(MAX_DELAY)
    }
}

/// When the next task of the slot may be placed; `None` for at once. `tasks` are the slot's tasks that run the same.
pub(super) fn not_before<'a>(tasks: impl Iterator<Item = &'a Task>, now: Timestamp) -> Option<Timestamp> {
    Ends::of(tasks, now).map(Ends::next).filter(|time| *time > now)
}

/// What held the task back: how its predecessors in the slot ended.
pub(crate) fn ends_before(state: &State, task: &Task) -> Option<Ends> {
    let alike = |other: &&Task| same_shape(&other.revision, &task.revision);
    let earlier = |other: &&Task| other.slot == task.slot && other.id < task.id && !other.is_live();
    let ended = state.unsettled_of(&task.id.service).map(AsRef::as_ref).filter(earlier);
    let replaced = state.predecessor(task).map(AsRef::as_ref);
    Ends::of(ended.chain(replaced).filter(alike), task.created_at)
}
