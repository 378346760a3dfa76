//! `warren upgrade`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub struct UpgradeArgs {
    /// The new program `warren`, for the architecture of the machines
    #[arg(value_name = "BINARY")]
    pub program: PathBuf,
    /// Only upgrade the machine of this node (repeatable)
    #[arg(long = "node", value_name = "NAME|ID")]
    pub nodes: Vec<String>,
}
