//! `warren image prune`.

use std::time::Duration;

use super::{require_no_failures, split_results};
use crate::args::GlobalArgs;
use crate::command::confirm::confirm;
use crate::connect::connect;
use crate::failure::CommandError;
use crate::output;
use crate::view::image::ImageView;
use crate::view::{duration, now, rounded_bytes};

const WHAT: &str = "no image was removed";

pub async fn run(
    global: &GlobalArgs,
    nodes: Vec<String>,
    unused_for: Duration,
    force: bool,
) -> Result<(), CommandError> {
    if !force {
        confirm(&question(&nodes, unused_for), WHAT)?;
    }
    let client = connect(global, WHAT).await?;
    let nodes = client.images().prune(nodes, unused_for).await;
    let (images, failed) = split_results(nodes.map_err(|error| crate::failure::from_client(WHAT, error))?);
    let bytes: u64 = images.iter().map(ImageView::bytes).sum();
    let count = images.len();
    eprintln!("{count} {} removed, {}", if count == 1 { "image" } else { "images" }, rounded_bytes(bytes));
    output::print_list(global.output, &images, now())?;
    require_no_failures("not every node removed its images", failed)
}

fn question(nodes: &[String], unused_for: Duration) -> String {
    let which = match unused_for {
        Duration::ZERO => "every image that no task uses".to_owned(),
        unused => format!("every image that no task used for {}", duration(unused)),
    };
    let place = if nodes.is_empty() { "all nodes".to_owned() } else { nodes.join(", ") };
    format!("This removes {which} from {place}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confirmation_names_nodes_and_age() {
        let all = "This removes every image that no task uses from all nodes.";
        assert_eq!(question(&[], Duration::ZERO), all);
        let some = "This removes every image that no task used for 1day from n1, n2.";
        assert_eq!(question(&["n1".into(), "n2".into()], Duration::from_secs(86_400)), some);
    }
}
