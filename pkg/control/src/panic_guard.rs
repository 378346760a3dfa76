//! Runs code so that a panic becomes an error of that run only.

use std::any::Any;
use std::error::Error;
use std::panic::AssertUnwindSafe;

use futures::FutureExt;

/// Any error of a run; displayed with all sources.
pub type BoxError = Box<dyn Error + Send + Sync + 'static>;

/// Runs `make()` to its end; a panic of the call or its future becomes an error with the panic message.
///
/// Asserting unwind safety is sound here as in `tokio::spawn`: the future is dropped after a panic and never polled
/// again, and shared data is behind poisoning locks.
pub(crate) async fn catch_panic<F, Fut>(make: F) -> Result<Fut::Output, String>
where
    F: FnOnce() -> Fut,
    Fut: Future,
{
    AssertUnwindSafe(async { make().await })
        .catch_unwind()
        .await
        .map_err(|panic| panic_message(panic.as_ref()))
}

/// The message of a panic: `panic!` carries `&str` or `String`; other payloads have none.
fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    format!("panicked: {text}")
}

/// An error with all its sources on one line, outermost first.
pub(crate) fn error_chain(error: &(dyn Error + 'static)) -> String {
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
        let line = error_chain(&Outer(std::fmt::Error));
        assert_eq!(line, format!("store is away: {}", std::fmt::Error));
    }

    #[tokio::test]
    async fn panics_of_the_call_and_of_the_future_are_both_contained() {
        let in_call = catch_panic(|| -> std::future::Ready<()> { panic!("no {}", "socket") }).await;
        assert_eq!(in_call, Err("panicked: no socket".to_owned()));
        let in_future = catch_panic(|| async { panic!("plain") }).await;
        assert_eq!(in_future, Err::<(), _>("panicked: plain".to_owned()));
        assert_eq!(catch_panic(|| async { 7 }).await, Ok(7));
    }
}
