//! `warren image import`.

use std::path::Path;

use tokio::io::AsyncRead;
use warren_client::{Error, ImageImport};
use warren_proto::v1::import_progress::Event;

use super::pull::with_timeout;
use super::result::NodeResults;
use crate::args::GlobalArgs;
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind};
use crate::output;
use crate::progress::ProgressOutput;
use crate::view::{now, rounded_bytes};

const WHAT: &str = "the image was not imported";

pub async fn run(global: &GlobalArgs, file: &Path, nodes: Vec<String>) -> Result<(), CommandError> {
    let archive = open(file).await?;
    let client = connect(global, WHAT).await?;
    let brought = with_timeout(WHAT, global.timeout, async {
        let mut import = client.images().import(nodes, archive).await?;
        follow(&mut import, "importing").await
    });
    output::print_list(global.output, &brought.await?, now())
}

async fn open(file: &Path) -> Result<Box<dyn AsyncRead + Send + Unpin>, CommandError> {
    if file == Path::new("-") {
        return Ok(Box::new(tokio::io::stdin()));
    }
    let failed = |exit, why: String| {
        CommandError::new(exit, WHAT, format!("{}: {why}", file.display()), "check the path")
    };
    let opened = tokio::fs::File::open(file).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => failed(ExitKind::NotFound, "there is no such file".to_owned()),
        _ => failed(ExitKind::Failed, error.to_string()),
    })?;
    let metadata = opened.metadata().await.map_err(|error| failed(ExitKind::Failed, error.to_string()))?;
    if metadata.is_dir() {
        return Err(failed(
            ExitKind::Usage,
            "is a directory; give an archive, or - to read standard input".to_owned(),
        ));
    }
    Ok(Box::new(opened))
}

/// Shows the progress of the nodes until all of them have finished.
pub async fn follow(import: &mut ImageImport, summary: &str) -> Result<NodeResults, Error> {
    let (mut outcome, mut progress) = (NodeResults::default(), ProgressOutput::new());
    while let Some(update) = import.next().await? {
        match update.event {
            Some(Event::ReceivedBytes(bytes)) => {
                outcome.set_progress(update.node, format!("received {}", rounded_bytes(bytes)));
            }
            Some(Event::Imported(image)) => outcome.brought(update.node, image),
            Some(Event::Error(why)) => outcome.failed(update.node, &why),
            Some(Event::Done(_)) => outcome.set_done(&update.node),
            None => {}
        }
        progress.show(summary, &outcome.lines());
    }
    Ok(outcome)
}
