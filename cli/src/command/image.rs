//! `warren image ...`

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use tokio::io::AsyncRead;
use warren_client::{Client, Error, Import};
use warren_proto::v1::import_progress::Event;
use warren_types::Bytes;

use crate::args::{Global, ImageCommand};
use crate::connect::connect;
use crate::failure::{Exit, Failure};
use crate::output::{self, Column, Row, column};
use crate::progress::Progress;
use crate::view::{about, now};

const WHAT: &str = "the image was not imported";

pub async fn run(global: &Global, command: ImageCommand) -> Result<(), Failure> {
    let ImageCommand::Import { file, node } = command;
    let archive = open(&file).await?;
    let client = connect(global, WHAT).await?;
    let imported = import(&client, node, archive, global.timeout).await?;
    output::list(global.output, &imported, now())
}

/// An image that a node has now.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ImportedView {
    image: String,
    node: String,
    size: String,
    #[serde(skip)]
    about: String,
    digest: String,
}

impl Row for ImportedView {
    const COLUMNS: &'static [Column] = &[column("IMAGE"), column("NODE"), column("SIZE"), column("DIGEST")];

    fn cells(&self, _: bool, _: warren_types::Timestamp) -> Vec<String> {
        vec![self.image.clone(), self.node.clone(), self.about.clone(), self.digest.clone()]
    }
}

async fn open(file: &Path) -> Result<Box<dyn AsyncRead + Send + Unpin>, Failure> {
    if file == Path::new("-") {
        return Ok(Box::new(tokio::io::stdin()));
    }
    let failed =
        |exit, why: String| Failure::new(exit, WHAT, format!("{}: {why}", file.display()), "check the path");
    let opened = tokio::fs::File::open(file).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => failed(Exit::NotFound, "there is no such file".to_owned()),
        _ => failed(Exit::Failed, error.to_string()),
    })?;
    let metadata = opened.metadata().await.map_err(|error| failed(Exit::Failed, error.to_string()))?;
    if metadata.is_dir() {
        return Err(failed(
            Exit::Usage,
            "is a directory; give an archive, or pipe one in and give -".to_owned(),
        ));
    }
    Ok(Box::new(opened))
}

async fn import(
    client: &Client,
    nodes: Vec<String>,
    archive: Box<dyn AsyncRead + Send + Unpin>,
    timeout: std::time::Duration,
) -> Result<Vec<ImportedView>, Failure> {
    let mut progress = Progress::new();
    let follow = async {
        let mut import = client.images().import(nodes, archive).await?;
        follow(&mut import, &mut progress).await
    };
    let ended = tokio::time::timeout(timeout, follow).await;
    drop(progress);
    let late = |_| {
        let what = format!("{WHAT} after {}", crate::view::duration(timeout));
        Failure::new(Exit::TimedOut, what, "the nodes are not through", "give more time with --timeout")
    };
    let outcome = ended.map_err(late)?.map_err(|error| Failure::of_client(WHAT, error))?;
    outcome.into_result()
}

/// What the nodes said in the end.
#[derive(Default)]
struct Outcome {
    imported: Vec<ImportedView>,
    failed: Vec<String>,
    /// Nodes that have begun and not ended, with what was last heard of them.
    open: BTreeMap<String, String>,
}

impl Outcome {
    fn take(&mut self, node: String, event: Event) {
        match event {
            Event::ReceivedBytes(bytes) => {
                self.open.insert(node, format!("received {}", about(bytes)));
            }
            Event::Imported(image) => {
                let (reference, size) = (image.reference, Bytes(image.size_bytes).to_string());
                self.open.insert(node.clone(), format!("has {reference}"));
                let about = about(image.size_bytes);
                self.imported.push(ImportedView {
                    image: reference,
                    node,
                    size,
                    about,
                    digest: image.digest,
                });
            }
            Event::Failed(why) => {
                self.failed.push(format!("{node}: {why}"));
                self.open.remove(&node);
            }
            Event::Done(_) => {
                self.open.remove(&node);
            }
        }
    }

    fn into_result(mut self) -> Result<Vec<ImportedView>, Failure> {
        self.failed.extend(self.open.keys().map(|node| format!("{node}: the import was broken off")));
        if !self.failed.is_empty() {
            let hint = "correct it and import again; nodes that have the image are not harmed by it";
            return Err(Failure::new(Exit::Failed, WHAT, self.failed.join("\n"), hint));
        }
        Ok(self.imported)
    }
}

async fn follow(import: &mut Import, progress: &mut Progress) -> Result<Outcome, Error> {
    let mut outcome = Outcome::default();
    while let Some(told) = import.next().await? {
        if let Some(event) = told.event {
            outcome.take(told.node, event);
        }
        let lines: Vec<(String, String)> = outcome.open.clone().into_iter().collect();
        progress.show("importing", &lines);
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use warren_proto::v1;

    use super::*;

    fn imported(reference: &str) -> Event {
        let (reference, digest) = (reference.to_owned(), "sha256:1".to_owned());
        Event::Imported(v1::ImportedImage { reference, digest, size_bytes: 3 << 20 })
    }

    #[test]
    fn one_node_that_cannot_is_enough_to_fail() {
        let mut outcome = Outcome::default();
        outcome.take("n1".into(), Event::ReceivedBytes(5));
        outcome.take("n1".into(), imported("web:1"));
        outcome.take("n1".into(), Event::Done(v1::Done {}));
        outcome.take("n2".into(), Event::Failed("the disk is full".into()));
        outcome.take("n3".into(), Event::ReceivedBytes(5));
        let failure = outcome.into_result().unwrap_err();
        assert_eq!(
            (failure.exit, failure.why.as_str()),
            (Exit::Failed, "n2: the disk is full\nn3: the import was broken off")
        );
    }

    #[test]
    fn every_image_of_the_archive_is_listed() {
        let mut outcome = Outcome::default();
        outcome.take("n1".into(), imported("web:1"));
        outcome.take("n1".into(), imported("web:2"));
        outcome.take("n1".into(), Event::Done(v1::Done {}));
        let images = outcome.into_result().unwrap();
        insta::assert_snapshot!(crate::output::tests::shown(&images, false, warren_types::Timestamp(0)), @r"
        IMAGE   NODE   SIZE   DIGEST
        web:1   n1     3MiB   sha256:1
        web:2   n1     3MiB   sha256:1
        ");
    }
}
