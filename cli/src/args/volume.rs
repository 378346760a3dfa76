//! `warren volume ...`

use clap::{Args, Subcommand};
use warren_types::{VolumeDriver, VolumeName};

use super::documents::AsDocumentArgs;
use super::listing::{ListingArgs, PrettyArgs};
use super::value;

#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Create a volume; a volume that a service names is created on first use
    Create(VolumeCreateArgs),
    /// List volumes with their node and users
    #[command(alias = "list")]
    Ls {
        /// Ask the nodes for the sizes
        #[arg(long)]
        size: bool,
        /// Also list data that remains of removed volumes, with its node and size
        #[arg(long, short)]
        all: bool,
        #[command(flatten)]
        listing: ListingArgs,
    },
    /// Show volumes in detail, with their sizes
    Inspect {
        /// Volume names, ids, or id prefixes
        #[arg(required = true, value_name = "VOLUME")]
        volumes: Vec<String>,
        #[command(flatten)]
        pretty: PrettyArgs,
        #[command(flatten)]
        document: AsDocumentArgs,
    },
    /// Remove volumes that nothing uses; the data stays on the node, listed by `ls --all`
    #[command(alias = "remove")]
    Rm {
        /// Volume names, ids, or id prefixes
        #[arg(required = true, value_name = "VOLUME")]
        volumes: Vec<String>,
        /// Delete the data as well
        #[arg(long)]
        purge: bool,
    },
    /// Delete volumes that nothing uses with their data, also what remains of removed ones
    Purge {
        /// Volume names, ids, or id prefixes
        #[arg(required = true, value_name = "VOLUME")]
        volumes: Vec<String>,
        /// Delete data of these names on this node, also if no volume has it
        #[arg(long, value_name = "NAME|ID")]
        node: Option<String>,
    },
    /// Remove all volumes that nothing uses; the data stays on the node
    Prune {
        /// Delete the data as well
        #[arg(long)]
        purge: bool,
        /// Do not ask for confirmation
        #[arg(long, short, visible_short_alias = 'y')]
        force: bool,
    },
}

#[derive(Debug, Args)]
pub struct VolumeCreateArgs {
    /// Name
    #[arg(value_name = "NAME")]
    pub name: VolumeName,
    /// Volume driver: local (a directory on one node)
    #[arg(long, value_name = "DRIVER", default_value = "local")]
    pub driver: VolumeDriver,
    /// Set a driver option; local supports uid, gid and mode for a new directory (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = value::label)]
    pub opt: Vec<(String, String)>,
    /// Set a label (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = value::label)]
    pub label: Vec<(String, String)>,
    /// Node that holds the data [default: the node of the first task]
    #[arg(long, value_name = "NAME|ID", default_value = "", hide_default_value = true)]
    pub node: String,
    /// Take over the data that remains of a removed volume of this name
    #[arg(long)]
    pub reuse: bool,
}
