//! Results of an import or pull per node.

use std::collections::BTreeMap;

use serde::Serialize;
use warren_proto::v1;
use warren_types::{Bytes, Timestamp};

use crate::failure::{CommandError, ExitKind};
use crate::output::{Column, TableRow, column};
use crate::view::rounded_bytes;

/// An image on a node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeImageView {
    image: String,
    node: String,
    size: String,
    #[serde(skip)]
    size_text: String,
    digest: String,
}

impl NodeImageView {
    /// The name of the image and its digest.
    pub fn image(&self) -> (&str, &str) {
        (&self.image, &self.digest)
    }
}

impl TableRow for NodeImageView {
    const COLUMNS: &'static [Column] = &[column("IMAGE"), column("NODE"), column("SIZE"), column("DIGEST")];

    fn cells(&self, _: bool, _: Timestamp) -> Vec<String> {
        vec![self.image.clone(), self.node.clone(), self.size_text.clone(), self.digest.clone()]
    }
}

/// Progress and results by node.
#[derive(Debug, Default)]
pub struct NodeResults {
    images: Vec<NodeImageView>,
    set_failed: Vec<String>,
    /// Unfinished nodes with their latest progress line.
    in_progress: BTreeMap<String, String>,
}

impl NodeResults {
    pub fn set_progress(&mut self, node: String, line: String) {
        self.in_progress.insert(node, line);
    }

    /// Adds an image; a node may report several.
    pub fn brought(&mut self, node: String, image: v1::ImportedImage) {
        let v1::ImportedImage { reference, digest, size_bytes } = image;
        self.in_progress.insert(node.clone(), format!("has {reference}"));
        let (size, size_text) = (Bytes(size_bytes).to_string(), rounded_bytes(size_bytes));
        self.images.push(NodeImageView { image: reference, node, size, size_text, digest });
    }

    pub fn failed(&mut self, node: String, why: &str) {
        self.set_failed.push(format!("{node}: {why}"));
        self.in_progress.remove(&node);
    }

    pub fn set_done(&mut self, node: &str) {
        self.in_progress.remove(node);
    }

    /// Progress of unfinished nodes; as (name, line).
    pub fn lines(&self) -> Vec<(String, String)> {
        self.in_progress.clone().into_iter().collect()
    }

    /// All images, or a failure with summary `what` if a node failed or did not finish.
    pub fn into_result(mut self, what: &str) -> Result<Vec<NodeImageView>, CommandError> {
        self.set_failed
            .extend(self.in_progress.keys().map(|node| format!("{node}: the transfer was interrupted")));
        if self.set_failed.is_empty() {
            return Ok(self.images);
        }
        let hint = "correct the failure and retry; nodes that have the image are unaffected";
        Err(CommandError::new(ExitKind::Failed, what, self.set_failed.join("\n"), hint))
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
    fn one_failed_node_fails_the_command() {
        let mut outcome = NodeResults::default();
        outcome.set_progress("n1".into(), "received 5B".into());
        outcome.brought("n1".into(), image("web:1"));
        outcome.set_done("n1");
        outcome.failed("n2".into(), "the disk is full");
        outcome.set_progress("n3".into(), "received 5B".into());
        assert_eq!(outcome.lines(), [("n3".to_owned(), "received 5B".to_owned())]);
        let failure = outcome.into_result("it was not done").unwrap_err();
        assert_eq!(
            (failure.kind, failure.why.as_str()),
            (ExitKind::Failed, "n2: the disk is full\nn3: the transfer was interrupted")
        );
    }

    #[test]
    fn every_image_is_listed() {
        let mut outcome = NodeResults::default();
        outcome.brought("n1".into(), image("web:1"));
        outcome.brought("n1".into(), image("web:2"));
        outcome.set_done("n1");
        let images = outcome.into_result("it was not done").unwrap();
        insta::assert_snapshot!(crate::output::tests::table_text_of(&images, false, Timestamp(0)), @r"
        IMAGE   NODE   SIZE   DIGEST
        web:1   n1     3MiB   sha256:1
        web:2   n1     3MiB   sha256:1
        ");
    }
}
