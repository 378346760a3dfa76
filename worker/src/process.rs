//! A worker as a program: joining a cluster, running, leaving. `warren-worker` is this alone, `warren worker` the same
//! in the large program, and a hybrid node uses its flags.

mod flags;
mod join;
mod leave;
mod run;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use warren_process::settings::Sections;
use warren_process::{Exit, Failure, NodeSection, PlaceArgs, chain};
use warren_security::MembershipStore;

pub use flags::{Flags, Label};
pub use run::{Setup, check, ready, start};

const WHAT: &str = "the node was not started";
/// Names of the sections of `node.toml`.
const NODE: &str = "node";
const MANAGER: &str = "manager";
const WORKER: &str = "worker";
const JOINED: &str = "joined";
/// The largest archive that `image import` may bring.
const MAX_ARCHIVE: u64 = 16 << 30;

/// What `warren-worker` can be asked.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make this machine a worker of a cluster and run it, or resume what an earlier join made
    Join(JoinArgs),
    /// Run what an earlier `join` made
    Run(RunArgs),
    /// Leave the cluster: tasks are replaced elsewhere first, then the node is forgotten
    Leave(LeaveArgs),
}

/// Flags of `join`.
#[derive(Debug, Args)]
pub struct JoinArgs {
    /// A manager of the cluster
    #[arg(value_name = "HOST:PORT", value_parser = flags::manager)]
    pub address: String,
    /// What lets this machine in: `warren token create --role worker` prints one
    #[arg(long, env = "WARREN_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub token: String,
    /// Where other machines reach this one [default: the address it reaches the manager from]
    #[arg(long, env = "WARREN_ADVERTISE", value_name = "HOST")]
    pub advertise: Option<String>,
    /// Where the node keeps what.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// The worker's own.
    #[command(flatten)]
    pub flags: Flags,
}

/// Flags of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Where the node keeps what.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// The worker's own.
    #[command(flatten)]
    pub flags: Flags,
}

/// Flags of `leave`.
#[derive(Debug, Args)]
pub struct LeaveArgs {
    /// Where the node keeps what.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Give up tasks that cannot run elsewhere, instead of waiting for them
    #[arg(long)]
    pub force: bool,
    /// How long its tasks may take to be replaced
    #[arg(long, default_value = "10m", value_parser = flags::duration, value_name = "DURATION")]
    pub deadline: Duration,
}

/// What is remembered of how the machine joined.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct JoinedSection {
    /// Managers that it knows, each `host:port`.
    managers: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    advertise: Option<String>,
}

/// Everything a worker is started with.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    data_dir: PathBuf,
    node: NodeSection,
    joined: JoinedSection,
    flags: Flags,
}

impl Told {
    /// What an earlier join was told, and what is said now over it; `None` where there was none.
    fn load(place: PlaceArgs, said: Flags) -> Result<Option<Self>, Failure> {
        let PlaceArgs { data_dir, run_dir } = place;
        let Some(kept) = Sections::load(&data_dir)? else { return Ok(None) };
        if kept.section::<toml::Table>(MANAGER)?.is_some() {
            let why = format!("{} is of a manager", data_dir.display());
            let hint = "use `warren manager run`, or choose another --data-dir";
            return Err(Failure::new(Exit::Conflict, WHAT, why, hint));
        }
        let node = kept.section::<NodeSection>(NODE)?.unwrap_or_default();
        let Some(joined) = kept.section::<JoinedSection>(JOINED)? else { return Ok(None) };
        let node = NodeSection { run_dir: run_dir.or(node.run_dir) };
        let flags = said.over(kept.section::<Flags>(WORKER)?.unwrap_or_default());
        Ok(Some(Self { data_dir, node, joined, flags }))
    }

    fn remember(&self) -> Result<(), Failure> {
        let sections = Sections::new(&self.data_dir).with(NODE, &self.node).with(JOINED, &self.joined);
        sections.with(WORKER, &self.flags).remember()
    }

    fn run_dir(&self) -> PathBuf {
        self.node.run_dir()
    }

    /// Holds what makes this machine a member.
    fn membership(&self) -> MembershipStore {
        MembershipStore::new(self.data_dir.join("worker"))
    }
}

fn no_worker(data_dir: &std::path::Path) -> Failure {
    let why = format!("{} holds no worker", data_dir.display());
    Failure::new(
        Exit::NotFound,
        WHAT,
        why,
        "make this machine one with `warren worker join HOST:PORT --token TOKEN`",
    )
}

fn failed(what: &str, error: &dyn std::error::Error, hint: &str) -> Failure {
    Failure::new(Exit::Failed, what, chain(error), hint)
}

/// Does what `command` asks; a worker runs until it is told to stop, or was removed from its cluster.
///
/// # Errors
/// Why not.
pub async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Join(args) => join::join(args).await,
        Command::Run(RunArgs { place, flags }) => {
            let data_dir = place.data_dir.clone();
            let told = Told::load(place, flags)?.ok_or_else(|| no_worker(&data_dir))?;
            run::run_joined(&told, None).await
        }
        Command::Leave(args) => leave::leave(args).await,
    }
}
