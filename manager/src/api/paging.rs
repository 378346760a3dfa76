//! Bounded answers: a page and a token to go on from.

use tonic::Status;
use warren_types::Violation;

use super::problem::status_of;

const DEFAULT_PAGE: usize = 100;
/// Most items in one answer.
pub const MAX_PAGE: usize = 1000;

/// Where a page starts and how long it may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<K> {
    /// Last key of the page before.
    pub after: Option<K>,
    /// Most items.
    pub size: usize,
}

impl<K: std::str::FromStr + ToString> Page<K> {
    /// Reads a request's paging fields. A token is the last key of the page before.
    ///
    /// # Errors
    /// `InvalidArgument` for a token that is none.
    pub fn parse(size: u32, token: &str) -> Result<Self, Status> {
        let size = if size == 0 { DEFAULT_PAGE } else { (size as usize).min(MAX_PAGE) };
        let wrong =
            |_| status_of(Violation::new("pageToken", format!("{token:?} is not from an earlier answer")));
        let after = (!token.is_empty()).then(|| token.parse().map_err(wrong)).transpose()?;
        Ok(Self { after, size })
    }

    /// Cuts one page of `items`, which start after `self.after`, and answers the token to go on with.
    pub fn cut<T>(&self, items: impl Iterator<Item = T>, key: impl Fn(&T) -> K) -> (Vec<T>, String) {
        let mut page: Vec<T> = items.take(self.size + 1).collect();
        let more = page.len() > self.size;
        page.truncate(self.size);
        let token = page.last().filter(|_| more).map(|last| key(last).to_string()).unwrap_or_default();
        (page, token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_join_without_gap_or_repeat() {
        let all: Vec<u32> = (1..=10).collect();
        let (mut token, mut seen) = (String::new(), Vec::new());
        loop {
            let page = Page::<u32>::parse(3, &token).unwrap();
            let rest = all.iter().copied().filter(|item| page.after.is_none_or(|after| *item > after));
            let (items, next) = page.cut(rest, |item| *item);
            seen.extend(items);
            if next.is_empty() {
                break;
            }
            token = next;
        }
        assert_eq!(seen, all);
        assert!(Page::<u32>::parse(3, "x").is_err());
    }
}
