//! `warren image pull`.

use std::time::Duration;

use warren_client::{Error, PullWish, Pulls};
use warren_proto::v1::pull_progress::Event;
use warren_types::ImageReference;

use super::outcome::{BroughtView, Outcome};
use crate::args::Global;
use crate::connect::connect;
use crate::failure::{Exit, Failure};
use crate::output;
use crate::progress::Progress;
use crate::view::now;

pub async fn run(
    global: &Global,
    reference: &ImageReference,
    nodes: Vec<String>,
    always: bool,
) -> Result<(), Failure> {
    let what = format!("the image {reference} was not pulled");
    let client = connect(global, &what).await?;
    let summary = format!("pulling {reference}");
    let reference = reference.to_string();
    let brought = in_time(&what, global.timeout, async {
        let mut pulls = client.images().pull(PullWish { reference, nodes, always }).await?;
        follow(&mut pulls, &summary).await
    });
    output::list(global.output, &brought.await?, now())
}

async fn follow(pulls: &mut Pulls, summary: &str) -> Result<Outcome, Error> {
    let (mut outcome, mut progress) = (Outcome::default(), Progress::new());
    while let Some(told) = pulls.next().await? {
        match told.event {
            Some(Event::Progress(line)) => outcome.progress(told.node, line),
            Some(Event::Pulled(image)) => {
                outcome.brought(told.node.clone(), image);
                outcome.done(&told.node);
            }
            Some(Event::Failed(why)) => outcome.failed(told.node, &why),
            None => {}
        }
        progress.show(summary, &outcome.lines());
    }
    Ok(outcome)
}

/// What `bring` brought, if that does not take too long.
pub async fn in_time(
    what: &str,
    timeout: Duration,
    bring: impl Future<Output = Result<Outcome, Error>>,
) -> Result<Vec<BroughtView>, Failure> {
    let late = |_| {
        let what = format!("{what} after {}", crate::view::duration(timeout));
        Failure::new(Exit::TimedOut, what, "the nodes are not through", "give more time with --timeout")
    };
    let outcome = tokio::time::timeout(timeout, bring).await.map_err(late)?;
    outcome.map_err(|error| crate::failure::of_client(what, error))?.into_result(what)
}
