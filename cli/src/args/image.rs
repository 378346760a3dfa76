//! `warren image ...`

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use warren_types::ImageReference;

use super::listing::ListingArgs;
use super::value;

#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Import an OCI or docker archive onto nodes
    Import {
        /// Archive file; - reads standard input
        #[arg(value_name = "FILE|-")]
        file: PathBuf,
        /// Import only onto this node, or onto those with a label (repeatable) [default: all that are READY]
        #[arg(long, value_name = "NAME|ID|all|KEY=VALUE")]
        node: Vec<String>,
    },
    /// Copy an image from a node that has it to other nodes; layers that they have are not sent
    Copy {
        /// Image reference, like nginx:1.27
        #[arg(value_name = "REFERENCE")]
        reference: ImageReference,
        /// Node that gets the image, or a label of such nodes (repeatable)
        #[arg(long, required = true, value_name = "NAME|ID|all|KEY=VALUE", num_args = 1..)]
        to: Vec<String>,
        /// Node that sends it [default: one that has it]
        #[arg(long, value_name = "NAME|ID", default_value = "", hide_default_value = true)]
        from: String,
    },
    /// Pull an image onto nodes
    Pull {
        /// Image reference, like nginx:1.27
        #[arg(value_name = "REFERENCE")]
        reference: ImageReference,
        /// Pull only onto this node, or onto those with a label (repeatable) [default: all that are READY]
        #[arg(long, value_name = "NAME|ID|all|KEY=VALUE")]
        node: Vec<String>,
        /// Ask the registry even if the node already has the image
        #[arg(long)]
        always: bool,
    },
    /// List images on nodes
    #[command(alias = "list")]
    Ls {
        /// Show only images of this node (repeatable) [default: every node that is READY]
        #[arg(long, value_name = "NAME|ID")]
        node: Vec<String>,
        #[command(flatten)]
        listing: ListingArgs,
    },
    /// Remove an image from all nodes that are READY
    #[command(alias = "remove")]
    Rm {
        /// Image reference, like nginx:1.27
        #[arg(value_name = "REFERENCE")]
        reference: ImageReference,
    },
    /// Remove images that no task uses
    Prune {
        /// Prune only this node (repeatable) [default: every node that is READY]
        #[arg(long, value_name = "NAME|ID")]
        node: Vec<String>,
        /// Remove only images unused for this long
        #[arg(long, value_name = "DURATION", value_parser = value::duration, default_value = "0s")]
        unused_for: Duration,
        /// Do not ask for confirmation
        #[arg(long, short, visible_short_alias = 'y')]
        force: bool,
    },
}
