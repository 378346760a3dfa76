//! Walks through a list that comes in pages.

use futures::stream::{Stream, TryStreamExt, try_unfold};

use crate::error::Error;

/// The pages that `fetch` answers: it gets a page token (empty for the first page) and gives the page with
/// the token of the next one, empty after the last.
pub(crate) fn pages<T, F, Fut>(fetch: F) -> impl Stream<Item = Result<Vec<T>, Error>>
where
    F: Fn(String) -> Fut,
    Fut: Future<Output = Result<(Vec<T>, String), Error>>,
{
    let start = Some((String::new(), fetch));
    try_unfold(start, |state| async move {
        let Some((token, fetch)) = state else { return Ok(None) };
        let (page, next) = fetch(token.clone()).await?;
        // A manager that answers the token it was asked with would keep us here for ever.
        let more = !next.is_empty() && next != token;
        Ok(Some((page, more.then_some((next, fetch)))))
    })
}

/// Everything in a list.
pub(crate) async fn all<T>(pages: impl Stream<Item = Result<Vec<T>, Error>>) -> Result<Vec<T>, Error> {
    Box::pin(pages).try_concat().await
}
