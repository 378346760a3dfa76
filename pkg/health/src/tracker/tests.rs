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

fn outcome(good: bool) -> Outcome {
    if good { Outcome::good("fine") } else { Outcome::bad("refused") }
}

/// Runs one check that takes no time; when it began, in whole seconds, and what followed.
fn one(tracker: &mut Tracker, good: bool) -> (u64, Verdict) {
    let due = tracker.due().unwrap();
    tracker.begin();
    assert_eq!(tracker.due(), None, "one at a time");
    (due.as_secs(), tracker.end(&outcome(good), due))
}

/// The health after each of the checks.
fn play(tracker: &mut Tracker, answers: &[bool]) -> Vec<Health> {
    answers.iter().map(|good| one(tracker, *good).1.health).collect()
}

use Health::{Healthy, Starting, Unhealthy};

#[test]
fn the_first_success_makes_it_healthy_and_so_many_failures_in_a_row_unhealthy() {
    let mut tracker = Tracker::new(&check(30, 0, 1, 3), 7);
    assert_eq!(play(&mut tracker, &[true, false, false, true]), [Healthy; 4]);
    assert_eq!(play(&mut tracker, &[false, false, false, false]), [Healthy, Healthy, Unhealthy, Unhealthy]);
    assert_eq!(play(&mut tracker, &[true, false, false]), [Healthy; 3]);
}

#[test]
fn failures_in_the_start_period_do_not_count_before_the_first_success() {
    let mut tracker = Tracker::new(&check(10, 5, 1, 2), 7);
    assert_eq!(play(&mut tracker, &[false; 5]), [Starting; 5]);
    assert!(tracker.due().unwrap() < seconds(10));
    // One in the period may be left; then those that are an interval apart count.
    let after = play(&mut tracker, &[false; 3]);
    assert_eq!(after.last(), Some(&Unhealthy), "{after:?}");
    let mut tracker = Tracker::new(&check(10, 60, 1, 2), 7);
    assert_eq!(play(&mut tracker, &[true, false, false]), [Healthy, Healthy, Unhealthy]);
}

#[test]
fn a_task_that_starts_slowly_has_as_long_as_one_that_breaks() {
    let mut tracker = Tracker::new(&check(30, 0, 1, 3), 7);
    let mut last = Verdict { health: Starting, reason: String::new() };
    let mut at = 0;
    while last.health == Starting {
        assert_eq!(tracker.due().unwrap().as_secs(), at, "asked every second");
        (at, last) = one(&mut tracker, false);
        at += 1;
    }
    assert_eq!((at, last.health), (61, Unhealthy));
    let (next, later) = (one(&mut tracker, false).0, one(&mut tracker, false).0);
    assert_eq!(later - next, 30, "then at its usual pace");
}

#[test]
fn it_is_asked_at_once_then_often_then_at_its_pace() {
    let mut tracker = Tracker::new(&check(30, 100, 2, 3), 7);
    assert!(tracker.due().unwrap() <= FIRST_WITHIN);
    let at: Vec<u64> = (0..4).map(|_| one(&mut tracker, false).0).collect();
    assert_eq!(at, [0, 2, 4, 6]);
    let (last, _) = one(&mut tracker, true);
    let (next, _) = one(&mut tracker, true);
    let (later, _) = one(&mut tracker, true);
    assert!(next - last <= 30 && later - next == 30, "{last} {next} {later}");
    // A start interval longer than the interval would be none.
    let mut tracker = Tracker::new(&check(1, 100, 60, 3), 7);
    one(&mut tracker, false);
    assert!(tracker.due().unwrap() < seconds(3));
}

#[test]
fn a_slow_check_leaves_some_out_and_does_not_overlap_itself() {
    let mut tracker = Tracker::new(&check(2, 0, 2, 100), 7);
    play(&mut tracker, &[true, true]);
    let begun = tracker.due().unwrap();
    tracker.begin();
    tracker.end(&outcome(false), begun + seconds(5));
    assert_eq!(tracker.due(), Some(begun + seconds(6)));
    // Also when the node slept for a day.
    tracker.begin();
    tracker.end(&outcome(false), begun + seconds(86_400));
    assert_eq!(tracker.due(), Some(begun + seconds(86_402)));
}

#[test]
fn reasons_say_what_was_seen_and_change_only_with_it() {
    let mut tracker = Tracker::new(&check(1, 0, 1, 2), 7);
    let reason = |tracker: &mut Tracker, said: &str| {
        tracker.begin();
        tracker.end(&Outcome::bad(said), tracker.due).reason
    };
    let starting = "no check has succeeded yet: refused";
    assert_eq!(reason(&mut tracker, "refused"), starting);
    // Less than an interval later, so that it does not count.
    assert_eq!(reason(&mut tracker, "refused"), starting);
    let unhealthy = "unhealthy: refused (2 failures in a row)";
    assert_eq!(reason(&mut tracker, "refused"), unhealthy);
    assert_eq!(reason(&mut tracker, "refused"), unhealthy);
    assert_eq!(
        reason(&mut tracker, "HTTP 500 from :80/"),
        "unhealthy: HTTP 500 from :80/ (4 failures in a row)"
    );
    assert_eq!(one(&mut tracker, true).1.reason, "");
}

#[test]
fn what_the_node_could_not_ask_says_nothing() {
    let mut tracker = Tracker::new(&check(1, 0, 1, 2), 7);
    assert_eq!(play(&mut tracker, &[true, false]), [Healthy; 2]);
    for _ in 0..5 {
        tracker.begin();
        let verdict = tracker.end(&Outcome::unasked("no memory"), tracker.due);
        assert_eq!((verdict.health, verdict.reason.as_str()), (Healthy, ""));
    }
    assert_eq!(play(&mut tracker, &[false]), [Unhealthy], "the row goes on");
    let mut tracker = Tracker::new(&check(1, 0, 1, 2), 7);
    tracker.begin();
    let verdict = tracker.end(&Outcome::unasked("no memory"), tracker.due);
    assert_eq!(
        (verdict.health, verdict.reason.as_str()),
        (Starting, "no check has succeeded yet: no memory")
    );
}

#[test]
fn an_adopted_process_stays_what_it_was_until_checks_say_otherwise() {
    let adopt = |health| Tracker::adopted(&check(10, 0, 1, 2), 7, seconds(1234), health);
    let due = adopt(Healthy).due().unwrap();
    assert!(due > seconds(1234) && due <= seconds(1244), "{due:?}");
    assert_eq!(play(&mut adopt(Healthy), &[false, false]), [Healthy, Unhealthy]);
    assert_eq!(play(&mut adopt(Unhealthy), &[false, true]), [Unhealthy, Healthy]);
    assert_eq!(adopt(Starting).health(), Starting);
    assert!(adopt(Starting).due().unwrap() <= seconds(1235));
    let just_started = Tracker::adopted(&check(10, 0, 1, 2), 7, Duration::from_millis(5), Health::None);
    assert_eq!(just_started, Tracker::new(&check(10, 0, 1, 2), 7));
}

#[test]
fn a_thousand_tasks_that_started_together_are_spread() {
    let mut per_second = [0; 30];
    for seed in 0..1000 {
        let mut tracker = Tracker::new(&check(30, 0, 1, 3), seed);
        play(&mut tracker, &[true, true]);
        per_second[usize::try_from(tracker.due().unwrap().as_secs() % 30).unwrap()] += 1;
    }
    let (least, most) = (per_second.iter().min(), per_second.iter().max());
    assert!(least >= Some(&25) && most <= Some(&42), "{per_second:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever a check answers and however long it takes, the next one comes after its end, and no later than an
    /// interval after that.
    #[test]
    fn the_next_check_is_always_ahead(
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
            Some(age) => Tracker::adopted(&check, seed, millis(age), Healthy),
            None => Tracker::new(&check, seed),
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
