//! How long a slot that keeps failing waits for its next task.

use std::cmp::Reverse;
use std::fmt;
use std::time::Duration;

use smallvec::SmallVec;
use warren_types::{Health, Task, TaskState, Timestamp};

use crate::state::{State, is_equivalent};

/// After the first failure; doubles with each further one.
const MIN_DELAY: Duration = Duration::from_secs(5);
/// The longest delay. Also how long a task must run for its end to start a new streak, and after how long
/// without such an end a streak ends.
const MAX_DELAY: Duration = Duration::from_secs(5 * 60);
/// How long after its end a record may still count in a streak of a few tasks.
pub(super) const STREAK_WINDOW: Duration = Duration::from_secs(15 * 60);

/// How often in a row a slot's tasks ended by themselves or were unhealthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EndStreak {
    count: u32,
    /// The time of the newest end.
    last: Timestamp,
    /// How the newest ended.
    cause: EndCause,
}

/// How a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndCause {
    Completed,
    Failed,
    /// It is replaced because it is unhealthy.
    Unhealthy,
}

impl fmt::Display for EndStreak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.cause {
            EndCause::Completed => "ended",
            EndCause::Failed => "failed",
            EndCause::Unhealthy => "was unhealthy",
        };
        match self.count {
            1 => write!(f, "{what}"),
            count => write!(f, "{what} {count} times in a row"),
        }
    }
}

impl EndCause {
    /// `None` for a task that counts neither way: lost with its node, or stopped by managers.
    fn of(task: &Task) -> Option<Self> {
        match task.observed.state {
            TaskState::Complete => Some(Self::Completed),
            TaskState::Failed | TaskState::Rejected => Some(Self::Failed),
            _ => (task.observed.health == Health::Unhealthy).then_some(Self::Unhealthy),
        }
    }
}

impl EndStreak {
    /// From the tasks of one slot with equivalent revisions, in any order; the next one is created at `next`.
    ///
    /// Terminal ones count as long as each followed the one before it and did not run long. A live and
    /// unhealthy one always counts, from now on.
    fn of<'a>(tasks: impl Iterator<Item = &'a Task>, next: Timestamp) -> Option<Self> {
        let mut tasks: SmallVec<[(&Task, EndCause); 8]> =
            tasks.filter_map(|task| Some((task, EndCause::of(task)?))).collect();
        tasks.sort_unstable_by_key(|(task, _)| Reverse(task.id));
        let now = tasks.iter().any(|(task, _)| task.is_live()).then_some(next);
        let mut ends: Option<Self> = None;
        let (mut next, mut row) = (next, true);
        for (task, how) in tasks {
            // One that is being stopped ends with its replacement.
            let last = if task.observed.state.is_terminal() { task.observed.since } else { next };
            row &= next.saturating_since(last) < MAX_DELAY;
            if !row && !task.is_live() {
                continue;
            }
            ends.get_or_insert(Self { count: 0, last: now.unwrap_or(last), cause: how }).count += 1;
            row &=
                last.saturating_since(task.created_at.max(task.not_before().unwrap_or_default())) < MAX_DELAY;
            next = task.created_at;
        }
        ends
    }

    /// When the slot may have its next task.
    fn next_at(self) -> Timestamp {
        let doubled = 1u32.checked_shl(self.count.saturating_sub(1)).unwrap_or(u32::MAX);
        self.last + MIN_DELAY.saturating_mul(doubled).min(MAX_DELAY)
    }
}

/// When the next task of the slot may be assigned; `None` for immediately. `tasks` are the slot's tasks with
/// equivalent revisions.
pub(super) fn not_before<'a>(tasks: impl Iterator<Item = &'a Task>, now: Timestamp) -> Option<Timestamp> {
    EndStreak::of(tasks, now).map(EndStreak::next_at).filter(|time| *time > now)
}

/// Why the task is held back: how its predecessors in the slot ended.
pub(crate) fn preceding_ends(state: &State, task: &Task) -> Option<EndStreak> {
    let alike = |other: &&Task| is_equivalent(&other.revision, &task.revision) && !other.is_surplus();
    let earlier = |other: &&Task| other.slot == task.slot && other.id < task.id && !other.is_live();
    let ended = state.unsettled_tasks_of(&task.id.service).map(AsRef::as_ref).filter(earlier);
    let replaced = state.predecessor(task).map(AsRef::as_ref);
    EndStreak::of(ended.chain(replaced).filter(alike), task.created_at)
}
