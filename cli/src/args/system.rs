//! `warren system ...`: the machine itself.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use warren_daemon::{DirArgs, MetricsArgs};

#[derive(Debug, Subcommand)]
pub enum SystemCommand {
    /// Check whether this machine can run a node; changes nothing
    ///
    /// The flags are those of `manager init` and `worker join`. On a machine that is a node, its stored settings apply.
    /// The exit code is 1 if a check failed.
    Check(SystemCheckArgs),
    /// Run the node of this machine by systemd, from now on and after each restart of the machine
    ///
    /// Writes the unit warren.service, enables it and starts it. The machine must have been made a node by `manager
    /// init`, `manager join` or `worker join`.
    Install(SystemInstallArgs),
    /// Stop the node of this machine and remove its systemd unit; its containers and data stay
    Uninstall(SystemUninstallArgs),
}

#[derive(Debug, Args)]
pub struct SystemCheckArgs {
    #[command(flatten)]
    pub dirs: DirArgs,
    #[command(flatten)]
    pub metrics: MetricsArgs,
    /// Leave out what only tasks need
    #[arg(long)]
    pub manager_only: bool,
    /// Listen address of the manager [default: 0.0.0.0:8080]
    #[arg(long, env = "WARREN_LISTEN", value_name = "IP:PORT")]
    pub listen: Option<SocketAddr>,
    /// Socket of containerd
    #[arg(long, env = "WARREN_CONTAINERD_SOCKET", value_name = "PATH")]
    pub containerd_socket: Option<PathBuf>,
    /// OCI runtime: runc, crun, or a path [default: runc]
    #[arg(long, env = "WARREN_RUNTIME", value_name = "RUNTIME")]
    pub runtime: Option<String>,
    /// UDP port for packets between containers of different nodes [default: 4789]
    #[arg(long, env = "WARREN_VXLAN_PORT", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub vxlan_port: Option<u16>,
    /// UDP port for encrypted packets between nodes, if it is to be checked [default: none, or 51820 on a manager of a
    /// cluster that was created with `--data-plane wireguard`]
    #[arg(long, env = "WARREN_WIREGUARD_PORT", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub wireguard_port: Option<u16>,
}

#[derive(Debug, Args)]
pub struct SystemInstallArgs {
    #[command(flatten)]
    pub dirs: DirArgs,
    /// Do not start the node now, only with the machine
    #[arg(long)]
    pub no_start: bool,
    #[command(flatten)]
    pub unit: UnitDirArgs,
}

#[derive(Debug, Args)]
pub struct SystemUninstallArgs {
    #[command(flatten)]
    pub unit: UnitDirArgs,
}

#[derive(Debug, Args)]
pub struct UnitDirArgs {
    /// Only write or remove the unit file in this directory, without systemd [default: /etc/systemd/system, with
    /// systemd]
    #[arg(long, value_name = "DIR")]
    pub unit_dir: Option<PathBuf>,
}
