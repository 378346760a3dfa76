//! What nodes said in the end of an image that was brought to them.

use std::collections::BTreeMap;

use serde::Serialize;
use warren_proto::v1;
use warren_types::{Bytes, Timestamp};

use crate::failure::{Exit, Failure};
use crate::output::{Column, Row, column};
use crate::view::about;

/// An image that a node has now.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BroughtView {
    image: String,
    node: String,
    size: String,
    #[serde(skip)]
    about: String,
    digest: String,
}

impl Row for BroughtView {
    const COLUMNS: &'static [Column] = &[column("IMAGE"), column("NODE"), column("SIZE"), column("DIGEST")];

    fn cells(&self, _: bool, _: Timestamp) -> Vec<String> {
        vec![self.image.clone(), self.node.clone(), self.about.clone(), self.digest.clone()]
    }
}

/// What was heard of each node.
#[derive(Debug, Default)]
pub struct Outcome {
    brought: Vec<BroughtView>,
    failed: Vec<String>,
    /// Nodes that have begun and not ended, with what was last heard of them.
    open: BTreeMap<String, String>,
}

impl Outcome {
    /// A node gets on.
    pub fn progress(&mut self, node: String, line: String) {
        self.open.insert(node, line);
    }

    /// A node has an image now; there may be more to come.
    pub fn brought(&mut self, node: String, image: v1::ImportedImage) {
        let v1::ImportedImage { reference, digest, size_bytes } = image;
        self.open.insert(node.clone(), format!("has {reference}"));
        let (size, about) = (Bytes(size_bytes).to_string(), about(size_bytes));
        self.brought.push(BroughtView { image: reference, node, size, about, digest });
    }

    /// A node could not.
    pub fn failed(&mut self, node: String, why: &str) {
        self.failed.push(format!("{node}: {why}"));
        self.open.remove(&node);
    }

    /// A node is through.
    pub fn done(&mut self, node: &str) {
        self.open.remove(node);
    }

    /// What each node that is not through does.
    pub fn lines(&self) -> Vec<(String, String)> {
        self.open.clone().into_iter().collect()
    }

    /// Everything that was brought, if it was brought everywhere. `what` was not done else.
    pub fn into_result(mut self, what: &str) -> Result<Vec<BroughtView>, Failure> {
        self.failed.extend(self.open.keys().map(|node| format!("{node}: it was broken off")));
        if self.failed.is_empty() {
            return Ok(self.brought);
        }
        let hint = "correct it and try again; nodes that have the image are not harmed by it";
        Err(Failure::new(Exit::Failed, what, self.failed.join("\n"), hint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(reference: &str) -> v1::ImportedImage {
        let (reference, digest) = (reference.to_owned(), "sha256:1".to_owned());
        v1::ImportedImage { reference, digest, size_bytes: 3 << 20 }
    }

    #[test]
    fn one_node_that_cannot_is_enough_to_fail() {
        let mut outcome = Outcome::default();
        outcome.progress("n1".into(), "received 5B".into());
        outcome.brought("n1".into(), image("web:1"));
        outcome.done("n1");
        outcome.failed("n2".into(), "the disk is full");
        outcome.progress("n3".into(), "received 5B".into());
        assert_eq!(outcome.lines(), [("n3".to_owned(), "received 5B".to_owned())]);
        let failure = outcome.into_result("it was not done").unwrap_err();
        assert_eq!(
            (failure.exit, failure.why.as_str()),
            (Exit::Failed, "n2: the disk is full\nn3: it was broken off")
        );
    }

    #[test]
    fn every_image_is_listed() {
        let mut outcome = Outcome::default();
        outcome.brought("n1".into(), image("web:1"));
        outcome.brought("n1".into(), image("web:2"));
        outcome.done("n1");
        let images = outcome.into_result("it was not done").unwrap();
        insta::assert_snapshot!(crate::output::tests::shown(&images, false, Timestamp(0)), @r"
        IMAGE   NODE   SIZE   DIGEST
        web:1   n1     3MiB   sha256:1
        web:2   n1     3MiB   sha256:1
        ");
    }
}
