//! `warren secret ...`, `warren config ...` and `warren registry ...`

use std::path::PathBuf;

use clap::{Args, Subcommand};
use warren_types::SecretObjectName;

use super::documents::AsDocumentArgs;
use super::listing::{ListingArgs, PrettyArgs};
use super::value;

/// Secrets and configs have the same commands.
#[derive(Debug, Subcommand)]
pub enum SecretObjectCommand {
    /// Create a secret or config from a file
    Create(SecretObjectCreateArgs),
    /// Store a new version; services that use it are updated task by task
    Update {
        /// Name, id, or id prefix
        #[arg(value_name = "NAME")]
        name: String,
        /// File of at most 1 MiB; - reads standard input
        #[arg(value_name = "FILE|-")]
        file: PathBuf,
    },
    /// List names and versions, without data
    #[command(alias = "list")]
    Ls(ListingArgs),
    /// Show details; configs include their data, secrets never do
    Inspect {
        /// Names, ids, or id prefixes
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        #[command(flatten)]
        pretty: PrettyArgs,
        #[command(flatten)]
        document: AsDocumentArgs,
    },
    /// Remove secrets or configs that no service uses
    #[command(alias = "remove")]
    Rm {
        /// Names, ids, or id prefixes
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub struct SecretObjectCreateArgs {
    /// Name
    #[arg(value_name = "NAME")]
    pub name: SecretObjectName,
    /// File of at most 1 MiB; - reads standard input
    #[arg(value_name = "FILE|-")]
    pub file: PathBuf,
    /// Set a label (repeatable)
    #[arg(long, short, value_name = "KEY=VALUE", value_parser = value::label)]
    pub label: Vec<(String, String)>,
}

#[derive(Debug, Subcommand)]
pub enum RegistryCommand {
    /// Store the user and password for a registry
    Login(RegistryLoginArgs),
    /// List registries with stored credentials
    #[command(alias = "list")]
    Ls(ListingArgs),
    /// Remove the credentials of registries
    #[command(alias = "remove")]
    Rm {
        /// Registry hosts, as in image references
        #[arg(required = true, value_name = "HOST[:PORT]", value_parser = value::registry)]
        hosts: Vec<SecretObjectName>,
    },
}

#[derive(Debug, Args)]
pub struct RegistryLoginArgs {
    /// Registry host, as in image references; docker.io is the default registry
    #[arg(value_name = "HOST[:PORT]", value_parser = value::registry)]
    pub host: SecretObjectName,
    /// User name at the registry
    #[arg(long, short, value_name = "USER")]
    pub username: String,
    /// Read the password or token from standard input instead of the terminal
    #[arg(long)]
    pub password_stdin: bool,
    /// Give nodes tokens for single repositories and never the password; the registry must have tokens
    #[arg(long)]
    pub token_only: bool,
}
