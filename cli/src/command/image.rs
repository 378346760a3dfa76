//! `warren image ...`

mod copy;
pub mod import;
mod prune;
pub mod pull;
mod result;

use warren_client::Client;
use warren_proto::v1;
use warren_types::ImageReference;

use crate::args::{GlobalArgs, ImageCommand, ListingArgs};
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind};
use crate::output::{self, ListContent, Listing};
use crate::view::image::ImageView;
use crate::view::now;
use crate::watch;

pub async fn run(global: &GlobalArgs, command: ImageCommand) -> Result<(), CommandError> {
    match command {
        ImageCommand::Import { file, node } => import::run(global, &file, node).await,
        ImageCommand::Copy { reference, to, from } => copy::run(global, &reference, to, from).await,
        ImageCommand::Pull { reference, node, always } => pull::run(global, &reference, node, always).await,
        ImageCommand::Ls { node, listing } => ls(global, node, &listing).await,
        ImageCommand::Rm { reference } => rm(global, &reference).await,
        ImageCommand::Prune { node, unused_for, force } => prune::run(global, node, unused_for, force).await,
    }
}

async fn ls(global: &GlobalArgs, nodes: Vec<String>, listing: &ListingArgs) -> Result<(), CommandError> {
    let what = "images were not listed";
    let list = Listing::new(global.output, listing, what)?;
    let client = connect(global, what).await?;
    if list.is_watched() {
        let fetch = async || {
            let (images, failed) = fetch(&client, &nodes, what).await?;
            Ok(ListContent::with_notes(images, failed))
        };
        return watch::show(&list, &client, fetch).await;
    }
    let (images, failed) = fetch(&client, &nodes, what).await?;
    list.print(images, now())?;
    require_no_failures("not every node listed its images", failed)
}

async fn rm(global: &GlobalArgs, reference: &ImageReference) -> Result<(), CommandError> {
    let what = format!("image {reference} was not removed");
    let client = connect(global, &what).await?;
    let nodes = client.images().remove(&reference.to_string()).await;
    let nodes = nodes.map_err(|error| crate::failure::from_client(&what, error))?;
    let (images, failed) = split_results(nodes);
    if images.is_empty() && failed.is_empty() {
        let why = "no node that is READY has it";
        return Err(CommandError::new(ExitKind::NotFound, what, why, "see `warren image ls`"));
    }
    output::print_list(global.output, &images, now())?;
    require_no_failures("not every node removed the image", failed)
}

async fn fetch(
    client: &Client,
    nodes: &[String],
    what: &str,
) -> Result<(Vec<ImageView>, Vec<String>), CommandError> {
    let nodes = client.images().list(nodes.to_vec()).await;
    Ok(split_results(nodes.map_err(|error| crate::failure::from_client(what, error))?))
}

/// The images of all nodes, and the failures of the others.
fn split_results(nodes: Vec<v1::NodeImages>) -> (Vec<ImageView>, Vec<String>) {
    let (mut images, mut failed) = (Vec::new(), Vec::new());
    for v1::NodeImages { node, images: found, error: why } in nodes {
        images.extend(found.into_iter().map(|image| ImageView::new(&node, image)));
        if !why.is_empty() {
            failed.push(format!("{node}: {why}"));
        }
    }
    images.sort_by_cached_key(ImageView::sort_key);
    (images, failed)
}

/// Fails if any node failed.
fn require_no_failures(what: &str, failed: Vec<String>) -> Result<(), CommandError> {
    if failed.is_empty() {
        return Ok(());
    }
    Err(CommandError::new(ExitKind::Failed, what, failed.join("\n"), "see `warren node ls`, then try again"))
}
