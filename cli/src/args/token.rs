//! `warren token ...`

use clap::{Args, Subcommand};
use warren_types::NodeRole;

use super::value::{self, Ttl};

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token that machines can join with; it is shown only now
    Create(TokenArgs),
    /// List tokens
    Ls,
    /// Make tokens useless; machines that joined with them stay
    Rm {
        /// Ids, or beginnings of ids
        #[arg(required = true, value_name = "TOKEN")]
        tokens: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub struct TokenArgs {
    /// What a machine that has it becomes: worker or manager
    #[arg(long, value_name = "ROLE", value_parser = value::role, default_value = "worker")]
    pub role: NodeRole,
    /// How long it is good for, or never for no end
    #[arg(long, value_name = "DURATION|never", value_parser = value::ttl, default_value = "24h")]
    pub ttl: Ttl,
    /// How many machines may join with it [default: any number]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub uses: Option<u32>,
    /// Print the token and nothing else
    #[arg(long, short)]
    pub quiet: bool,
}
