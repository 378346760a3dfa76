//! Which calls are repeated, and after which delay.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tonic::{Code, Status};
use warren_proto::Problem;
use warren_proto::status::{DISK_FULL, MANAGER_STOPPING, NO_LEADER, OTHER_INCARNATION};

/// Reason code of a manager with too many queued writes.
const BUSY: &str = "BUSY";

/// Delays between the attempts of a unary call: long enough for a restart or a leadership transfer, short enough for
/// interactive use.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(50),
    Duration::from_millis(150),
    Duration::from_millis(300),
    Duration::from_millis(500),
    Duration::from_millis(1000),
];

/// Longest delay between two attempts to resume a stream.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Delay before the next manager is tried.
const NEXT_MANAGER_PAUSE: Duration = Duration::from_millis(20);

/// Time after which a stream that cannot be resumed fails.
const RESUME_DEADLINE: Duration = Duration::from_secs(30);

/// Time for which calls are repeated without a leader: several times the length of an election.
const LEADERLESS_TIMEOUT: Duration = Duration::from_secs(5);

/// Delay before the caller is notified of the wait: longer than an election.
const LEADERLESS_NOTICE_AFTER: Duration = Duration::from_secs(1);

/// Tracks a wait for a leader. Another reason code means that there is one.
#[derive(Debug)]
pub(crate) struct LeaderlessWait {
    started: Instant,
    since: Option<Instant>,
    is_notified: bool,
}

impl LeaderlessWait {
    /// State of a new call.
    pub fn new() -> Self {
        Self { started: Instant::now(), since: None, is_notified: false }
    }

    /// Records the end of an attempt. Returns whether to notify the caller now.
    pub fn note_failure(&mut self, status: &Status) -> bool {
        let now = Instant::now();
        if is_leaderless(status) || is_disk_full(status) {
            self.since.get_or_insert(now);
        } else if implies_leader(status) {
            self.since = None;
        }
        let tells = is_leaderless(status)
            && self.since.is_some()
            && !self.is_notified
            && now - self.started >= LEADERLESS_NOTICE_AFTER;
        self.is_notified |= tells;
        tells
    }

    /// Whether the time limit is reached.
    pub fn has_timed_out(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= LEADERLESS_TIMEOUT)
    }
}

/// Whether the status is a response that needs a leader.
fn implies_leader(status: &Status) -> bool {
    !["", NO_LEADER, OTHER_INCARNATION, MANAGER_STOPPING].contains(&Problem::from(status).reason.as_str())
}

/// The disk of the manager is full. Nothing was written, and another manager may have space.
fn is_disk_full(status: &Status) -> bool {
    Problem::from(status).reason == DISK_FULL
}

/// The manager has no leader.
pub(crate) fn is_leaderless(status: &Status) -> bool {
    status.code() == Code::Unavailable && Problem::from(status).reason == NO_LEADER
}

/// The delay before the next attempt, after `failed` ones; `None` if there were enough, or the error is permanent. With
/// several `managers` each is tried before a delay, until the deadline of the caller, since an election takes time.
pub(crate) fn retry_pause(failed: usize, status: &Status, managers: usize) -> Option<Duration> {
    if !is_retryable(status) {
        return None;
    }
    match managers {
        // Repeating does not free space.
        0 | 1 if is_disk_full(status) => None,
        // These cover the start or stop of a manager; `LeaderlessWait` bounds the wait for a leader.
        0 | 1 if is_leaderless(status) => Some(PAUSES.get(failed - 1).or(PAUSES.last()).copied()?),
        0 | 1 => PAUSES.get(failed.checked_sub(1)?).copied(),
        _ if failed.is_multiple_of(managers) => {
            Some(PAUSES.get(failed / managers - 1).or(PAUSES.last()).copied().unwrap_or(LONGEST_PAUSE))
        }
        _ => Some(NEXT_MANAGER_PAUSE),
    }
}

/// Whether an attempt may succeed later: unavailability and broken connections are transient, other refusals are not.
pub(crate) fn is_retryable(status: &Status) -> bool {
    let broken = || std::error::Error::source(status).is_some() && Problem::from(status).reason.is_empty();
    match status.code() {
        Code::Unavailable => true,
        Code::ResourceExhausted if is_disk_full(status) => true,
        // Nothing was written, and another manager may be less loaded.
        Code::ResourceExhausted if Problem::from(status).reason == BUSY => true,
        // A deadline, or a bug.
        Code::DeadlineExceeded | Code::OutOfRange => false,
        _ => broken(),
    }
}

/// The delay before the `broken`th consecutive attempt to resume a stream, at one of `managers`.
fn resume_pause(broken: usize, managers: usize) -> Duration {
    match managers {
        0 | 1 => PAUSES.get(broken.saturating_sub(1)).copied().unwrap_or(LONGEST_PAUSE),
        _ if broken < managers => NEXT_MANAGER_PAUSE,
        _ => PAUSES.get(broken / managers - 1).copied().unwrap_or(LONGEST_PAUSE),
    }
}

/// A stream is broken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamFailure {
    since: Instant,
    count: usize,
    retry_at: Instant,
}

impl StreamFailure {
    /// A stream broke with `status`, after the unresolved failure `earlier`. `None` if it cannot be resumed.
    pub fn following(earlier: Option<Self>, status: &Status, managers: usize) -> Option<Self> {
        let now = Instant::now();
        let since = earlier.map_or(now, |earlier| earlier.since);
        let times = earlier.map_or(1, |earlier| earlier.count + 1);
        if !is_retryable(status) || now.duration_since(since) > RESUME_DEADLINE {
            return None;
        }
        Some(Self { since, count: times, retry_at: now + resume_pause(times, managers) })
    }

    /// Waits for the delay.
    pub async fn wait(self) {
        sleep_until(self.retry_at).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unavailable_is_retried_and_bounded() {
        let gone = Status::unavailable("no leader");
        let pauses: Vec<Duration> = (1..).map_while(|failed| retry_pause(failed, &gone, 1)).collect();
        assert_eq!(pauses, PAUSES);
        for status in [Status::not_found(""), Status::internal(""), Status::deadline_exceeded("")] {
            assert_eq!((retry_pause(1, &status, 1), retry_pause(1, &status, 3)), (None, None));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn leaderless_manager_is_retried_with_one_notice() {
        let leaderless: Status = Problem::new(Code::Unavailable, NO_LEADER, "none").into();
        assert_eq!(retry_pause(1000, &leaderless, 1), PAUSES.last().copied());
        let (mut call, mut reported) = (LeaderlessWait::new(), Vec::new());
        for tenth in 0..=70 {
            // Before the first word on it, all else is as it is without.
            let status = if tenth < 20 { Status::unavailable("gone") } else { leaderless.clone() };
            if call.note_failure(&status) {
                reported.push(tenth);
            }
            assert_eq!(call.has_timed_out(), tenth == 70, "{tenth}");
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        assert_eq!(reported, [20]);
        // An election is over before a caller gets a notice.
        let mut call = LeaderlessWait::new();
        assert!(!call.note_failure(&leaderless));
        tokio::time::advance(LEADERLESS_NOTICE_AFTER).await;
        assert!(call.note_failure(&leaderless) && !call.note_failure(&leaderless));
    }

    #[tokio::test(start_paused = true)]
    async fn new_leader_resets_the_leaderless_timeout() {
        let saying = |reason: &str| Status::from(Problem::new(Code::Unavailable, reason, "not now"));
        for (reason, is_over) in [
            ("UNCONFIRMED", false),
            ("NOT_LEADER", false),
            ("DISK_FAILED", false),
            // Says nothing of a leader.
            (MANAGER_STOPPING, true),
            (OTHER_INCARNATION, true),
            ("", true),
        ] {
            let mut call = LeaderlessWait::new();
            call.note_failure(&saying(NO_LEADER));
            tokio::time::advance(LEADERLESS_TIMEOUT - Duration::from_millis(1)).await;
            call.note_failure(&saying(reason));
            tokio::time::advance(Duration::from_millis(1)).await;
            call.note_failure(&saying(reason));
            assert_eq!(call.has_timed_out(), is_over, "{reason}");
            // It is gone once more, and for as long again.
            call.note_failure(&saying(NO_LEADER));
            assert_eq!(call.has_timed_out(), is_over, "{reason}");
            tokio::time::advance(LEADERLESS_TIMEOUT).await;
            assert!(call.has_timed_out(), "{reason}");
        }
    }

    #[test]
    fn busy_is_retried_and_exhausted_limit_is_not() {
        let refused = |reason| Status::from(Problem::new(Code::ResourceExhausted, reason, "no"));
        assert!(is_retryable(&refused("BUSY")) && !is_retryable(&refused("TOO_MANY_TOKENS")));
    }

    #[test]
    fn every_manager_is_tried_before_a_pause() {
        let gone = Status::unavailable("no leader");
        let pauses: Vec<Duration> = (1..=9).map(|failed| retry_pause(failed, &gone, 3).unwrap()).collect();
        assert_eq!(
            pauses,
            [
                NEXT_MANAGER_PAUSE,
                NEXT_MANAGER_PAUSE,
                PAUSES[0],
                NEXT_MANAGER_PAUSE,
                NEXT_MANAGER_PAUSE,
                PAUSES[1],
                NEXT_MANAGER_PAUSE,
                NEXT_MANAGER_PAUSE,
                PAUSES[2]
            ]
        );
        assert_eq!(retry_pause(3000, &gone, 3), Some(PAUSES[4]), "until the deadline");
    }

    #[test]
    fn resuming_slows_down_to_a_bound() {
        assert_eq!(resume_pause(1, 1), PAUSES[0]);
        assert_eq!(resume_pause(1000, 1), LONGEST_PAUSE);
        assert_eq!(
            (resume_pause(1, 3), resume_pause(2, 3), resume_pause(3, 3)),
            (NEXT_MANAGER_PAUSE, NEXT_MANAGER_PAUSE, PAUSES[0])
        );
        assert_eq!(resume_pause(1000, 3), LONGEST_PAUSE);
    }
}
