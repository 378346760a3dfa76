//! `warren stack ...` and `warren deploy`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use warren_types::DnsLabel;

use super::listing::ListingArgs;
use super::service::LogArgs;

#[derive(Debug, Subcommand)]
pub enum StackCommand {
    /// Check Compose files, and print what they mean as one file
    Config(StackConfigArgs),
    /// Create or update a stack from Compose files (same as `warren deploy`)
    #[command(alias = "up")]
    Deploy(StackDeployArgs),
    /// List stacks
    #[command(alias = "list")]
    Ls(ListingArgs),
    /// List the services of a stack
    Services {
        /// Name of the stack
        #[arg(value_name = "STACK")]
        name: DnsLabel,
        #[command(flatten)]
        listing: ListingArgs,
    },
    /// List the tasks of a stack with their node and state
    Ps {
        /// Name of the stack
        #[arg(value_name = "STACK")]
        name: DnsLabel,
        /// Also list the ended tasks of removed slots, and show how tasks ended with their last lines
        #[arg(long, short)]
        all: bool,
        #[command(flatten)]
        listing: ListingArgs,
    },
    /// Print the logs of all services of a stack, those of ended tasks too
    Logs {
        /// Name of the stack
        #[arg(value_name = "STACK")]
        name: DnsLabel,
        #[command(flatten)]
        lines: LogArgs,
    },
    /// Remove the services, networks, secrets and configs of stacks
    #[command(aliases = ["remove", "down"])]
    Rm(StackRemoveArgs),
}

/// `warren stack config`.
#[derive(Debug, Args)]
pub struct StackConfigArgs {
    /// Name of the stack [default: `name` in the files, or the name of their directory]
    #[arg(value_name = "STACK")]
    pub name: Option<DnsLabel>,
    #[command(flatten)]
    pub files: ComposeFileArgs,
}

/// `warren deploy`.
#[derive(Debug, Args)]
pub struct StackDeployArgs {
    /// Name of the stack [default: `name` in the files, or the name of their directory]
    #[arg(value_name = "STACK")]
    pub name: Option<DnsLabel>,
    #[command(flatten)]
    pub files: ComposeFileArgs,
    /// Build the images of services with `build`, by docker or buildah, and import them on the nodes
    #[arg(long)]
    pub build: bool,
    /// Only print what would change
    #[arg(long)]
    pub dry_run: bool,
    /// Remove services of the stack that are not in the files
    #[arg(long)]
    pub prune: bool,
    /// Return without waiting, except for services that others depend on as healthy
    #[arg(long, short)]
    pub detach: bool,
}

/// `warren stack rm`.
#[derive(Debug, Args)]
pub struct StackRemoveArgs {
    /// Names of stacks
    #[arg(required = true, value_name = "STACK")]
    pub names: Vec<DnsLabel>,
    /// Remove the volumes of the stack too; their data stays until `warren volume purge`
    #[arg(long)]
    pub volumes: bool,
    /// Also remove bootstrap services
    #[arg(long, short)]
    pub force: bool,
}

/// Which Compose files are read, and how.
#[derive(Debug, Clone, Args)]
pub struct ComposeFileArgs {
    /// Compose file; each is merged into the ones before (repeatable) [default: compose.yaml, and
    /// compose.override.yaml if there is one]
    #[arg(long = "compose-file", short = 'c', visible_alias = "file", value_name = "FILE")]
    pub compose_files: Vec<PathBuf>,
    /// File with variables, instead of .env beside the first Compose file (repeatable)
    #[arg(long, value_name = "FILE")]
    pub env_file: Vec<PathBuf>,
    /// Activate a profile, or all of them with `*` (repeatable; also COMPOSE_PROFILES)
    #[arg(long, value_name = "NAME")]
    pub profile: Vec<String>,
}
