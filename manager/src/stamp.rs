//! The time that goes into commands and is shown to people.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;
use warren_control::Clock;
use warren_core::Steady;
use warren_types::Timestamp;

use crate::store::Store;

/// A clock that answers in the state's own type and is never behind the cluster's time. Cheap to clone.
#[derive(Clone)]
pub struct Stamp(Arc<Parts>);

struct Parts {
    clock: Arc<dyn Clock>,
    store: Store,
    started: Instant,
    steady: Mutex<Steady>,
}

impl Stamp {
    /// Stamps with `clock`, or with the time of the cluster in `store` where that is ahead.
    pub fn new(clock: Arc<dyn Clock>, store: Store) -> Self {
        let started = clock.instant();
        Self(Arc::new(Parts { clock, store, started, steady: Mutex::default() }))
    }

    /// What this machine's clock says, wrong or not: for others to hold theirs against.
    pub fn wall(&self) -> Timestamp {
        Timestamp(self.0.clock.unix_millis())
    }

    /// The time now; never less than an earlier answer.
    pub fn now(&self) -> Timestamp {
        let Parts { clock, store, started, steady } = &*self.0;
        // Nothing here panics between two changes, so a poisoned one is still whole.
        let mut steady = steady.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = clock.instant().saturating_duration_since(*started);
        steady.saw(store.read().state.clock(), elapsed);
        steady.now(Timestamp(clock.unix_millis()), elapsed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use warren_control::ManualClock;
    use warren_core::{Command, LEVEL, State};
    use warren_types::{ClusterId, Id};

    use super::*;
    use crate::store::Published;

    const HOUR: Duration = Duration::from_secs(3600);

    /// A cluster whose time is `clock`.
    fn store(clock: Timestamp) -> Store {
        let mut state = State::new();
        let ranges = vec!["10.210.0.0/16".parse().unwrap()];
        let id = ClusterId(Id(1));
        state.apply(1, 1, &Command::CreateCluster { id, ranges, level: LEVEL, at: clock });
        assert_eq!(state.clock(), clock);
        Store::new(Published::first(state), 1, 1).0
    }

    #[test]
    fn the_time_of_the_cluster_goes_on_when_a_clock_was_ahead() {
        let wall = Timestamp(1_700_000_000_000);
        let clock = Arc::new(ManualClock::new(wall.0));
        let stamp = Stamp::new(clock.clone(), store(wall + HOUR));
        assert_eq!(stamp.now(), wall + HOUR);
        clock.advance(Duration::from_secs(5));
        assert_eq!(stamp.now(), wall + HOUR + Duration::from_secs(5));
        assert_eq!(stamp.wall(), wall + Duration::from_secs(5), "the machine's own time is another matter");
    }

    #[test]
    fn a_clock_that_is_right_is_followed() {
        let wall = Timestamp(1_700_000_000_000);
        let clock = Arc::new(ManualClock::new(wall.0));
        let stamp = Stamp::new(clock.clone(), store(Timestamp(wall.0 - 1)));
        assert_eq!(stamp.now(), wall);
        clock.advance(HOUR);
        assert_eq!(stamp.now(), wall + HOUR);
    }
}
