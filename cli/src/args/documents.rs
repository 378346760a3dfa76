//! `warren apply`, `warren diff` and `warren rm`, and the flag of every `inspect` that prints a document.

use std::path::PathBuf;

use clap::Args;

use super::value;

/// Which documents are read.
#[derive(Debug, Clone, Args)]
pub struct DocumentFileArgs {
    /// File with documents, directory with *.yaml, *.yml and *.json files, or - for standard input (repeatable)
    #[arg(
        long = "filename",
        short = 'f',
        visible_alias = "file",
        required = true,
        value_name = "FILE|DIR|-"
    )]
    pub files: Vec<PathBuf>,
}

/// What `apply` removes.
#[derive(Debug, Clone, Default, Args)]
pub struct PruneArgs {
    /// Remove services, secrets, configs and networks that have the label of --selector and no document
    #[arg(long, requires = "selector")]
    pub prune: bool,
    /// Label of the objects that --prune may remove; every document must have it (repeatable)
    #[arg(long, short = 'l', requires = "prune", value_name = "KEY=VALUE", value_parser = value::label)]
    pub selector: Vec<(String, String)>,
    /// Let --prune remove volumes too; their data stays until `warren volume purge`
    #[arg(long, requires = "prune")]
    pub prune_volumes: bool,
}

/// `warren apply`.
#[derive(Debug, Args)]
pub struct ApplyArgs {
    #[command(flatten)]
    pub files: DocumentFileArgs,
    #[command(flatten)]
    pub prune: PruneArgs,
    /// Only print what would change, and where each task would run
    #[arg(long)]
    pub dry_run: bool,
    /// Wait until the services are ready, which is the default
    #[arg(long, hide = true, conflicts_with = "detach")]
    pub wait: bool,
    /// Return without waiting, except before the removal of what services use
    #[arg(long, short)]
    pub detach: bool,
}

/// `warren diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    #[command(flatten)]
    pub files: DocumentFileArgs,
    #[command(flatten)]
    pub prune: PruneArgs,
}

/// `warren rm`.
#[derive(Debug, Args)]
pub struct DocumentRemoveArgs {
    #[command(flatten)]
    pub files: DocumentFileArgs,
}

/// The flag of every `inspect` whose object a document can describe.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct AsDocumentArgs {
    /// Print a document for `warren apply`
    #[arg(long)]
    pub as_document: bool,
}
