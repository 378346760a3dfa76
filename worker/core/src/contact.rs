//! For how long a node has been without any manager, which tasks may mind.
//!
//! Counted from the last word of a manager, by a clock that nobody sets: `M` is a moment of it.

use std::ops::Sub;
use std::time::Duration;

/// What an agent that just started gets to find a manager. Managers give such tasks more than this beyond their time.
pub const START_GRACE: Duration = Duration::from_secs(3);

/// How a node stands with managers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Standing<M> {
    /// One has welcomed it, or it is too early to say that none does.
    #[default]
    Attended,
    /// None since then, and for so long before.
    Alone {
        /// When one was last heard, or the agent started.
        since: M,
        /// For how long there had been none then.
        before: Duration,
    },
}

impl<M: Copy + Sub<Output = Duration>> Standing<M> {
    /// For how long there has been no manager by `now`; `None` while there is one.
    pub fn alone_for(self, now: M) -> Option<Duration> {
        match self {
            Self::Attended => None,
            Self::Alone { since, before } => Some((now - since).saturating_add(before)),
        }
    }
}

/// Keeps the standing of one life of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contact<M> {
    /// When a manager last said a word, or the agent started.
    heard: M,
    /// For how long there had been none then.
    before: Duration,
    /// No manager has welcomed this agent yet, and nobody was told.
    starting: bool,
    standing: Standing<M>,
}

impl<M: Copy + Sub<Output = Duration>> Contact<M> {
    /// Of an agent that starts now, when no manager had been heard for so long. `None`: nobody knows for how long, and
    /// it is taken for endless.
    pub fn resume(now: M, before: Option<Duration>) -> Self {
        let before = before.unwrap_or(Duration::MAX);
        Self { heard: now, before, starting: true, standing: Standing::Attended }
    }

    /// How the node stands by now.
    pub fn standing(&self) -> Standing<M> {
        self.standing
    }

    /// A manager that has welcomed the node says something.
    pub fn heard(&mut self, now: M) {
        *self = Self { heard: now, before: Duration::ZERO, starting: false, standing: Standing::Attended };
    }

    /// There is no session any more, or none came about.
    pub fn lost(&mut self) {
        if !self.starting && matches!(self.standing, Standing::Attended) {
            self.standing = Standing::Alone { since: self.heard, before: self.before };
        }
    }

    /// Called again and again: a start may be over that found no manager.
    pub fn look(&mut self, now: M) {
        if self.starting && now - self.heard >= START_GRACE {
            self.starting = false;
            self.lost();
        }
    }

    /// For how long no manager has said a word to this agent.
    pub fn silent_for(&self, now: M) -> Duration {
        now - self.heard
    }

    /// When a manager last said a word; `None` where this agent has not heard one. The next agent must know.
    pub fn last_word(&self) -> Option<M> {
        self.before.is_zero().then_some(self.heard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: Duration = Duration::from_secs(1);

    #[test]
    fn the_time_counts_from_a_managers_last_word() {
        let mut contact = Contact::resume(SEC, Some(Duration::ZERO));
        assert_eq!(contact.standing(), Standing::Attended, "too early to say");
        contact.heard(5 * SEC);
        for _ in 0..2 {
            contact.lost();
            assert_eq!(contact.standing().alone_for(9 * SEC), Some(4 * SEC), "not from when it was noticed");
        }
        assert_eq!((contact.silent_for(9 * SEC), contact.last_word()), (4 * SEC, Some(5 * SEC)));
        contact.heard(9 * SEC);
        assert_eq!(contact.standing().alone_for(20 * SEC), None);
    }

    #[test]
    fn an_agent_that_starts_has_a_moment_and_then_counts_what_was_before() {
        for (before, wanted) in [
            (Some(7 * SEC), 7 * SEC + START_GRACE),
            (Some(Duration::ZERO), START_GRACE),
            (None, Duration::MAX),
        ] {
            let mut contact = Contact::resume(SEC, before);
            contact.look(START_GRACE);
            contact.lost();
            assert_eq!(contact.standing(), Standing::Attended);
            for _ in 0..2 {
                contact.look(SEC + START_GRACE);
                assert_eq!(contact.standing().alone_for(SEC + START_GRACE), Some(wanted));
            }
            assert_eq!(contact.last_word().is_some(), before == Some(Duration::ZERO));
        }
    }
}
