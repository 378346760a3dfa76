//! Iterates over paginated lists.

use futures::stream::{Stream, TryStreamExt, try_unfold};

use crate::error::Error;

/// The pages of `fetch`, which maps a page token (empty for the first page) to the page and the next token (empty
/// after the last page).
pub(crate) fn pages<T, F, Fut>(fetch: F) -> impl Stream<Item = Result<Vec<T>, Error>>
where
    F: Fn(String) -> Fut,
    Fut: Future<Output = Result<(Vec<T>, String), Error>>,
{
    let start = Some((String::new(), fetch));
    try_unfold(start, |state| async move {
        let Some((token, fetch)) = state else { return Ok(None) };
        let (page, next) = fetch(token.clone()).await?;
        // A repeated token would loop forever.
        let more = !next.is_empty() && next != token;
        Ok(Some((page, more.then_some((next, fetch)))))
    })
}

/// All items of a list.
pub(crate) async fn collect_all<T>(
    pages: impl Stream<Item = Result<Vec<T>, Error>>,
) -> Result<Vec<T>, Error> {
    Box::pin(pages).try_concat().await
}

/// All items of a list, as `convert` makes them, a page at a time.
pub(crate) async fn collect_all_as<W, T>(
    pages: impl Stream<Item = Result<Vec<W>, Error>>,
    convert: impl Fn(W) -> T,
) -> Result<Vec<T>, Error> {
    let convert_page = |page: Vec<W>| page.into_iter().map(&convert).collect::<Vec<T>>();
    collect_all(pages.map_ok(convert_page)).await
}
