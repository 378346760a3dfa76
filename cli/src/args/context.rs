//! `warren context ...`

use clap::Subcommand;

use super::listing::ListingArgs;

#[derive(Debug, Subcommand)]
pub enum ContextCommand {
    /// List the clusters that the CLI knows; the current one has a star
    #[command(alias = "list")]
    Ls(ListingArgs),
    /// Select the cluster that commands use
    Use {
        /// Context
        #[arg(value_name = "CONTEXT")]
        name: String,
    },
    /// Forget clusters, with the certificates and keys of their contexts
    #[command(alias = "remove")]
    Rm {
        /// Contexts
        #[arg(required = true, value_name = "CONTEXT")]
        names: Vec<String>,
    },
}
