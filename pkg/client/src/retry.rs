//! When a call is tried again, and how long until then.

use std::time::Duration;

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

/// The pause before attempt `failed + 1`, after `failed` of them; `None` when there have been enough, or
/// another would end in the same way.
pub(crate) fn pause(failed: usize, status: &Status) -> Option<Duration> {
    PAUSES.get(failed.checked_sub(1)?).copied().filter(|_| may_heal(status))
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

/// The pause before a stream that broke is resumed for the `broken`th time in a row.
pub(crate) fn resume_pause(broken: usize) -> Duration {
    PAUSES.get(broken.saturating_sub(1)).copied().unwrap_or(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_unavailable_is_tried_again_and_not_for_ever() {
        let gone = Status::unavailable("no leader");
        let pauses: Vec<Duration> = (1..).map_while(|failed| pause(failed, &gone)).collect();
        assert_eq!(pauses, PAUSES);
        for status in [Status::not_found(""), Status::internal(""), Status::deadline_exceeded("")] {
            assert_eq!(pause(1, &status), None);
        }
    }

    #[test]
    fn resuming_slows_down_to_a_bound() {
        assert_eq!(resume_pause(1), PAUSES[0]);
        assert_eq!(resume_pause(1000), LONGEST_PAUSE);
    }
}
