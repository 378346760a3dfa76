//! The door to time: the real clock, and one that a test moves by hand.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Where time comes from. Deciding code takes the values as arguments and never holds a clock itself.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// Milliseconds since 1970-01-01T00:00:00Z. Never less than an earlier answer of the same clock.
    fn unix_millis(&self) -> u64;

    /// For measuring spans and setting deadlines; unrelated to the calendar.
    fn instant(&self) -> Instant;
}

/// The machine's clock. When the wall clock is set back, this one keeps running at its own pace ahead of
/// it until the process ends, instead of going back or standing still: deadlines computed from it still pass.
#[derive(Debug)]
pub struct SystemClock {
    line: Mutex<Line>,
}

impl SystemClock {
    /// A clock anchored at the present moment.
    pub fn new() -> Self {
        Self { line: Mutex::new(Line { wall: wall_millis(), at: Instant::now() }) }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn unix_millis(&self) -> u64 {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.advance(wall_millis(), Instant::now())
    }

    fn instant(&self) -> Instant {
        Instant::now()
    }
}

/// A machine whose clock stands before 1970 is read as standing at 1970.
fn wall_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    millis(since)
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// The line time may not fall below: through the last moment at which the wall clock was ahead of it.
#[derive(Debug)]
struct Line {
    wall: u64,
    at: Instant,
}

impl Line {
    fn advance(&mut self, wall: u64, at: Instant) -> u64 {
        let steady = self.wall.saturating_add(millis(at.saturating_duration_since(self.at)));
        if wall < steady {
            return steady;
        }
        *self = Line { wall, at };
        wall
    }
}

/// A clock that stands still until it is told to move. Its instants follow it, not the runtime's timers.
#[derive(Debug)]
pub struct ManualClock {
    start: (u64, Instant),
    passed: Mutex<Duration>,
}

impl ManualClock {
    /// A clock standing at `unix_millis`.
    pub fn new(unix_millis: u64) -> Self {
        Self { start: (unix_millis, Instant::now()), passed: Mutex::new(Duration::ZERO) }
    }

    /// Moves both the wall time and the instants forward.
    pub fn advance(&self, by: Duration) {
        *self.passed.lock().unwrap_or_else(PoisonError::into_inner) += by;
    }

    fn passed(&self) -> Duration {
        *self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for ManualClock {
    fn unix_millis(&self) -> u64 {
        self.start.0.saturating_add(millis(self.passed()))
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
    fn the_system_clock_keeps_the_rules_and_tells_the_time() {
        let clock = SystemClock::new();
        check(&clock, || ());
        assert!(clock.unix_millis().abs_diff(wall_millis()) < 10_000);
    }

    #[test]
    fn the_manual_clock_keeps_the_rules_and_moves_only_by_hand() {
        let clock = ManualClock::new(5_000);
        check(&clock, || clock.advance(Duration::from_millis(1)));
        assert_eq!(clock.unix_millis(), 5_100);
        let before = clock.instant();
        clock.advance(Duration::from_secs(2));
        assert_eq!(clock.unix_millis(), 7_100);
        assert_eq!(clock.instant() - before, Duration::from_secs(2));
    }

    #[test]
    fn a_wall_clock_set_back_neither_reverses_nor_stops_time() {
        let start = Instant::now();
        let mut line = Line { wall: 10_000, at: start };
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
            let mut line = Line { wall: 50_000, at };
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
