//! Waits for a condition, with a deadline and a description. The only place in all tests that sleeps: between
//! two checks, never instead of one.

use std::fmt::Debug;
use std::future::Future;
use std::panic::Location;
use std::time::{Duration, Instant};

/// The result of one check: `Ok` ends the wait, `Err` describes the observed state.
pub type WaitResult<T> = Result<T, String>;

/// The condition did not become true in time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("waited {deadline:?} for {what}; last seen: {last}")]
pub struct WaitTimeout {
    /// The condition.
    pub what: String,
    /// The deadline.
    pub deadline: Duration,
    /// The state observed by the last check.
    pub last: String,
}

const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Repeats `look` until it returns `Ok`, and returns its value. Panics at the caller's line with the
/// condition and the last observed state when `deadline` passes. Checks at least once.
#[track_caller]
pub fn eventually<T>(deadline: Duration, what: &str, look: impl FnMut() -> WaitResult<T>) -> T {
    match try_eventually(deadline, what, look) {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

/// Like [`eventually`], for callers that add context to the error.
pub fn try_eventually<T>(
    deadline: Duration,
    what: &str,
    mut look: impl FnMut() -> WaitResult<T>,
) -> Result<T, WaitTimeout> {
    let end = Instant::now() + deadline;
    let mut pause = FIRST_PAUSE;
    loop {
        let last = match look() {
            Ok(value) => return Ok(value),
            Err(last) => last,
        };
        let now = Instant::now();
        if now >= end {
            return Err(WaitTimeout { what: what.to_owned(), deadline, last });
        }
        std::thread::sleep(pause.min(end - now));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Like [`eventually`] for asynchronous checks. A check that hangs also ends at the deadline.
#[track_caller]
pub fn eventually_async<T, F>(
    deadline: Duration,
    what: &str,
    mut look: impl FnMut() -> F,
) -> impl Future<Output = T>
where
    F: Future<Output = WaitResult<T>>,
{
    let caller = Location::caller();
    async move {
        let end = tokio::time::Instant::now() + deadline;
        let mut pause = FIRST_PAUSE;
        let mut last = "nothing: the first look did not return".to_owned();
        loop {
            match tokio::time::timeout_at(end, look()).await {
                Ok(Ok(value)) => return value,
                Ok(Err(seen)) => last = seen,
                Err(_) => last = format!("{last} (and then a check that did not return)"),
            }
            if tokio::time::Instant::now() >= end {
                let error = WaitTimeout { what: what.to_owned(), deadline, last };
                panic!("{error} (at {caller})");
            }
            tokio::time::sleep_until(end.min(tokio::time::Instant::now() + pause)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// The opposite of [`eventually`]: `look` must return `Ok` every time during `span`, and the last value is
/// returned. Example: "the process keeps its id while the manager is stopped".
#[track_caller]
pub fn consistently<T: Debug>(span: Duration, what: &str, mut look: impl FnMut() -> WaitResult<T>) -> T {
    let begin = Instant::now();
    loop {
        match look() {
            Err(seen) => panic!("{what} should hold for {span:?}, but after {:?}: {seen}", begin.elapsed()),
            Ok(value) if begin.elapsed() >= span => return value,
            Ok(_) => std::thread::sleep(LONGEST_PAUSE.min(span / 4)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_ok_is_returned() {
        let mut looks = 0;
        let value = eventually(Duration::from_secs(60), "three looks", || {
            looks += 1;
            if looks == 3 { Ok(looks) } else { Err(format!("{looks} looks")) }
        });
        assert_eq!(value, 3);
    }

    #[test]
    fn timeout_names_condition_and_last_result() {
        let error =
            try_eventually(Duration::from_millis(20), "rain", || Err::<(), _>("sun".to_owned())).unwrap_err();
        assert_eq!(error.to_string(), "waited 20ms for rain; last seen: sun");
    }

    #[test]
    fn zero_deadline_polls_once() {
        assert_eq!(try_eventually(Duration::ZERO, "anything", || Ok::<_, String>(7)), Ok(7));
    }

    #[tokio::test]
    async fn async_condition_is_polled() {
        let mut looks = 0;
        let value = eventually_async(Duration::from_secs(60), "two looks", || {
            looks += 1;
            let seen = looks;
            async move { if seen == 2 { Ok(seen) } else { Err("one".to_owned()) } }
        })
        .await;
        assert_eq!(value, 2);
    }

    #[tokio::test]
    #[should_panic(expected = "did not return")]
    async fn hanging_async_condition_times_out() {
        eventually_async(Duration::from_millis(20), "an answer", std::future::pending::<WaitResult<()>>)
            .await;
    }

    #[test]
    #[should_panic(expected = "should hold for")]
    fn consistently_fails_at_the_first_failure() {
        let mut looks = 0;
        consistently(Duration::from_secs(60), "few looks", || {
            looks += 1;
            if looks < 3 { Ok(looks) } else { Err("too many".to_owned()) }
        });
    }
}
