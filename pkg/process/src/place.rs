//! Where a node keeps what.

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::{DATA_DIR, RUN_DIR};

/// Where a node keeps what, as it is told.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct PlaceArgs {
    /// Holds everything that must survive
    #[arg(long, env = "WARREN_DATA_DIR", default_value = DATA_DIR, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Holds sockets and what need not survive [default: /run/warren]
    #[arg(long, env = "WARREN_RUN_DIR", value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
}

/// What is remembered of a node as a whole: the section `[node]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct NodeSection {
    /// `None` is the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_dir: Option<PathBuf>,
}

impl NodeSection {
    /// The directory for sockets.
    pub fn run_dir(&self) -> PathBuf {
        self.run_dir.clone().unwrap_or_else(|| PathBuf::from(RUN_DIR))
    }
}
