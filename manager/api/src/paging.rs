//! Pagination: bounded responses with a token for the next page.

use tonic::Status;
use warren_store::problem::status_of;
use warren_types::Violation;

const DEFAULT_PAGE: usize = 100;
/// Maximum number of items in one response.
pub const MAX_PAGE: usize = 1000;

/// The start and size of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<K> {
    /// Last key of the previous page.
    pub after: Option<K>,
    /// Maximum number of items.
    pub size: usize,
}

impl<K: std::str::FromStr + ToString> Page<K> {
    /// Parses the paging fields of a request. A token is the last key of the previous page.
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid token.
    pub fn parse(size: u32, token: &str) -> Result<Self, Status> {
        let size = if size == 0 { DEFAULT_PAGE } else { (size as usize).min(MAX_PAGE) };
        let wrong = |_| {
            status_of(Violation::new(
                "pageToken",
                format!("{token:?} is not a page token of an earlier response"),
            ))
        };
        let after = (!token.is_empty()).then(|| token.parse().map_err(wrong)).transpose()?;
        Ok(Self { after, size })
    }

    /// Takes one page of `items`, which start after `self.after`, and returns it with the token of the next
    /// page.
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
    fn pages_have_no_gap_or_overlap() {
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
