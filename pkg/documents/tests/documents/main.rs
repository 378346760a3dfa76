//! Documents: what they mean, what is refused and where, and that every spec is one.

#![allow(clippy::unwrap_used)]

mod limits;
mod problems;
mod round_trip;

use warren_documents::{Documents, SourceText};

/// The documents of one file, `a.yaml`.
fn read(text: &str) -> Result<Documents, Vec<String>> {
    let documents = Documents::read(&[SourceText { name: "a.yaml", text }]);
    documents.map_err(|problems| problems.iter().map(ToString::to_string).collect())
}
