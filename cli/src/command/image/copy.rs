//! `warren image copy`.

use warren_types::ImageReference;

use super::import::follow;
use super::pull::with_timeout;
use crate::args::GlobalArgs;
use crate::connect::connect;
use crate::failure::CommandError;
use crate::output;
use crate::view::now;

pub async fn run(
    global: &GlobalArgs,
    reference: &ImageReference,
    to: Vec<String>,
    from: String,
) -> Result<(), CommandError> {
    let what = format!("the image {reference} was not copied");
    let client = connect(global, &what).await?;
    let copied = with_timeout(&what, global.timeout, async {
        let mut copy = client.images().copy(reference.to_string(), to, from).await?;
        follow(&mut copy, "copying").await
    });
    let copied = copied.await?;
    if copied.is_empty() {
        eprintln!("there is nothing to copy: the only node is the one that has the image");
    }
    output::print_list(global.output, &copied, now())
}
