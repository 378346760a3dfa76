//! `warren network ...`

use clap::Subcommand;
use warren_types::NetworkName;

use super::documents::AsDocumentArgs;
use super::listing::{ListingArgs, PrettyArgs};
use super::value;

#[derive(Debug, Subcommand)]
pub enum NetworkCommand {
    /// Create a network: services in it reach each other, and no service of another network
    Create {
        /// Name
        #[arg(value_name = "NAME")]
        name: NetworkName,
        /// Let its tasks reach nothing outside the cluster
        #[arg(long)]
        internal: bool,
        /// Set a label (repeatable)
        #[arg(long, value_name = "KEY=VALUE", value_parser = value::label)]
        label: Vec<(String, String)>,
    },
    /// List networks with their services
    #[command(alias = "list")]
    Ls {
        #[command(flatten)]
        listing: ListingArgs,
    },
    /// Show networks in detail
    Inspect {
        /// Network names, ids, or id prefixes
        #[arg(required = true, value_name = "NETWORK")]
        networks: Vec<String>,
        #[command(flatten)]
        pretty: PrettyArgs,
        #[command(flatten)]
        document: AsDocumentArgs,
    },
    /// Remove networks that no service is in
    #[command(alias = "remove")]
    Rm {
        /// Network names, ids, or id prefixes
        #[arg(required = true, value_name = "NETWORK")]
        networks: Vec<String>,
    },
}
