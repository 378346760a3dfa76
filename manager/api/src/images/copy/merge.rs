//! In which order blobs are sent to several targets.

use std::collections::BTreeSet;

/// A blob, and the positions of the targets that requested it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobTransfer {
    /// Its digest.
    pub digest: String,
    /// Positions in the list of requests.
    pub to: Vec<usize>,
}

/// Each requested blob once, so that every target receives its blobs in the order of its request. The lists are
/// parts of one list, the layers of an image; a target whose list is of another order receives its first blobs
/// only, and fails by itself.
pub fn merge_requests(lists: Vec<Vec<String>>) -> Vec<BlobTransfer> {
    let mut waiting: Vec<std::collections::VecDeque<String>> = lists.into_iter().map(Into::into).collect();
    let mut transfers = Vec::new();
    let mut sent = BTreeSet::new();
    loop {
        let heads = waiting.iter().filter_map(|list| list.front());
        // A blob that another target receives after another one has to wait for that.
        let is_next =
            |head: &&String| waiting.iter().all(|list| !list.iter().skip(1).any(|later| later == *head));
        let Some(digest) = heads.clone().find(is_next).or_else(|| heads.clone().next()).cloned() else {
            return transfers;
        };
        let mut to = Vec::new();
        for (position, list) in waiting.iter_mut().enumerate() {
            if list.front() == Some(&digest) {
                list.pop_front();
                to.push(position);
            }
        }
        if sent.insert(digest.clone()) {
            transfers.push(BlobTransfer { digest, to });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lists: &[&[&str]], expected: &[(&str, &[usize])]) {
        let lists =
            lists.iter().map(|list| list.iter().map(|digest| (*digest).to_owned()).collect()).collect();
        let expected: Vec<_> = expected
            .iter()
            .map(|(digest, to)| BlobTransfer { digest: (*digest).to_owned(), to: to.to_vec() })
            .collect();
        assert_eq!(merge_requests(lists), expected);
    }

    #[test]
    fn each_blob_is_sent_once_in_the_order_of_every_request() {
        check(&[], &[]);
        check(&[&[], &[]], &[]);
        check(&[&["a"], &["a"]], &[("a", &[0, 1])]);
        check(&[&["c"], &["a", "b", "c"]], &[("a", &[1]), ("b", &[1]), ("c", &[0, 1])]);
        check(&[&["a", "c"], &["b", "c"]], &[("a", &[0]), ("b", &[1]), ("c", &[0, 1])]);
    }

    #[test]
    fn request_in_another_order_ends() {
        check(&[&["a", "b"], &["b", "a"]], &[("a", &[0]), ("b", &[0, 1])]);
        check(&[&["a", "a"]], &[("a", &[0])]);
    }
}
