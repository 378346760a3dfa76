//! `warren service ...`

use clap::{ArgGroup, Args, Subcommand};
use warren_types::Timestamp;

use super::lists::{Added, Additions, Removals};
use super::spec::SpecArgs;
use super::value::{self, ModeName, Scaling, Tail};

#[derive(Debug, Subcommand)]
pub enum ServiceCommand {
    /// Create a service and wait until all of it runs
    Create(Box<CreateArgs>),
    /// List services
    Ls,
    /// List the tasks of services: where, in which state, why not
    Ps {
        /// Names, ids, or beginnings of ids
        #[arg(required = true, value_name = "SERVICE")]
        services: Vec<String>,
    },
    /// Show all of a service
    Inspect {
        /// A name, an id, or the beginning of one
        #[arg(value_name = "SERVICE")]
        service: String,
    },
    /// Change a service and wait until its tasks are what it says
    Update(Box<UpdateArgs>),
    /// Go back to an earlier revision and wait until the tasks run it
    Rollback(RollbackArgs),
    /// List the revisions of a service, and what each changed
    History {
        /// A name, an id, or the beginning of one
        #[arg(value_name = "SERVICE")]
        service: String,
    },
    /// Show what tasks use, the busiest first, until it is interrupted
    Top {
        /// Names, ids, or beginnings of ids [default: every service]
        #[arg(value_name = "SERVICE")]
        services: Vec<String>,
        /// Show it once, as where standard output is no terminal
        #[arg(long)]
        once: bool,
    },
    /// Print what the tasks of services wrote
    Logs {
        /// Names, ids, or beginnings of ids
        #[arg(required = true, value_name = "SERVICE")]
        services: Vec<String>,
        #[command(flatten)]
        lines: LogArgs,
    },
    /// Change how many replicas services have and wait until they run
    Scale(ScaleArgs),
    /// Remove services and wait until their tasks are gone
    Rm(RemoveArgs),
}

/// What `update --help` says last.
const RULES: &str = "\
What is not said stays as it is. An empty value (--memory=) takes a setting back to its default, and so does a \
--command or --arg whose only word is empty.
Lists first lose what -rm names, then gain; an item with the key of another (name, path in the container) takes \
its place. What is not there is gone already.
--cap-add of a capability that was dropped makes it one of the default ones again, and the other way round.
A health flag changes the check that there is; another kind of check takes its place and keeps its times.
A colon within a path is written \\:, in secrets, configs and volumes a comma \\,";

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("the name").required(true).args(["positional_name", "name"]))]
#[command(group = ArgGroup::new("the image").required(true).args(["image"]))]
#[command(after_help = "A colon within a path is written \\:, in secrets, configs and volumes a comma \\,")]
pub struct CreateArgs {
    /// Name of the service
    #[arg(value_name = "NAME")]
    pub positional_name: Option<String>,
    /// Name of the service, as a flag
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// How tasks are spread: replicated, or global for one on every node that may run it
    #[arg(long, value_name = "MODE", value_parser = value::mode, default_value = "replicated")]
    pub mode: ModeName,
    #[command(flatten)]
    pub spec: SpecArgs,
    #[command(flatten)]
    pub lists: Additions,
    /// Do not wait
    #[arg(long, short)]
    pub detach: bool,
}

#[derive(Debug, Args)]
#[command(after_help = RULES)]
pub struct UpdateArgs {
    /// A name, an id, or the beginning of one
    #[arg(value_name = "SERVICE")]
    pub service: String,
    /// New tasks also where nothing is different
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub spec: SpecArgs,
    #[command(flatten)]
    pub added: Added,
    #[command(flatten)]
    pub removed: Removals,
    /// Do not wait
    #[arg(long, short)]
    pub detach: bool,
}

#[derive(Debug, Args)]
pub struct RollbackArgs {
    /// A name, an id, or the beginning of one
    #[arg(value_name = "SERVICE")]
    pub service: String,
    /// Number of the revision to go back to; see `service history` [default: the one before the current]
    #[arg(long, value_name = "REVISION")]
    pub to: Option<u64>,
    /// Do not wait
    #[arg(long, short)]
    pub detach: bool,
}

/// Which lines of logs.
#[derive(Debug, Clone, Args)]
pub struct LogArgs {
    /// Go on with what is written from now on
    #[arg(long, short)]
    pub follow: bool,
    /// Only so many of the last lines of each task, or all
    #[arg(long, value_name = "N|all", value_parser = value::tail, default_value = "all")]
    pub tail: Tail,
    /// Only lines since then
    #[arg(long, value_name = "DURATION|TIME", value_parser = value::since)]
    pub since: Option<Timestamp>,
    /// Begin each line with when it was written
    #[arg(long, short)]
    pub timestamps: bool,
}

#[derive(Debug, Args)]
pub struct ScaleArgs {
    /// Which services, to how many replicas
    #[arg(required = true, value_name = "SERVICE=N", value_parser = value::scaling)]
    pub wishes: Vec<Scaling>,
    /// Do not wait
    #[arg(long, short)]
    pub detach: bool,
}

#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// Names, ids, or beginnings of ids
    #[arg(required = true, value_name = "SERVICE")]
    pub services: Vec<String>,
    /// Do not wait
    #[arg(long, short)]
    pub detach: bool,
}
