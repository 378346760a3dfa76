//! `warren context ...`

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

use super::listing::ListingArgs;
use super::value;

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
    /// Write the certificates and the key of a context into a directory, as the clients of Docker read them
    Export {
        /// Context [default: the current one]
        #[arg(value_name = "CONTEXT")]
        name: Option<String>,
        /// Directory for ca.pem, cert.pem and key.pem; created if it does not exist
        #[arg(long, value_name = "DIR")]
        docker: PathBuf,
        /// Lifetime of the certificate, at most 365d; clients of Docker do not renew it
        #[arg(long, value_name = "DURATION", value_parser = value::duration, default_value = "24h")]
        ttl: Duration,
    },
    /// Forget clusters, with the certificates and keys of their contexts
    #[command(alias = "remove")]
    Rm {
        /// Contexts
        #[arg(required = true, value_name = "CONTEXT")]
        names: Vec<String>,
    },
}
