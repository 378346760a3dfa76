use proptest::prelude::*;
use warren_types::spec::Probe;

use super::*;

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn check(interval: u64, start_period: u64, start_interval: u64, retries: u32) -> HealthCheck {
    HealthCheck {
        interval: seconds(interval),
        start_period: seconds(start_period),
        start_interval: seconds(start_interval),
        retries,
        ..HealthCheck::new(Probe::Tcp { port: 80 })
    }
}

fn outcome(good: bool) -> ProbeOutcome {
    if good { ProbeOutcome::success("fine") } else { ProbeOutcome::failure("refused") }
}

/// Runs one check of no duration; returns its start in whole seconds, and the result.
fn run_check(tracker: &mut HealthTracker, good: bool) -> (u64, HealthVerdict) {
    let due = tracker.due().unwrap();
    tracker.begin();
    assert_eq!(tracker.due(), None, "one at a time");
    (due.as_secs(), tracker.end(&outcome(good), due))
}

/// The health after each of the checks.
fn run_checks(tracker: &mut HealthTracker, answers: &[bool]) -> Vec<Health> {
    answers.iter().map(|good| run_check(tracker, *good).1.health).collect()
}

use Health::{Healthy, Starting, Unhealthy};

#[test]
fn success_makes_healthy_and_retries_failures_unhealthy() {
    let mut tracker = HealthTracker::new(&check(30, 0, 1, 3), 7);
    assert_eq!(run_checks(&mut tracker, &[true, false, false, true]), [Healthy; 4]);
    assert_eq!(
        run_checks(&mut tracker, &[false, false, false, false]),
        [Healthy, Healthy, Unhealthy, Unhealthy]
    );
    assert_eq!(run_checks(&mut tracker, &[true, false, false]), [Healthy; 3]);
}

#[test]
fn start_period_failures_do_not_count_before_success() {
    let mut tracker = HealthTracker::new(&check(10, 5, 1, 2), 7);
    assert_eq!(run_checks(&mut tracker, &[false; 5]), [Starting; 5]);
    assert!(tracker.due().unwrap() < seconds(10));
    // One in the start period may remain; then those an interval apart count.
    let after = run_checks(&mut tracker, &[false; 3]);
    assert_eq!(after.last(), Some(&Unhealthy), "{after:?}");
    let mut tracker = HealthTracker::new(&check(10, 60, 1, 2), 7);
    assert_eq!(run_checks(&mut tracker, &[true, false, false]), [Healthy, Healthy, Unhealthy]);
}

#[test]
fn slow_start_gets_full_retries() {
    let mut tracker = HealthTracker::new(&check(30, 0, 1, 3), 7);
    let mut last = HealthVerdict { health: Starting, reason: String::new() };
    let mut at = 0;
    while last.health == Starting {
        assert_eq!(tracker.due().unwrap().as_secs(), at, "asked every second");
        (at, last) = run_check(&mut tracker, false);
        at += 1;
    }
    assert_eq!((at, last.health), (61, Unhealthy));
    let (next, later) = (run_check(&mut tracker, false).0, run_check(&mut tracker, false).0);
    assert_eq!(later - next, 30, "then at its usual pace");
}

#[test]
fn first_check_is_immediate_then_start_interval_then_interval() {
    let mut tracker = HealthTracker::new(&check(30, 100, 2, 3), 7);
    assert!(tracker.due().unwrap() <= FIRST_CHECK_WITHIN);
    let at: Vec<u64> = (0..4).map(|_| run_check(&mut tracker, false).0).collect();
    assert_eq!(at, [0, 2, 4, 6]);
    let (last, _) = run_check(&mut tracker, true);
    let (next, _) = run_check(&mut tracker, true);
    let (later, _) = run_check(&mut tracker, true);
    assert!(next - last <= 30 && later - next == 30, "{last} {next} {later}");
    // A start interval longer than the interval has no effect.
    let mut tracker = HealthTracker::new(&check(1, 100, 60, 3), 7);
    run_check(&mut tracker, false);
    assert!(tracker.due().unwrap() < seconds(3));
}

#[test]
fn slow_check_skips_intervals() {
    let mut tracker = HealthTracker::new(&check(2, 0, 2, 100), 7);
    run_checks(&mut tracker, &[true, true]);
    let begun = tracker.due().unwrap();
    tracker.begin();
    tracker.end(&outcome(false), begun + seconds(5));
    assert_eq!(tracker.due(), Some(begun + seconds(6)));
    // Also after the node was suspended for a day.
    tracker.begin();
    tracker.end(&outcome(false), begun + seconds(86_400));
    assert_eq!(tracker.due(), Some(begun + seconds(86_402)));
}

#[test]
fn reason_changes_only_with_result() {
    let mut tracker = HealthTracker::new(&check(1, 0, 1, 2), 7);
    let reason = |tracker: &mut HealthTracker, summary: &str| {
        tracker.begin();
        tracker.end(&ProbeOutcome::failure(summary), tracker.due).reason
    };
    let starting = "no health check has succeeded yet: refused";
    assert_eq!(reason(&mut tracker, "refused"), starting);
    // Less than an interval later, so it does not count.
    assert_eq!(reason(&mut tracker, "refused"), starting);
    let unhealthy = "unhealthy: refused (2 consecutive failures)";
    assert_eq!(reason(&mut tracker, "refused"), unhealthy);
    assert_eq!(reason(&mut tracker, "refused"), unhealthy);
    assert_eq!(
        reason(&mut tracker, "HTTP 500 from :80/"),
        "unhealthy: HTTP 500 from :80/ (4 consecutive failures)"
    );
    assert_eq!(run_check(&mut tracker, true).1.reason, "");
}

#[test]
fn inconclusive_check_changes_nothing() {
    let mut tracker = HealthTracker::new(&check(1, 0, 1, 2), 7);
    assert_eq!(run_checks(&mut tracker, &[true, false]), [Healthy; 2]);
    for _ in 0..5 {
        tracker.begin();
        let verdict = tracker.end(&ProbeOutcome::inconclusive("no memory"), tracker.due);
        assert_eq!((verdict.health, verdict.reason.as_str()), (Healthy, ""));
    }
    assert_eq!(run_checks(&mut tracker, &[false]), [Unhealthy], "the row goes on");
    let mut tracker = HealthTracker::new(&check(1, 0, 1, 2), 7);
    tracker.begin();
    let verdict = tracker.end(&ProbeOutcome::inconclusive("no memory"), tracker.due);
    assert_eq!(
        (verdict.health, verdict.reason.as_str()),
        (Starting, "no health check has succeeded yet: no memory")
    );
}

#[test]
fn adopted_process_keeps_health_until_checked() {
    let adopt = |health| HealthTracker::adopted(&check(10, 0, 1, 2), 7, seconds(1234), health);
    let due = adopt(Healthy).due().unwrap();
    assert!(due > seconds(1234) && due <= seconds(1244), "{due:?}");
    assert_eq!(run_checks(&mut adopt(Healthy), &[false, false]), [Healthy, Unhealthy]);
    assert_eq!(run_checks(&mut adopt(Unhealthy), &[false, true]), [Unhealthy, Healthy]);
    assert_eq!(adopt(Starting).health(), Starting);
    assert!(adopt(Starting).due().unwrap() <= seconds(1235));
    let just_started = HealthTracker::adopted(&check(10, 0, 1, 2), 7, Duration::from_millis(5), Health::None);
    assert_eq!(just_started, HealthTracker::new(&check(10, 0, 1, 2), 7));
}

#[test]
fn a_thousand_tasks_that_started_together_are_spread() {
    let mut per_second = [0; 30];
    for seed in 0..1000 {
        let mut tracker = HealthTracker::new(&check(30, 0, 1, 3), seed);
        run_checks(&mut tracker, &[true, true]);
        per_second[usize::try_from(tracker.due().unwrap().as_secs() % 30).unwrap()] += 1;
    }
    let (least, most) = (per_second.iter().min(), per_second.iter().max());
    assert!(least >= Some(&25) && most <= Some(&42), "{per_second:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// For any result and duration of a check, the next one starts after its end, and at most an interval
    /// later.
    #[test]
    fn next_check_is_in_the_future(
        interval in 100..100_000u64,
        start_interval in 100..100_000u64,
        start_period in 0..200_000u64,
        retries in 1..10u32,
        seed: u64,
        age in prop::option::of(0..1_000_000u64),
        answers in prop::collection::vec((any::<bool>(), 0..300_000u64, 0..5000u64), 1..40),
    ) {
        let millis = Duration::from_millis;
        let check = HealthCheck {
            interval: millis(interval),
            start_interval: millis(start_interval),
            start_period: millis(start_period),
            retries,
            ..HealthCheck::new(Probe::Tcp { port: 80 })
        };
        let mut tracker = match age {
            Some(age) => HealthTracker::adopted(&check, seed, millis(age), Healthy),
            None => HealthTracker::new(&check, seed),
        };
        let mut row = 0;
        for (good, took, late) in answers {
            let begun = tracker.due().unwrap();
            tracker.begin();
            let over = begun + millis(took + late);
            let before = tracker.health();
            let verdict = tracker.end(&outcome(good), over);
            let due = tracker.due().unwrap();
            prop_assert!(due >= over && due > begun, "{:?} after {:?}", due, over);
            prop_assert!(due <= over + check.interval, "{:?} after {:?}", due, over);
            row = if good { 0 } else { row + 1 };
            prop_assert_eq!(good, verdict.health == Healthy && row == 0);
            prop_assert_eq!(verdict.reason.is_empty(), verdict.health == Healthy);
            prop_assert!(before == Unhealthy || verdict.health != Unhealthy || row >= retries);
            prop_assert!(good || before != Healthy || row < retries || verdict.health == Unhealthy);
        }
    }
}
