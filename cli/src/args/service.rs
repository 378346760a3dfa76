//! `warren service ...`

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use warren_types::{Bytes, MilliCpu, PublishedPort};

use super::value::{self, Replicas, Scaling, Variable};

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
    /// Change how many replicas services have and wait until they run
    Scale(ScaleArgs),
    /// Remove services and wait until their tasks are gone
    Rm(RemoveArgs),
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("the name").required(true).args(["positional_name", "name"]))]
pub struct CreateArgs {
    /// Name of the service
    #[arg(value_name = "NAME")]
    pub positional_name: Option<String>,
    /// Name of the service, as a flag
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Image to run
    #[arg(long, value_name = "REFERENCE")]
    pub image: String,
    /// How many tasks to run
    #[arg(long, default_value_t = Replicas(1), value_name = "N", allow_negative_numbers = true)]
    pub replicas: Replicas,
    /// How tasks are spread: replicated
    #[arg(long, value_name = "MODE", value_parser = value::mode)]
    pub mode: Option<()>,
    /// Label of the service (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = value::label)]
    pub label: Vec<(String, String)>,
    /// Environment variable; without a value it is taken from this command's environment (repeatable)
    #[arg(long, short, value_name = "NAME[=VALUE]", value_parser = value::variable)]
    pub env: Vec<Variable>,
    /// File with a variable per line; # starts a comment (repeatable)
    #[arg(long, value_name = "FILE")]
    pub env_file: Vec<PathBuf>,
    /// Replaces the image's ENTRYPOINT; one word each (repeatable)
    #[arg(long, value_name = "WORD", alias = "entrypoint", allow_hyphen_values = true)]
    pub command: Vec<String>,
    /// Replaces the image's CMD; one word each (repeatable)
    #[arg(long, value_name = "WORD", allow_hyphen_values = true, conflicts_with = "args")]
    pub arg: Vec<String>,
    /// Replaces the image's CMD: all words after --
    #[arg(last = true, value_name = "ARGS")]
    pub args: Vec<String>,
    /// Most CPU a task may use, like 0.5 or 500m
    #[arg(long, value_name = "CPUS")]
    pub cpus: Option<MilliCpu>,
    /// Most memory a task may use, like 256Mi or 256M
    #[arg(long, value_name = "BYTES")]
    pub memory: Option<Bytes>,
    /// CPU that is set aside for each task
    #[arg(long, value_name = "CPUS")]
    pub reserve_cpus: Option<MilliCpu>,
    /// Memory that is set aside for each task
    #[arg(long, value_name = "BYTES")]
    pub reserve_memory: Option<Bytes>,
    /// Time between the stop signal and SIGKILL
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = value::duration)]
    pub stop_grace: Duration,
    /// Open a port on the nodes that run tasks (repeatable)
    #[arg(long, short, value_name = "[IP:]HOST:CONTAINER[/tcp][,mode=host]", value_parser = value::publish)]
    pub publish: Vec<PublishedPort>,
    /// Do not wait
    #[arg(long, short)]
    pub detach: bool,
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
