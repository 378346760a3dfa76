//! Checks that several parts of a spec share.

use crate::Violations;

/// A field added by a later version is skipped while it has its default, so that digests stay equal.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Checks the number of items of a list.
pub(crate) fn check_count(path: &str, count: usize, most: usize, wrong: &mut Violations) {
    if count > most {
        wrong.add(path, format!("{count} are more than {most}"));
    }
}

/// A host name of at most `most` characters.
pub fn is_host_name(text: &str, most: usize) -> bool {
    let label = |label: &str| {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(plain) && !label.starts_with('-')
    };
    text.len() <= most && text.split('.').all(label)
}
