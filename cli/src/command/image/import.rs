//! `warren image import`.

use std::path::Path;

use tokio::io::AsyncRead;
use warren_client::{Error, Import};
use warren_proto::v1::import_progress::Event;

use super::outcome::Outcome;
use super::pull::in_time;
use crate::args::Global;
use crate::connect::connect;
use crate::failure::{Exit, Failure};
use crate::output;
use crate::progress::Progress;
use crate::view::{about, now};

const WHAT: &str = "the image was not imported";

pub async fn run(global: &Global, file: &Path, nodes: Vec<String>) -> Result<(), Failure> {
    let archive = open(file).await?;
    let client = connect(global, WHAT).await?;
    let brought = in_time(WHAT, global.timeout, async {
        let mut import = client.images().import(nodes, archive).await?;
        follow(&mut import).await
    });
    output::list(global.output, &brought.await?, now())
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

async fn follow(import: &mut Import) -> Result<Outcome, Error> {
    let (mut outcome, mut progress) = (Outcome::default(), Progress::new());
    while let Some(told) = import.next().await? {
        match told.event {
            Some(Event::ReceivedBytes(bytes)) => {
                outcome.progress(told.node, format!("received {}", about(bytes)));
            }
            Some(Event::Imported(image)) => outcome.brought(told.node, image),
            Some(Event::Failed(why)) => outcome.failed(told.node, &why),
            Some(Event::Done(_)) => outcome.done(&told.node),
            None => {}
        }
        progress.show("importing", &outcome.lines());
    }
    Ok(outcome)
}
