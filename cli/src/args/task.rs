//! `warren task ...`

use clap::Subcommand;

use super::exec::{EXEC_NOTES, ExecArgs};
use super::listing::{ListingArgs, PrettyArgs};
use super::service::LogArgs;

#[derive(Debug, Subcommand)]
pub enum TaskCommand {
    /// List tasks
    #[command(alias = "list")]
    Ls {
        /// Show only tasks of this service
        #[arg(long, value_name = "NAME|ID", default_value = "", hide_default_value = true)]
        service: String,
        /// Show only tasks on this node
        #[arg(long, value_name = "NAME|ID", default_value = "", hide_default_value = true)]
        node: String,
        #[command(flatten)]
        listing: ListingArgs,
    },
    /// Show a task in detail
    Inspect {
        /// Task id, id prefix, or SERVICE.SLOT
        #[arg(value_name = "TASK")]
        task: String,
        #[command(flatten)]
        pretty: PrettyArgs,
    },
    /// Print the logs of a task
    Logs {
        /// Task id, id prefix, or SERVICE.SLOT
        #[arg(value_name = "TASK")]
        task: String,
        #[command(flatten)]
        lines: LogArgs,
    },
    /// Run a command in the container of a running task
    #[command(after_help = EXEC_NOTES)]
    Exec {
        /// Task id, id prefix, or SERVICE.SLOT
        #[arg(value_name = "TASK")]
        task: String,
        #[command(flatten)]
        exec: ExecArgs,
    },
}
