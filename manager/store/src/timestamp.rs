//! Timestamps of commands and of shown times.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;
use warren_control::Clock;
use warren_core::ClusterClock;
use warren_types::Timestamp;

use crate::store::Store;

/// A clock of [`Timestamp`]s that is never behind the cluster's time. Cheap to clone.
#[derive(Clone)]
pub struct TimestampSource(Arc<TimestampSourceInner>);

struct TimestampSourceInner {
    clock: Arc<dyn Clock>,
    store: Store,
    started: Instant,
    cluster_clock: Mutex<ClusterClock>,
}

impl TimestampSource {
    /// Uses `clock`, or the time of the cluster in `store` if that is ahead.
    pub fn new(clock: Arc<dyn Clock>, store: Store) -> Self {
        let started = clock.instant();
        Self(Arc::new(TimestampSourceInner { clock, store, started, cluster_clock: Mutex::default() }))
    }

    /// The wall clock of this machine, with which others compare theirs and by which they judge certificates; it may go
    /// back.
    pub fn local_now(&self) -> Timestamp {
        Timestamp(self.0.clock.wall_millis())
    }

    /// The current time; never less than an earlier result.
    pub fn now(&self) -> Timestamp {
        let TimestampSourceInner { clock, store, started, cluster_clock: steady } = &*self.0;
        // No update can panic halfway, so a poisoned value is still consistent.
        let mut steady = steady.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = clock.instant().saturating_duration_since(*started);
        steady.observe(store.read().state.clock(), elapsed);
        steady.now(Timestamp(clock.unix_millis()), elapsed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use warren_control::ManualClock;
    use warren_core::{Command, FEATURE_LEVEL, State};
    use warren_types::{ClusterId, Id};

    use super::*;
    use crate::store::PublishedState;

    const HOUR: Duration = Duration::from_secs(3600);

    /// A cluster with the time `clock`.
    fn store(clock: Timestamp) -> Store {
        let mut state = State::new();
        let ranges = vec!["10.210.0.0/16".parse().unwrap()];
        let id = ClusterId(Id(1));
        state.apply(1, 1, &Command::CreateCluster { id, ranges, feature_level: FEATURE_LEVEL, at: clock });
        assert_eq!(state.clock(), clock);
        Store::new(PublishedState::initial(state), 1, 1).0
    }

    #[test]
    fn cluster_time_continues_after_clock_ahead() {
        let wall = Timestamp(1_700_000_000_000);
        let clock = Arc::new(ManualClock::new(wall.0));
        let stamp = TimestampSource::new(clock.clone(), store(wall + HOUR));
        assert_eq!(stamp.now(), wall + HOUR);
        clock.advance(Duration::from_secs(5));
        assert_eq!(stamp.now(), wall + HOUR + Duration::from_secs(5));
        assert_eq!(
            stamp.local_now(),
            wall + Duration::from_secs(5),
            "the machine's own time is another matter"
        );
        clock.set_back(HOUR);
        assert_eq!(stamp.now(), wall + HOUR + Duration::from_secs(5));
        assert_eq!(stamp.local_now() + HOUR, wall + Duration::from_secs(5));
    }

    #[test]
    fn correct_clock_is_followed() {
        let wall = Timestamp(1_700_000_000_000);
        let clock = Arc::new(ManualClock::new(wall.0));
        let stamp = TimestampSource::new(clock.clone(), store(Timestamp(wall.0 - 1)));
        assert_eq!(stamp.now(), wall);
        clock.advance(HOUR);
        assert_eq!(stamp.now(), wall + HOUR);
    }
}
