//! When a call is tried again, and how long until then.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tonic::{Code, Status};
use warren_proto::Problem;

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

/// The pause before attempt `failed + 1`, after `failed` of them; `None` when there have been enough, or
/// another would end in the same way. Of several `managers` each is asked before there is a pause, and that goes on
/// until the caller's deadline: it may take them a while to find a leader.
pub(crate) fn pause(failed: usize, status: &Status, managers: usize) -> Option<Duration> {
    if !may_heal(status) {
        return None;
    }
    match managers {
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
