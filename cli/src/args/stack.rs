//! `warren stack ...`

use std::path::PathBuf;

use clap::{Args, Subcommand};
use warren_types::DnsLabel;

#[derive(Debug, Subcommand)]
pub enum StackCommand {
    /// Check Compose files, and print what they mean as one file
    Config(StackConfigArgs),
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

/// Which Compose files are read, and how.
#[derive(Debug, Clone, Args)]
pub struct ComposeFileArgs {
    /// Compose file; each is merged into the ones before (repeatable) [default: compose.yaml, and
    /// compose.override.yaml if there is one]
    #[arg(
        long = "compose-file",
        short = 'c',
        visible_alias = "file",
        short_alias = 'f',
        value_name = "FILE"
    )]
    pub compose_files: Vec<PathBuf>,
    /// File with variables, instead of .env beside the first Compose file (repeatable)
    #[arg(long, value_name = "FILE")]
    pub env_file: Vec<PathBuf>,
    /// Activate a profile, or all of them with `*` (repeatable; also COMPOSE_PROFILES)
    #[arg(long, value_name = "NAME")]
    pub profile: Vec<String>,
}
