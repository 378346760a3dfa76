//! The time that a leader stamps: its own wall clock, but never behind the cluster's.
//!
//! Wall clocks jump. When one that was an hour ahead has stamped a command, the cluster's time stands an hour ahead,
//! and never goes back. A leader whose own clock is right would then stamp the past, which counts as no time at all:
//! the cluster's time would stand still for an hour, and with it everything that waits for a moment.

use std::time::Duration;

use warren_types::Timestamp;

/// The cluster's time, as it goes on from where it was seen. Elapsed times are those of a monotonic clock, counted
/// from any fixed moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Steady {
    seen: Timestamp,
    at: Duration,
}

impl Steady {
    /// [`State::clock`](crate::State::clock) was `clock` at `elapsed`. An older or equal one changes nothing.
    pub fn saw(&mut self, clock: Timestamp, elapsed: Duration) {
        if clock > self.seen {
            *self = Self { seen: clock, at: elapsed };
        }
    }

    /// What to stamp at `elapsed`, when the wall clock says `wall`.
    pub fn now(&self, wall: Timestamp, elapsed: Duration) -> Timestamp {
        wall.max(self.seen + elapsed.saturating_sub(self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn time_goes_on_from_where_it_was_seen_until_the_wall_clock_is_there() {
        let hour = Timestamp(3_600_000);
        let mut steady = Steady::default();
        assert_eq!(steady.now(hour, seconds(5)), hour, "nothing was seen");
        let ahead = Timestamp(7_200_000);
        for _ in 0..2 {
            steady.saw(ahead, seconds(10));
        }
        steady.saw(hour, seconds(11));
        assert_eq!(steady.now(hour, seconds(10)), ahead);
        assert_eq!(steady.now(hour, seconds(13)), ahead + seconds(3));
        assert_eq!(steady.now(ahead + seconds(60), seconds(13)), ahead + seconds(60));
        assert_eq!(steady.now(hour, seconds(9)), ahead, "a moment before it was seen");
    }
}
