//! The clock: the real one, and one that tests advance manually.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Source of time. Deciding code takes times as arguments and never holds a clock.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// Milliseconds since 1970-01-01T00:00:00Z. Never decreases for the same clock.
    fn unix_millis(&self) -> u64;

    /// Milliseconds since 1970-01-01T00:00:00Z by the wall clock, which may be set back: the time by which peers judge
    /// certificates.
    fn wall_millis(&self) -> u64;

    /// Monotonic time, for durations and deadlines.
    fn instant(&self) -> Instant;
}

/// The clock of the machine. When the wall clock is set back, this one continues at monotonic speed until the process
/// ends, instead of going back or stopping: deadlines computed from it still expire.
#[derive(Debug)]
pub struct SystemClock {
    anchor: Mutex<MonotonicAnchor>,
}

impl SystemClock {
    /// A clock that starts at the current time.
    pub fn new() -> Self {
        Self { anchor: Mutex::new(MonotonicAnchor { wall: wall_millis(), at: Instant::now() }) }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn unix_millis(&self) -> u64 {
        let mut line = self.anchor.lock().unwrap_or_else(PoisonError::into_inner);
        line.advance(wall_millis(), Instant::now())
    }

    fn wall_millis(&self) -> u64 {
        wall_millis()
    }

    fn instant(&self) -> Instant {
        Instant::now()
    }
}

/// A time before 1970 is read as 1970.
fn wall_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    millis(since)
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Lower bound of the time: continues from the last moment at which the wall clock was ahead of it.
#[derive(Debug)]
struct MonotonicAnchor {
    wall: u64,
    at: Instant,
}

impl MonotonicAnchor {
    fn advance(&mut self, wall: u64, at: Instant) -> u64 {
        let steady = self.wall.saturating_add(millis(at.saturating_duration_since(self.at)));
        if wall < steady {
            return steady;
        }
        *self = MonotonicAnchor { wall, at };
        wall
    }
}

/// A clock that only advances manually. Its instants follow it, not the timers of the runtime.
#[derive(Debug)]
pub struct ManualClock {
    start: (u64, Instant),
    elapsed: Mutex<Duration>,
    /// How far the wall clock was set back.
    set_back: Mutex<Duration>,
}

impl ManualClock {
    /// A clock at `unix_millis`.
    pub fn new(unix_millis: u64) -> Self {
        Self { start: (unix_millis, Instant::now()), elapsed: Mutex::default(), set_back: Mutex::default() }
    }

    /// Advances the wall time and the instants.
    pub fn advance(&self, by: Duration) {
        *self.elapsed.lock().unwrap_or_else(PoisonError::into_inner) += by;
    }

    /// Sets the wall clock back; [`Clock::unix_millis`] goes on.
    pub fn set_back(&self, by: Duration) {
        *self.set_back.lock().unwrap_or_else(PoisonError::into_inner) += by;
    }

    fn passed(&self) -> Duration {
        *self.elapsed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for ManualClock {
    fn unix_millis(&self) -> u64 {
        self.start.0.saturating_add(millis(self.passed()))
    }

    fn wall_millis(&self) -> u64 {
        let set_back = *self.set_back.lock().unwrap_or_else(PoisonError::into_inner);
        self.unix_millis().saturating_sub(millis(set_back))
    }

    fn instant(&self) -> Instant {
        self.start.1 + self.passed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What holds for every clock; `pass` lets some time go by on the clock under test.
    fn check(clock: &dyn Clock, pass: impl Fn()) {
        for _ in 0..100 {
            let (wall, instant) = (clock.unix_millis(), clock.instant());
            pass();
            assert!(clock.unix_millis() >= wall);
            assert!(clock.instant() >= instant);
        }
    }

    #[test]
    fn system_clock_is_monotonic() {
        let clock = SystemClock::new();
        check(&clock, || ());
        assert!(clock.unix_millis().abs_diff(wall_millis()) < 10_000);
    }

    #[test]
    fn manual_clock_advances_only_on_request() {
        let clock = ManualClock::new(5_000);
        check(&clock, || clock.advance(Duration::from_millis(1)));
        assert_eq!(clock.unix_millis(), 5_100);
        let before = clock.instant();
        clock.advance(Duration::from_secs(2));
        assert_eq!(clock.unix_millis(), 7_100);
        assert_eq!(clock.instant() - before, Duration::from_secs(2));
        clock.set_back(Duration::from_secs(1));
        assert_eq!((clock.unix_millis(), clock.wall_millis()), (7_100, 6_100));
    }

    #[test]
    fn a_wall_clock_set_back_neither_reverses_nor_stops_time() {
        let start = Instant::now();
        let mut line = MonotonicAnchor { wall: 10_000, at: start };
        assert_eq!(line.advance(9_000, start + Duration::from_millis(100)), 10_100);
        assert_eq!(line.advance(9_400, start + Duration::from_millis(500)), 10_500);
        assert_eq!(line.advance(20_000, start + Duration::from_millis(600)), 20_000);
    }

    proptest! {
        #[test]
        fn time_never_goes_back_whatever_the_wall_clock_does(
            moves in proptest::collection::vec((0u64..100_000, 0u64..1_000), 1..50),
        ) {
            let mut at = Instant::now();
            let mut line = MonotonicAnchor { wall: 50_000, at };
            let mut last = 50_000;
            for (wall, passed) in moves {
                at += Duration::from_millis(passed);
                let now = line.advance(wall, at);
                prop_assert!(now >= last + passed && now >= wall);
                last = now;
            }
        }
    }
}
