//! A manager as a program: its flags, what is remembered of them, how it starts, greets and ends. `warren-manager` is
//! this alone; `warren manager` puts a worker beside it.

mod advertise;
mod context;
mod flags;
mod plan;

use clap::{Args, Subcommand};
use warren_process::settings::Sections;
use warren_process::{Exit, Failure, Machine, MetricsArgs, NodeSection, PlaceArgs, Signals, chain};
use warren_telemetry::Telemetry;

use crate::config::{Config, LocalNode};
use crate::manager::{Manager, StartError};
use crate::raft::restore::RestoreError;

pub use advertise::Advertise;
pub use context::write_context;
pub use flags::Flags;
pub use plan::Plan;

const WHAT: &str = "the node was not started";
/// Names of the sections of `node.toml`.
const NODE: &str = "node";
const MANAGER: &str = "manager";
const WORKER: &str = "worker";
/// What a manager is called among the parts of a node.
pub const PART: &str = "manager";

/// What `warren-manager` can be asked.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a cluster on this machine and run its first manager, or resume what an earlier init made
    Init(CommandArgs),
    /// Run what an earlier `init` made
    Run(CommandArgs),
}

/// Flags of `init` and `run`.
#[derive(Debug, Clone, Args)]
pub struct CommandArgs {
    /// Where the node keeps what.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Where it shows whether it is well.
    #[command(flatten)]
    pub metrics: MetricsArgs,
    /// The manager's own.
    #[command(flatten)]
    pub flags: Flags,
}

/// What a manager is started with: what is said now, else what was said at init.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Of the node as a whole.
    pub node: NodeSection,
    /// Of the manager.
    pub flags: Flags,
}

impl Told {
    /// `create` may make a cluster where there is none.
    ///
    /// # Errors
    /// There is no cluster, or it was made with what cannot be changed any more.
    pub fn merge(
        remembered: Option<&Sections>,
        place: &PlaceArgs,
        metrics: MetricsArgs,
        said: Flags,
        create: bool,
    ) -> Result<Self, Failure> {
        let said_node = NodeSection::said(place, metrics);
        let old = remembered.map(|kept| kept.section::<Flags>(MANAGER)).transpose()?.flatten();
        let Some(old) = old else {
            if create {
                return Ok(Self { node: said_node, flags: said });
            }
            let why = format!("{} holds no manager", place.data_dir.display());
            return Err(Failure::new(Exit::NotFound, WHAT, why, "make one with `warren manager init`"));
        };
        let node = remembered.map(|kept| kept.section::<NodeSection>(NODE)).transpose()?.flatten();
        Ok(Self { node: said_node.over(node.unwrap_or_default()), flags: said.over(old)? })
    }

    /// Its sections, to be remembered.
    #[must_use]
    pub fn put(&self, sections: Sections) -> Sections {
        sections.with(NODE, &self.node).with(MANAGER, &self.flags)
    }
}

/// Starts a manager, and returns once it leads and serves.
///
/// # Errors
/// Why it does not; nothing keeps running then.
pub async fn start(plan: &Plan, node: Option<LocalNode>, create: bool) -> Result<Manager, Failure> {
    let config = Config {
        data_dir: plan.data_dir.clone(),
        run_dir: plan.run_dir.clone(),
        listen: plan.listen,
        ranges: plan.ranges.clone(),
        node,
        log_engine: plan.log_engine,
    };
    Manager::start(config, create).await.map_err(|error| not_started(&error))
}

/// Resolves when the manager cannot go on.
pub async fn failed(manager: &mut Manager) -> Failure {
    let error = manager.failed().await;
    Failure::new(Exit::Failed, "the manager cannot go on", chain(&error), "see its log above")
}

/// Runs a manager alone until it is told to stop.
///
/// # Errors
/// Why it was not started, or could not go on.
pub async fn run(command: Command) -> Result<(), Failure> {
    let (args, create) = match command {
        Command::Init(args) => (args, true),
        Command::Run(args) => (args, false),
    };
    let remembered = Sections::load(&args.place.data_dir)?;
    if let Some(kept) = &remembered
        && kept.section::<toml::Table>(WORKER)?.is_some()
    {
        let why = format!("{} is of a node that also runs tasks", args.place.data_dir.display());
        return Err(Failure::new(Exit::Conflict, WHAT, why, "use `warren manager run`"));
    }
    let told = Told::merge(remembered.as_ref(), &args.place, args.metrics, args.flags, create)?;
    let plan = Plan::new(args.place.data_dir, &told, &Machine::look()?);
    let mut signals = Signals::listen(WHAT)?;
    let telemetry = Telemetry::of(&[PART]);
    // Said before a cluster is made: that the address is taken.
    let _server = plan.metrics_listen.serve(&telemetry).await?;
    let mut manager = start(&plan, None, create).await?;
    telemetry.add(PART, manager.telemetry());
    let ended = serve(&plan, create.then_some(&told), &mut manager, &mut signals).await;
    manager.stop().await;
    ended
}

async fn serve(
    plan: &Plan,
    init: Option<&Told>,
    manager: &mut Manager,
    signals: &mut Signals,
) -> Result<(), Failure> {
    if let Some(told) = init {
        told.put(Sections::new(&plan.data_dir)).remember()?;
        let text = plan.greeting(manager) + "this machine runs no tasks (a manager only)\n";
        // Whoever started it may not read what it says, and it has other work than that.
        let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
    }
    tokio::select! {
        () = signals.next() => Ok(()),
        failure = failed(manager) => Err(failure),
    }
}

fn not_started(error: &StartError) -> Failure {
    let exit = match error {
        StartError::Restore(RestoreError::Log(warren_log::Error::OtherEngine { .. })) => Exit::Conflict,
        StartError::Log(warren_log::Error::InUse { .. }) => Exit::Conflict,
        StartError::Log(error) if error.is_out_of_space() => Exit::Failed,
        StartError::Log(warren_log::Error::NotWritable { .. }) => Exit::Denied,
        _ => Exit::Failed,
    };
    Failure::new(exit, WHAT, chain(error), "")
}

#[cfg(test)]
mod tests;
