//! When a call is tried again, and how long until then.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tonic::{Code, Status};
use warren_proto::Problem;
use warren_proto::status::{DISK_FULL, NO_LEADER, OTHER_LIFE, STOPPING};

/// Reason of a refusal for the number of writes that wait already.
const BUSY: &str = "BUSY";

/// Pauses between the attempts of one unary call: enough for a manager that restarts or hands over its
/// leadership, short enough that a person at a terminal does not wonder.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(50),
    Duration::from_millis(150),
    Duration::from_millis(300),
    Duration::from_millis(500),
    Duration::from_millis(1000),
];

/// Longest pause between two attempts to resume a stream.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Before the next of several managers is asked.
const NEXT: Duration = Duration::from_millis(20);

/// A stream that cannot be resumed for this long has ended.
const RESUME_WITHIN: Duration = Duration::from_secs(30);

/// For how long managers are asked again that say that they have no leader: several times what an election takes.
const LEADERLESS_FOR: Duration = Duration::from_secs(5);

/// Whoever asked is told what it waits for when that takes longer than an election does.
const LEADERLESS_UNTOLD: Duration = Duration::from_secs(1);

/// A call finds managers, which have no leader. Once one of them speaks of something else, they have found one.
#[derive(Debug)]
pub(crate) struct Leaderless {
    begun: Instant,
    since: Option<Instant>,
    told: bool,
}

impl Leaderless {
    /// Of a call that begins now.
    pub fn new() -> Self {
        Self { begun: Instant::now(), since: None, told: false }
    }

    /// An attempt ended with this. Whether whoever asked is to be told now what it waits for.
    pub fn hears(&mut self, status: &Status) -> bool {
        let now = Instant::now();
        if is_leaderless(status) || is_disk_full(status) {
            self.since.get_or_insert(now);
        } else if is_of_leader(status) {
            self.since = None;
        }
        let tells = is_leaderless(status)
            && self.since.is_some()
            && !self.told
            && now - self.begun >= LEADERLESS_UNTOLD;
        self.told |= tells;
        tells
    }

    /// It has been tried long enough.
    pub fn is_over(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= LEADERLESS_FOR)
    }
}

/// A manager answers, and with something that it would not say without a leader.
fn is_of_leader(status: &Status) -> bool {
    !["", NO_LEADER, OTHER_LIFE, STOPPING].contains(&Problem::from(status).reason.as_str())
}

/// A manager says that it has no room on its disk. Nothing was done, and another one may have room.
fn is_disk_full(status: &Status) -> bool {
    Problem::from(status).reason == DISK_FULL
}

/// A manager says that it knows of no leader.
pub(crate) fn is_leaderless(status: &Status) -> bool {
    status.code() == Code::Unavailable && Problem::from(status).reason == NO_LEADER
}

/// The pause before attempt `failed + 1`, after `failed` of them; `None` when there have been enough, or
/// another would end in the same way. Of several `managers` each is asked before there is a pause, and that goes on
/// until the caller's deadline: it may take them a while to find a leader.
pub(crate) fn pause(failed: usize, status: &Status, managers: usize) -> Option<Duration> {
    if !may_heal(status) {
        return None;
    }
    match managers {
        // It does not get room by being asked again.
        0 | 1 if is_disk_full(status) => None,
        // A manager that starts or stops does so within all of them; what a leader takes, `Leaderless` says.
        0 | 1 if is_leaderless(status) => Some(PAUSES.get(failed - 1).or(PAUSES.last()).copied()?),
        0 | 1 => PAUSES.get(failed.checked_sub(1)?).copied(),
        _ if failed.is_multiple_of(managers) => {
            Some(PAUSES.get(failed / managers - 1).or(PAUSES.last()).copied().unwrap_or(LONGEST_PAUSE))
        }
        _ => Some(NEXT),
    }
}

/// What a manager says on purpose stays true; that it is unavailable, or what a broken connection says, does
/// not.
pub(crate) fn may_heal(status: &Status) -> bool {
    let broken = || std::error::Error::source(status).is_some() && Problem::from(status).reason.is_empty();
    match status.code() {
        Code::Unavailable => true,
        Code::ResourceExhausted if is_disk_full(status) => true,
        // It certainly did nothing, and another one may have less to do.
        Code::ResourceExhausted if Problem::from(status).reason == BUSY => true,
        // Somebody's deadline, or a bug of ours.
        Code::DeadlineExceeded | Code::OutOfRange => false,
        _ => broken(),
    }
}

/// The pause before a stream that broke is resumed for the `broken`th time in a row, at one of `managers`.
fn resume_pause(broken: usize, managers: usize) -> Duration {
    match managers {
        0 | 1 => PAUSES.get(broken.saturating_sub(1)).copied().unwrap_or(LONGEST_PAUSE),
        _ if broken < managers => NEXT,
        _ => PAUSES.get(broken / managers - 1).copied().unwrap_or(LONGEST_PAUSE),
    }
}

/// A stream is broken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trouble {
    since: Instant,
    times: usize,
    again_at: Instant,
}

impl Trouble {
    /// A stream broke with `status`, after `earlier` trouble that it has not got over. `None`: it cannot be resumed.
    pub fn after(earlier: Option<Self>, status: &Status, managers: usize) -> Option<Self> {
        let now = Instant::now();
        let since = earlier.map_or(now, |trouble| trouble.since);
        let times = earlier.map_or(1, |trouble| trouble.times + 1);
        if !may_heal(status) || now.duration_since(since) > RESUME_WITHIN {
            return None;
        }
        Some(Self { since, times, again_at: now + resume_pause(times, managers) })
    }

    /// Waits until it is time to resume it.
    pub async fn wait(self) {
        sleep_until(self.again_at).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_unavailable_is_tried_again_and_not_for_ever() {
        let gone = Status::unavailable("no leader");
        let pauses: Vec<Duration> = (1..).map_while(|failed| pause(failed, &gone, 1)).collect();
        assert_eq!(pauses, PAUSES);
        for status in [Status::not_found(""), Status::internal(""), Status::deadline_exceeded("")] {
            assert_eq!((pause(1, &status, 1), pause(1, &status, 3)), (None, None));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_no_leader_is_asked_again_for_a_while_and_whoever_waits_is_told_once() {
        let leaderless: Status = Problem::new(Code::Unavailable, NO_LEADER, "none").into();
        assert_eq!(pause(1000, &leaderless, 1), PAUSES.last().copied());
        let (mut call, mut told) = (Leaderless::new(), Vec::new());
        for tenth in 0..=70 {
            // Before the first word on it, all else is as it is without.
            let status = if tenth < 20 { Status::unavailable("gone") } else { leaderless.clone() };
            if call.hears(&status) {
                told.push(tenth);
            }
            assert_eq!(call.is_over(), tenth == 70, "{tenth}");
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        assert_eq!(told, [20]);
        // An election is over before anybody is told.
        let mut call = Leaderless::new();
        assert!(!call.hears(&leaderless));
        tokio::time::advance(LEADERLESS_UNTOLD).await;
        assert!(call.hears(&leaderless) && !call.hears(&leaderless));
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_was_found_again_is_no_reason_to_give_up() {
        let saying = |reason: &str| Status::from(Problem::new(Code::Unavailable, reason, "not now"));
        for (reason, is_over) in [
            ("UNCONFIRMED", false),
            ("NOT_LEADER", false),
            ("DISK_FAILS", false),
            // Says nothing of a leader.
            (STOPPING, true),
            (OTHER_LIFE, true),
            ("", true),
        ] {
            let mut call = Leaderless::new();
            call.hears(&saying(NO_LEADER));
            tokio::time::advance(LEADERLESS_FOR - Duration::from_millis(1)).await;
            call.hears(&saying(reason));
            tokio::time::advance(Duration::from_millis(1)).await;
            call.hears(&saying(reason));
            assert_eq!(call.is_over(), is_over, "{reason}");
            // It is gone once more, and for as long again.
            call.hears(&saying(NO_LEADER));
            assert_eq!(call.is_over(), is_over, "{reason}");
            tokio::time::advance(LEADERLESS_FOR).await;
            assert!(call.is_over(), "{reason}");
        }
    }

    #[test]
    fn busy_manager_is_asked_again_and_an_exhausted_bound_is_not() {
        let refused = |reason| Status::from(Problem::new(Code::ResourceExhausted, reason, "no"));
        assert!(may_heal(&refused("BUSY")) && !may_heal(&refused("TOO_MANY_TOKENS")));
    }

    #[test]
    fn of_several_managers_each_is_asked_before_there_is_a_pause() {
        let gone = Status::unavailable("no leader");
        let pauses: Vec<Duration> = (1..=9).map(|failed| pause(failed, &gone, 3).unwrap()).collect();
        assert_eq!(pauses, [NEXT, NEXT, PAUSES[0], NEXT, NEXT, PAUSES[1], NEXT, NEXT, PAUSES[2]]);
        assert_eq!(pause(3000, &gone, 3), Some(PAUSES[4]), "until the deadline");
    }

    #[test]
    fn resuming_slows_down_to_a_bound() {
        assert_eq!(resume_pause(1, 1), PAUSES[0]);
        assert_eq!(resume_pause(1000, 1), LONGEST_PAUSE);
        assert_eq!((resume_pause(1, 3), resume_pause(2, 3), resume_pause(3, 3)), (NEXT, NEXT, PAUSES[0]));
        assert_eq!(resume_pause(1000, 3), LONGEST_PAUSE);
    }
}
