//! `warren task ...`

use clap::Subcommand;
use warren_types::Signal;

use super::exec::{EXEC_NOTES, ExecArgs};
use super::forward::{FORWARD_NOTES, ForwardArgs};
use super::listing::{ListingArgs, PrettyArgs};
use super::service::LogArgs;

/// Notes at the end of `task cp --help`.
const COPY_NOTES: &str = "\
Paths in a container begin at its root; links do not lead out of it. If DESTINATION is a directory, SOURCE is copied \
into it under its name, and the content of SOURCE if that ends with /. (a dot); otherwise it is copied as DESTINATION, \
whose directory must exist. Owners, modes, times and links are kept, owners on this machine only if root copies.
Devices, sockets and named pipes are not copied. The exit code is 0 if everything was copied, 1 if the copy failed or \
left something out, 3 if a path or the task does not exist, 4 if what is found does not fit.";

/// Notes at the end of `task restart --help`.
const RESTART_NOTES: &str = "\
The task is withdrawn from its clients and gets its stop signal, as with an update; it does not count as failed. The \
new task may run on another node. The exit code is 1 if the new task fails, 4 if the task has ended already, and 7 if \
none runs after 5 minutes.";

/// Notes at the end of `task signal --help`.
const SIGNAL_NOTES: &str = "\
If the signal ends the task, its service restarts it as its restart policy says. To have another task take its place, \
use `warren task restart`.";

/// Notes at the end of `task attach --help`.
const ATTACH_NOTES: &str = "\
The exit code is that of the task; a signal to this command ends the command alone. With -i, the end of standard \
input is the end of the input of the task, unless the task has a terminal; otherwise the input stays open for the next \
client. `task exec -it` runs a command of its own.";

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
    /// Stop a task and wait until another one runs in its slot
    #[command(after_help = RESTART_NOTES)]
    Restart {
        /// Task id, id prefix, or SERVICE.SLOT
        #[arg(value_name = "TASK")]
        task: String,
        /// Return without waiting
        #[arg(long, short)]
        detach: bool,
    },
    /// Print the output of a running task from now on, until it ends
    #[command(after_help = ATTACH_NOTES)]
    Attach {
        /// Task id, id prefix, or SERVICE.SLOT
        #[arg(value_name = "TASK")]
        task: String,
        /// Pass standard input on to the task, whose service must have --stdin
        #[arg(long, short)]
        interactive: bool,
    },
    /// List the processes of a running task
    Processes {
        /// Task id, id prefix, or SERVICE.SLOT
        #[arg(value_name = "TASK")]
        task: String,
    },
    /// Send a signal to the first process of a running task
    #[command(after_help = SIGNAL_NOTES)]
    Signal {
        /// Task id, id prefix, or SERVICE.SLOT
        #[arg(value_name = "TASK")]
        task: String,
        /// Name or number, like HUP or SIGUSR1
        #[arg(long, short, value_name = "SIGNAL")]
        signal: Signal,
    },
    /// Copy files from or to the container of a running task
    #[command(after_help = COPY_NOTES)]
    Cp {
        /// Follow a link at SOURCE; links in a directory are always copied as links
        #[arg(short = 'L', long)]
        follow_link: bool,
        /// TASK:PATH, a path on this machine, or - for a tar archive on standard input
        #[arg(value_name = "SOURCE")]
        source: String,
        /// TASK:PATH, a path on this machine, or - for a tar archive on standard output
        #[arg(value_name = "DESTINATION")]
        destination: String,
    },
    /// Forward local ports to ports of a running task
    #[command(after_help = FORWARD_NOTES)]
    PortForward {
        /// Task id, id prefix, or SERVICE.SLOT
        #[arg(value_name = "TASK")]
        task: String,
        #[command(flatten)]
        ports: ForwardArgs,
    },
}
