//! `warren token ...`

use clap::{Args, Subcommand};
use warren_types::NodeRole;

use super::listing::ListingArgs;
use super::value::{self, TokenTtl};

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a join token; the token is shown only once
    Create(TokenCreateArgs),
    /// List tokens
    #[command(alias = "list")]
    Ls(ListingArgs),
    /// Revoke tokens; machines that joined with them stay
    #[command(alias = "remove")]
    Rm {
        /// Token ids, or id prefixes
        #[arg(required = true, value_name = "TOKEN")]
        tokens: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub struct TokenCreateArgs {
    /// Role of machines that join with the token: worker or manager
    #[arg(long, value_name = "ROLE", value_parser = value::role, default_value = "worker")]
    pub role: NodeRole,
    /// Lifetime of the token, or never
    #[arg(long, value_name = "DURATION|never", value_parser = value::ttl, default_value = "24h")]
    pub ttl: TokenTtl,
    /// Number of machines that may join [default: unlimited]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub uses: Option<u32>,
    /// Set a label of each worker that joins with the token, for node.labels.KEY (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = value::label)]
    pub label: Vec<(String, String)>,
    /// Print only the token
    #[arg(long, short)]
    pub quiet: bool,
}
