//! `warren node ...`

use clap::{ArgGroup, Args, Subcommand};
use warren_types::{Availability, Taint, TaintSelector};

use super::documents::AsDocumentArgs;
use super::listing::{ListingArgs, PrettyArgs};
use super::value;

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// List nodes
    #[command(alias = "list")]
    Ls(ListingArgs),
    /// Show a node in detail
    Inspect {
        /// Node name, id, id prefix, or self
        #[arg(value_name = "NODE")]
        node: String,
        #[command(flatten)]
        pretty: PrettyArgs,
        #[command(flatten)]
        document: AsDocumentArgs,
    },
    /// List the tasks on nodes
    Ps {
        /// Node names, ids, id prefixes, or self: the node of the manager that answers
        #[arg(default_value = "self", value_name = "NODE")]
        nodes: Vec<String>,
        #[command(flatten)]
        listing: ListingArgs,
    },
    /// Make managers voters; the same as `manager promote`
    Promote {
        /// Node names, ids, id prefixes, or self
        #[arg(required = true, value_name = "NODE")]
        nodes: Vec<String>,
    },
    /// Make managers non-voters; the same as `manager demote`
    Demote {
        /// Node names, ids, id prefixes, or self
        #[arg(required = true, value_name = "NODE")]
        nodes: Vec<String>,
    },
    /// Change the labels, the availability or the taints of a node
    Update(NodeUpdateArgs),
    /// Stop sending new tasks to a node and replace the ones it has on other nodes
    Drain {
        /// Node name, id, or id prefix
        #[arg(value_name = "NODE")]
        node: String,
        /// Return without waiting for the node to be empty
        #[arg(long, short)]
        detach: bool,
    },
    /// Run the checks of nodes now, and report each; fails if a node is not verified
    Verify {
        /// Node names, ids, id prefixes, or self [default: all READY nodes]
        #[arg(value_name = "NODE")]
        nodes: Vec<String>,
    },
    /// Remove nodes that are down or have no tasks
    #[command(alias = "remove")]
    Rm {
        /// Node names, ids, or id prefixes
        #[arg(required = true, value_name = "NODE")]
        nodes: Vec<String>,
        /// Also remove nodes that are up or have tasks; their tasks are orphaned
        #[arg(long, short)]
        force: bool,
    },
}

#[derive(Debug, Default, Args)]
#[command(group = ArgGroup::new("CHANGE").required(true).multiple(true)
    .args(["label_add", "label_rm", "availability", "taint_add", "taint_rm"]))]
pub struct NodeUpdateArgs {
    /// Node name, id, or id prefix
    #[arg(value_name = "NODE")]
    pub node: String,
    /// Set a label (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = value::label)]
    pub label_add: Vec<(String, String)>,
    /// Remove a label (repeatable)
    #[arg(long, value_name = "KEY")]
    pub label_rm: Vec<String>,
    /// Set the availability: active (accept tasks), pause (no new tasks), drain (no tasks)
    #[arg(long, value_name = "AVAILABILITY")]
    pub availability: Option<Availability>,
    /// Set a taint in place of that with its key and effect; effects: NoSchedule, PreferNoSchedule, NoExecute
    /// (repeatable)
    #[arg(long, value_name = "KEY[=VALUE]:EFFECT")]
    pub taint_add: Vec<Taint>,
    /// Remove the taints of a key, or those of this value and effect; before --taint-add (repeatable)
    #[arg(long, value_name = "KEY[=VALUE][:EFFECT]")]
    pub taint_rm: Vec<TaintSelector>,
    /// Return without waiting for a drained node to be empty
    #[arg(long, short)]
    pub detach: bool,
}
