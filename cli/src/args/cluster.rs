//! `warren cluster ...`

use clap::{ArgGroup, Args, Subcommand};
use ipnet::Ipv4Net;
use warren_types::DataPlane;

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

#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("SETTING").required(true).multiple(true)
    .args(["max_replicas_per_service", "task_history_limit", "data_plane", "range_add"]))]
pub struct ClusterUpdateArgs {
    /// Refuse services with more replicas, unless their command has --yes [default: 10000]
    #[arg(long, value_name = "N")]
    pub max_replicas_per_service: Option<u32>,
    /// Keep the records and logs of this many ended tasks per slot [default: 5]
    #[arg(long, value_name = "N")]
    pub task_history_limit: Option<u32>,
    /// What carries packets between nodes: vxlan, wireguard, which encrypts them, or routes, for nodes on one L2
    /// network [default: vxlan]
    #[arg(long, value_name = "KIND")]
    pub data_plane: Option<DataPlane>,
    /// Add an address range for the networks of tasks, like 10.211.0.0/16
    #[arg(long, value_name = "CIDR")]
    pub range_add: Vec<Ipv4Net>,
}
