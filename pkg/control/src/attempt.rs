//! One run of someone's code, contained: a panic becomes an error of that run and ends nothing else.

use std::any::Any;
use std::error::Error;
use std::panic::AssertUnwindSafe;

use futures::FutureExt;

/// Any error a run can end with; its whole chain of sources is shown.
pub type BoxError = Box<dyn Error + Send + Sync + 'static>;

/// Runs `make()` to its end, turning a panic of either the call or its future into the panic's message.
///
/// Asserting unwind safety is sound for the callers here for the reason it is in `tokio::spawn`: the future
/// is dropped after a panic and never polled again, and what it shares sits behind locks that poison.
pub(crate) async fn contained<F, Fut>(make: F) -> Result<Fut::Output, String>
where
    F: FnOnce() -> Fut,
    Fut: Future,
{
    AssertUnwindSafe(async { make().await }).catch_unwind().await.map_err(|panic| message_of(panic.as_ref()))
}

/// The text of a panic: `panic!` carries `&str` or `String`, anything else has no text to show.
fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    format!("panicked: {text}")
}

/// An error with all its sources in one line, outermost first.
pub(crate) fn chain_of(error: &(dyn Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        line.push_str(": ");
        line.push_str(&cause.to_string());
        source = cause.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("store is away")]
    struct Outer(#[source] std::fmt::Error);

    #[test]
    fn a_chain_names_every_cause() {
        let line = chain_of(&Outer(std::fmt::Error));
        assert_eq!(line, format!("store is away: {}", std::fmt::Error));
    }

    #[tokio::test]
    async fn panics_of_the_call_and_of_the_future_are_both_contained() {
        let in_call = contained(|| -> std::future::Ready<()> { panic!("no {}", "socket") }).await;
        assert_eq!(in_call, Err("panicked: no socket".to_owned()));
        let in_future = contained(|| async { panic!("plain") }).await;
        assert_eq!(in_future, Err::<(), _>("panicked: plain".to_owned()));
        assert_eq!(contained(|| async { 7 }).await, Ok(7));
    }
}
