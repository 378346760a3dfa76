//! `warren volume ...`

use clap::{Args, Subcommand};
use warren_types::{VolumeDriver, VolumeName};

use super::value;

#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Make a volume; one that a service names is made by itself where its first task comes to
    Create(VolumeCreateArgs),
    /// List volumes, where they are, and who uses them
    Ls {
        /// Ask the nodes how large they are
        #[arg(long)]
        size: bool,
    },
    /// Show all of volumes, and how large they are
    Inspect {
        /// Names, ids, or beginnings of ids
        #[arg(required = true, value_name = "VOLUME")]
        volumes: Vec<String>,
    },
    /// Forget volumes that nothing uses; their data stays on its node
    Rm {
        /// Names, ids, or beginnings of ids
        #[arg(required = true, value_name = "VOLUME")]
        volumes: Vec<String>,
        /// Delete their data as well
        #[arg(long)]
        purge: bool,
    },
    /// Forget every volume that nothing uses; their data stays on its node
    Prune {
        /// Delete their data as well
        #[arg(long)]
        purge: bool,
        /// Do not ask first
        #[arg(long, short, visible_short_alias = 'y')]
        force: bool,
    },
}

#[derive(Debug, Args)]
pub struct VolumeCreateArgs {
    /// What it is called
    #[arg(value_name = "NAME")]
    pub name: VolumeName,
    /// How it is kept: local, a directory of one node
    #[arg(long, value_name = "DRIVER", default_value = "local")]
    pub driver: VolumeDriver,
    /// What the driver is told; local knows uid, gid and mode of the directory, which one that is there keeps
    /// (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = value::label)]
    pub opt: Vec<(String, String)>,
    /// Label (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = value::label)]
    pub label: Vec<(String, String)>,
    /// Node with its data [default: where its first task comes to]
    #[arg(long, value_name = "NAME|ID", default_value = "", hide_default_value = true)]
    pub node: String,
}
