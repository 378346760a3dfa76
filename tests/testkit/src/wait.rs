//! Waiting for a condition, with a deadline and with words. The only place in all tests that sleeps: it does
//! so between two looks at the world, never instead of one.

use std::fmt::Debug;
use std::future::Future;
use std::panic::Location;
use std::time::{Duration, Instant};

/// One look at the world: `Ok` ends the waiting, `Err` says what was found instead.
pub type Look<T> = Result<T, String>;

/// The condition did not come true in time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("waited {deadline:?} for {what}; last seen: {last}")]
pub struct NotReached {
    /// What was waited for.
    pub what: String,
    /// How long.
    pub deadline: Duration,
    /// What the last look found.
    pub last: String,
}

const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Looks again and again until `look` answers `Ok`, and returns its value; panics at the caller's line with
/// what was waited for and what was last seen when `deadline` passes. Looks at least once.
#[track_caller]
pub fn eventually<T>(deadline: Duration, what: &str, look: impl FnMut() -> Look<T>) -> T {
    match reached(deadline, what, look) {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

/// Like [`eventually`], for callers that have something to add to the error.
pub fn reached<T>(
    deadline: Duration,
    what: &str,
    mut look: impl FnMut() -> Look<T>,
) -> Result<T, NotReached> {
    let end = Instant::now() + deadline;
    let mut pause = FIRST_PAUSE;
    loop {
        let last = match look() {
            Ok(value) => return Ok(value),
            Err(last) => last,
        };
        let now = Instant::now();
        if now >= end {
            return Err(NotReached { what: what.to_owned(), deadline, last });
        }
        std::thread::sleep(pause.min(end - now));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Like [`eventually`] for looks that are asynchronous. A look that hangs is given up at the deadline too.
#[track_caller]
pub fn eventually_async<T, F>(
    deadline: Duration,
    what: &str,
    mut look: impl FnMut() -> F,
) -> impl Future<Output = T>
where
    F: Future<Output = Look<T>>,
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
                Err(_) => last = format!("{last} (and then a look that did not return)"),
            }
            if tokio::time::Instant::now() >= end {
                let error = NotReached { what: what.to_owned(), deadline, last };
                panic!("{error} (at {caller})");
            }
            tokio::time::sleep_until(end.min(tokio::time::Instant::now() + pause)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// The opposite of [`eventually`]: `look` has to answer `Ok` every time during `span`, and the last value is
/// returned. For "the process keeps its id while the manager is away".
#[track_caller]
pub fn throughout<T: Debug>(span: Duration, what: &str, mut look: impl FnMut() -> Look<T>) -> T {
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
    fn returns_the_first_good_look() {
        let mut looks = 0;
        let value = eventually(Duration::from_secs(5), "three looks", || {
            looks += 1;
            if looks == 3 { Ok(looks) } else { Err(format!("{looks} looks")) }
        });
        assert_eq!(value, 3);
    }

    #[test]
    fn says_what_was_waited_for_and_what_was_seen() {
        let error =
            reached(Duration::from_millis(20), "rain", || Err::<(), _>("sun".to_owned())).unwrap_err();
        assert_eq!(error.to_string(), "waited 20ms for rain; last seen: sun");
    }

    #[test]
    fn looks_once_even_without_time() {
        assert_eq!(reached(Duration::ZERO, "anything", || Ok::<_, String>(7)), Ok(7));
    }

    #[tokio::test]
    async fn async_looks_wait_too() {
        let mut looks = 0;
        let value = eventually_async(Duration::from_secs(5), "two looks", || {
            looks += 1;
            let seen = looks;
            async move { if seen == 2 { Ok(seen) } else { Err("one".to_owned()) } }
        })
        .await;
        assert_eq!(value, 2);
    }

    #[tokio::test]
    #[should_panic(expected = "did not return")]
    async fn an_async_look_that_hangs_is_given_up() {
        eventually_async(Duration::from_millis(20), "an answer", std::future::pending::<Look<()>>).await;
    }

    #[test]
    #[should_panic(expected = "should hold for")]
    fn throughout_notices_the_first_bad_look() {
        let mut looks = 0;
        throughout(Duration::from_secs(5), "few looks", || {
            looks += 1;
            if looks < 3 { Ok(looks) } else { Err("too many".to_owned()) }
        });
    }
}
