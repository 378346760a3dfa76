//! `warren manager ...`: flags of a node's own processes.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};
use warren_log::Engine;
use warren_types::{Bytes, MilliCpu, NodeName};

use super::value::{self, Advertise};

#[derive(Debug, Subcommand)]
pub enum ManagerCommand {
    /// Make a cluster on this machine and run its first manager and worker, or resume what an earlier init
    /// made
    Init(NodeArgs),
    /// Run what an earlier `manager init` made
    Run(NodeArgs),
}

#[derive(Debug, Clone, Args)]
pub struct NodeArgs {
    /// Holds everything that must survive
    #[arg(long, env = "WARREN_DATA_DIR", default_value = "/var/lib/warren", value_name = "DIR")]
    pub data_dir: PathBuf,
    #[command(flatten)]
    pub settings: Settings,
}

/// What `manager init` remembers in the data dir. `None` was not said.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Settings {
    /// Holds sockets and what need not survive [default: /run/warren]
    #[arg(long, env = "WARREN_RUN_DIR", value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_dir: Option<PathBuf>,
    /// Where the manager listens [default: 0.0.0.0:8080]
    #[arg(long, env = "WARREN_LISTEN", value_name = "IP:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// Where other machines reach this one [default: the address it would reach them from]
    #[arg(long, env = "WARREN_ADVERTISE", value_name = "HOST[:PORT]")]
    #[serde(skip_serializing_if = "Option::is_none", with = "as_text")]
    pub advertise: Option<Advertise>,
    /// Run no tasks on this machine
    #[arg(
        long, env = "WARREN_MANAGER_ONLY", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manager_only: Option<bool>,
    /// Addresses for tasks, fixed when the cluster is made (repeatable) [default: 10.210.0.0/16]
    #[arg(long, env = "WARREN_CLUSTER_RANGE", value_name = "CIDR", value_delimiter = ',')]
    #[arg(value_parser = value::range)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cluster_range: Vec<Ipv4Net>,
    /// The containerd to use [default: found at /run/containerd/containerd.sock, else started by us]
    #[arg(long, env = "WARREN_CONTAINERD_SOCKET", value_name = "PATH")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub containerd_socket: Option<PathBuf>,
    /// CPU that tasks can have, like 1.5 or 1500m [default: all cores]
    #[arg(long, env = "WARREN_CPUS", value_name = "CPUS")]
    #[serde(skip_serializing_if = "Option::is_none", with = "as_text")]
    pub cpus: Option<MilliCpu>,
    /// Memory that tasks can have, like 2GiB [default: all of it]
    #[arg(long, env = "WARREN_MEMORY", value_name = "BYTES")]
    #[serde(skip_serializing_if = "Option::is_none", with = "as_text")]
    pub memory: Option<Bytes>,
    /// The node's name [default: the host name]
    #[arg(long, env = "WARREN_NODE_NAME", value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<NodeName>,
    /// What keeps the manager's log, redb or sled: fixed when the manager is made [default: redb]
    #[arg(long, env = "WARREN_LOG_ENGINE", value_name = "ENGINE")]
    #[serde(skip_serializing_if = "Option::is_none", with = "as_text")]
    pub log_engine: Option<Engine>,
}

/// Quantities in the file as people write them.
mod as_text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<T: Display, S: Serializer>(value: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => to.collect_str(value),
            None => to.serialize_none(),
        }
    }

    pub fn deserialize<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(from)?.parse().map(Some).map_err(de::Error::custom)
    }
}
