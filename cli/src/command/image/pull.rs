//! `warren image pull`.

use std::time::Duration;

use warren_client::{Error, ImagePulls, PullOptions};
use warren_proto::v1::pull_progress::Event;
use warren_types::ImageReference;

use super::result::{NodeImageView, NodeResults};
use crate::args::GlobalArgs;
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind};
use crate::output;
use crate::progress::ProgressOutput;
use crate::view::now;

pub async fn run(
    global: &GlobalArgs,
    reference: &ImageReference,
    nodes: Vec<String>,
    always: bool,
) -> Result<(), CommandError> {
    let what = format!("the image {reference} was not pulled");
    let client = connect(global, &what).await?;
    let summary = format!("pulling {reference}");
    let reference = reference.to_string();
    let brought = with_timeout(&what, global.timeout, async {
        let mut pulls = client.images().pull(PullOptions { reference, nodes, always }).await?;
        follow(&mut pulls, &summary).await
    });
    output::print_list(global.output, &brought.await?, now())
}

async fn follow(pulls: &mut ImagePulls, summary: &str) -> Result<NodeResults, Error> {
    let (mut outcome, mut progress) = (NodeResults::default(), ProgressOutput::new());
    while let Some(update) = pulls.next().await? {
        match update.event {
            Some(Event::Progress(line)) => outcome.set_progress(update.node, line),
            Some(Event::Pulled(image)) => {
                outcome.brought(update.node.clone(), image);
                outcome.set_done(&update.node);
            }
            Some(Event::Error(why)) => outcome.failed(update.node, &why),
            None => {}
        }
        progress.show(summary, &outcome.lines());
    }
    Ok(outcome)
}

/// Runs an import or pull with a time limit.
pub async fn with_timeout(
    what: &str,
    timeout: Duration,
    bring: impl Future<Output = Result<NodeResults, Error>>,
) -> Result<Vec<NodeImageView>, CommandError> {
    let late = |_| {
        let what = format!("{what} after {}", crate::view::duration(timeout));
        CommandError::new(
            ExitKind::TimedOut,
            what,
            "not every node has finished",
            "use --timeout to wait longer",
        )
    };
    let outcome = tokio::time::timeout(timeout, bring).await.map_err(late)?;
    outcome.map_err(|error| crate::failure::from_client(what, error))?.into_result(what)
}
