//! `warren image ...`

mod import;
mod outcome;
mod prune;
mod pull;

use warren_proto::v1;

use crate::args::{Global, ImageCommand};
use crate::connect::connect;
use crate::failure::{Exit, Failure};
use crate::output;
use crate::view::image::ImageView;
use crate::view::now;

pub async fn run(global: &Global, command: ImageCommand) -> Result<(), Failure> {
    match command {
        ImageCommand::Import { file, node } => import::run(global, &file, node).await,
        ImageCommand::Pull { reference, node, always } => pull::run(global, &reference, node, always).await,
        ImageCommand::Ls { node } => ls(global, node).await,
        ImageCommand::Prune { node, unused_for, force } => prune::run(global, node, unused_for, force).await,
    }
}

async fn ls(global: &Global, nodes: Vec<String>) -> Result<(), Failure> {
    let what = "images were not listed";
    let client = connect(global, what).await?;
    let nodes = client.images().list(nodes).await.map_err(|error| crate::failure::of_client(what, error))?;
    let (images, failed) = told(nodes);
    output::list(global.output, &images, now())?;
    answered("not every node listed its images", failed)
}

/// The images of all nodes, and what the others said instead.
fn told(nodes: Vec<v1::NodeImages>) -> (Vec<ImageView>, Vec<String>) {
    let (mut images, mut failed) = (Vec::new(), Vec::new());
    for v1::NodeImages { node, images: found, failed: why } in nodes {
        images.extend(found.into_iter().map(|image| ImageView::new(&node, image)));
        if !why.is_empty() {
            failed.push(format!("{node}: {why}"));
        }
    }
    images.sort_by_cached_key(ImageView::order);
    (images, failed)
}

/// A node that did not do it makes it a failure, beside what the others did.
fn answered(what: &str, failed: Vec<String>) -> Result<(), Failure> {
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::new(Exit::Failed, what, failed.join("\n"), "see `warren node ls`, then try again"))
}
