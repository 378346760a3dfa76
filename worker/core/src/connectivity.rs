//! How long a node has been without contact with a manager, which decides about tasks with `stop_after`.
//!
//! Counted from the last contact with a manager, by a monotonic clock: `M` is a moment of it.

use std::ops::Sub;
use std::time::Duration;

/// Time for an agent that just started to connect to a manager. Managers add more than this before they
/// replace such tasks.
pub const START_GRACE: Duration = Duration::from_secs(3);

/// Whether a node is connected to a manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Connectivity<M> {
    /// It has a session, or has just started and tries to open one.
    #[default]
    Connected,
    /// It has had no session since then.
    Disconnected {
        /// The last contact, or the start of the agent.
        since: M,
        /// How long there had been no contact before that.
        earlier: Duration,
    },
}

impl<M: Copy + Sub<Output = Duration>> Connectivity<M> {
    /// How long there has been no contact with a manager by `now`; `None` while connected.
    pub fn disconnected_for(self, now: M) -> Option<Duration> {
        match self {
            Self::Connected => None,
            Self::Disconnected { since, earlier: before } => Some((now - since).saturating_add(before)),
        }
    }
}

/// Tracks the connectivity during one run of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectivityTracker<M> {
    /// The last contact with a manager, or the start of the agent.
    last_contact_at: M,
    /// How long there had been no contact before that.
    earlier: Duration,
    /// No manager has accepted a session of this agent yet, and it has not counted as disconnected.
    is_starting: bool,
    connectivity: Connectivity<M>,
}

impl<M: Copy + Sub<Output = Duration>> ConnectivityTracker<M> {
    /// For an agent that starts at `now`, after `before` without contact. `None`: the time is unknown, and
    /// counts as infinite.
    pub fn resume(now: M, before: Option<Duration>) -> Self {
        let before = before.unwrap_or(Duration::MAX);
        Self {
            last_contact_at: now,
            earlier: before,
            is_starting: true,
            connectivity: Connectivity::Connected,
        }
    }

    /// The current connectivity.
    pub fn connectivity(&self) -> Connectivity<M> {
        self.connectivity
    }

    /// A manager with which the node has a session sent something.
    pub fn record_contact(&mut self, now: M) {
        *self = Self {
            last_contact_at: now,
            earlier: Duration::ZERO,
            is_starting: false,
            connectivity: Connectivity::Connected,
        };
    }

    /// The session ended, or could not be opened.
    pub fn record_disconnect(&mut self) {
        if !self.is_starting && matches!(self.connectivity, Connectivity::Connected) {
            self.connectivity =
                Connectivity::Disconnected { since: self.last_contact_at, earlier: self.earlier };
        }
    }

    /// Called periodically: a start without contact may have timed out.
    pub fn update(&mut self, now: M) {
        if self.is_starting && now - self.last_contact_at >= START_GRACE {
            self.is_starting = false;
            self.record_disconnect();
        }
    }

    /// How long this agent has had no contact with a manager.
    pub fn time_since_contact(&self, now: M) -> Duration {
        now - self.last_contact_at
    }

    /// The last contact with a manager; `None` if this agent has had none. The next agent must know it.
    pub fn last_contact(&self) -> Option<M> {
        self.earlier.is_zero().then_some(self.last_contact_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: Duration = Duration::from_secs(1);

    #[test]
    fn disconnect_counts_from_last_contact() {
        let mut contact = ConnectivityTracker::resume(SEC, Some(Duration::ZERO));
        assert_eq!(contact.connectivity(), Connectivity::Connected, "too early to say");
        contact.record_contact(5 * SEC);
        for _ in 0..2 {
            contact.record_disconnect();
            assert_eq!(
                contact.connectivity().disconnected_for(9 * SEC),
                Some(4 * SEC),
                "not from when it was noticed"
            );
        }
        assert_eq!((contact.time_since_contact(9 * SEC), contact.last_contact()), (4 * SEC, Some(5 * SEC)));
        contact.record_contact(9 * SEC);
        assert_eq!(contact.connectivity().disconnected_for(20 * SEC), None);
    }

    #[test]
    fn restart_adds_earlier_disconnect_after_grace() {
        for (before, expected) in [
            (Some(7 * SEC), 7 * SEC + START_GRACE),
            (Some(Duration::ZERO), START_GRACE),
            (None, Duration::MAX),
        ] {
            let mut contact = ConnectivityTracker::resume(SEC, before);
            contact.update(START_GRACE);
            contact.record_disconnect();
            assert_eq!(contact.connectivity(), Connectivity::Connected);
            for _ in 0..2 {
                contact.update(SEC + START_GRACE);
                assert_eq!(contact.connectivity().disconnected_for(SEC + START_GRACE), Some(expected));
            }
            assert_eq!(contact.last_contact().is_some(), before == Some(Duration::ZERO));
        }
    }
}
