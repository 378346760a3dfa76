//! `warren cluster ...`

use clap::{ArgGroup, Args, Subcommand};

use super::listing::ListingArgs;

#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Show the cluster and the state of the manager that answers
    Info,
    /// Change settings of the cluster
    Update(ClusterUpdateArgs),
    /// List background tasks of managers and agents
    #[command(visible_alias = "bg")]
    BackgroundTasks {
        /// Show only this background task
        #[arg(value_name = "NAME")]
        name: Option<String>,
        #[command(flatten)]
        listing: ListingArgs,
    },
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("SETTING").required(true).multiple(true)
    .args(["max_replicas_per_service", "task_history_limit"]))]
pub struct ClusterUpdateArgs {
    /// Refuse services with more replicas, unless their command has --yes [default: 10000]
    #[arg(long, value_name = "N")]
    pub max_replicas_per_service: Option<u32>,
    /// Keep the records and logs of this many ended tasks per slot [default: 5]
    #[arg(long, value_name = "N")]
    pub task_history_limit: Option<u32>,
}
