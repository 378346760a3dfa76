//! The timestamps of a leader: its wall clock, but never before the cluster's time.
//!
//! Wall clocks jump. If a clock that was an hour ahead has stamped a command, the cluster's time is an hour
//! ahead, and never decreases. A leader with a correct clock would then stamp times in the past, which are
//! ignored: the cluster's time would not advance for an hour, and everything that waits for a time would
//! stop.

use std::time::Duration;

use warren_types::Timestamp;

/// The cluster's time, advanced from the last observation. Elapsed times are those of a monotonic clock,
/// counted from any fixed moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClusterClock {
    cluster_time: Timestamp,
    observed_at: Duration,
}

impl ClusterClock {
    /// [`State::clock`](crate::State::clock) was `clock` at `elapsed`. An older or equal one changes nothing.
    pub fn observe(&mut self, clock: Timestamp, elapsed: Duration) {
        if clock > self.cluster_time {
            *self = Self { cluster_time: clock, observed_at: elapsed };
        }
    }

    /// The timestamp at `elapsed`, when the wall clock shows `wall`.
    pub fn now(&self, wall: Timestamp, elapsed: Duration) -> Timestamp {
        wall.max(self.cluster_time + elapsed.saturating_sub(self.observed_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn cluster_clock_never_goes_back() {
        let hour = Timestamp(3_600_000);
        let mut steady = ClusterClock::default();
        assert_eq!(steady.now(hour, seconds(5)), hour, "nothing was seen");
        let ahead = Timestamp(7_200_000);
        for _ in 0..2 {
            steady.observe(ahead, seconds(10));
        }
        steady.observe(hour, seconds(11));
        assert_eq!(steady.now(hour, seconds(10)), ahead);
        assert_eq!(steady.now(hour, seconds(13)), ahead + seconds(3));
        assert_eq!(steady.now(ahead + seconds(60), seconds(13)), ahead + seconds(60));
        assert_eq!(steady.now(hour, seconds(9)), ahead, "a moment before it was seen");
    }
}
