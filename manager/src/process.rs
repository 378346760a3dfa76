//! A manager as a program: its flags, what is remembered of them, how it starts, greets and ends. `warren-manager` is
//! this alone; `warren manager` puts a worker beside it.

mod context;
mod flags;
mod hint;
mod join;
mod plan;

use std::path::Path;

use clap::{Args, Subcommand};
use warren_log::DataDir;
use warren_process::settings::Sections;
use warren_process::{Exit, Failure, Machine, MetricsArgs, NodeSection, PlaceArgs, Signals, chain};
use warren_security::{Credentials, Roots};
use warren_telemetry::Telemetry;
use warren_types::{ManagerAddress, NodeName};

use crate::ca::agent_in;
use crate::config::{Config, LocalNode};
use crate::manager::{Failed, Manager, StartError};
use crate::raft::restore::RestoreError;
use crate::recovery::alone::{self, AloneError};
use crate::recovery::restore::Whom;
use crate::recovery::seat::{self, Standing};

pub use crate::advertise::Advertise;
pub use context::{keep_up, told_context};
pub use flags::Flags;
pub use join::{JoinWish, Joined, join};
pub use plan::Plan;

const WHAT: &str = "the node was not started";
const NONE_ANY_MORE: &str = "this machine is not a manager of its cluster any more";
/// Names of the sections of `node.toml`.
const NODE: &str = "node";
/// Of what a manager was told.
pub const MANAGER: &str = "manager";
const WORKER: &str = "worker";
/// Of a machine that joined as a worker.
const JOINED: &str = "joined";
/// What a manager is called among the parts of a node.
pub const PART: &str = "manager";

/// What `warren-manager` can be asked.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a cluster on this machine and run its first manager, or resume what an earlier init made
    Init {
        /// How to begin.
        #[command(flatten)]
        init: InitArgs,
        /// What to run.
        #[command(flatten)]
        args: CommandArgs,
    },
    /// Make this machine a further manager of a cluster and run it, or resume what an earlier join made
    Join {
        /// Which cluster.
        #[command(flatten)]
        join: JoinArgs,
        /// What to run.
        #[command(flatten)]
        args: CommandArgs,
    },
    /// Run what an earlier `init` or `join` made
    Run(CommandArgs),
}

/// Flags of `init` alone.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub struct InitArgs {
    /// Go on without the other managers, which are lost for good: whatever this one knows becomes the cluster. Starts
    /// nothing; `manager run` does, after it
    #[arg(long)]
    pub force_new_cluster: bool,
}

/// Flags of `join` alone.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct JoinArgs {
    /// A manager of the cluster
    #[arg(value_name = "HOST:PORT")]
    pub address: ManagerAddress,
    /// What lets this machine in: `warren token create --role manager` prints one
    #[arg(long, env = "WARREN_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub token: String,
}

/// Flags of every command.
#[derive(Debug, Clone, Args)]
pub struct CommandArgs {
    /// Where the node keeps what.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Where it shows whether it is well.
    #[command(flatten)]
    pub metrics: MetricsArgs,
    /// What people call this manager [default: the host name]
    #[arg(long, env = "WARREN_NODE_NAME", value_name = "NAME")]
    pub node_name: Option<NodeName>,
    /// The manager's own.
    #[command(flatten)]
    pub flags: Flags,
}

/// Why a manager is started.
#[derive(Debug, Clone)]
pub enum Occasion {
    /// To be the first of a cluster, if it is none yet.
    Init,
    /// To be a further one of a cluster, if it is none yet.
    Join(JoinArgs),
    /// To go on as what it is.
    Run,
}

impl Occasion {
    /// What is said then counts from then on: it makes the machine a manager, or is repeated to say something else.
    pub fn is_told(&self) -> bool {
        !matches!(self, Self::Run)
    }
}

/// What is to be told once the manager runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// It leads a cluster.
    Founded,
    /// It is a further manager of one, as this says.
    Joined(String),
    /// It is what it was.
    Resumed,
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
    /// What is said now, over what was said before. Whether there may be nothing yet says `occasion`.
    ///
    /// # Errors
    /// There is no manager, the machine is a worker, or it was made with what cannot be changed any more.
    pub fn merge(
        remembered: Option<&Sections>,
        place: &PlaceArgs,
        metrics: MetricsArgs,
        said: Flags,
        occasion: &Occasion,
    ) -> Result<Self, Failure> {
        let said_node = NodeSection::said(place, metrics);
        if remembered.map(|kept| kept.section::<toml::Table>(JOINED)).transpose()?.flatten().is_some() {
            let why = format!("{} is of a worker", place.data_dir.display());
            let hint = "leave with `warren worker leave` first, or choose another --data-dir";
            return Err(Failure::new(Exit::Conflict, WHAT, why, hint));
        }
        let old = remembered.map(|kept| kept.section::<Flags>(MANAGER)).transpose()?.flatten();
        let Some(old) = old else {
            return match occasion {
                Occasion::Init => Ok(Self { node: said_node, flags: said }),
                Occasion::Join(_) => said.for_joining().map(|flags| Self { node: said_node, flags }),
                Occasion::Run => {
                    let why = format!("{} holds no manager", place.data_dir.display());
                    let hint = "make one with `warren manager init` or `warren manager join`";
                    Err(Failure::new(Exit::NotFound, WHAT, why, hint))
                }
            };
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

/// Makes the machine a manager, where it is none yet and `occasion` asks for it.
///
/// # Errors
/// Why it is none; trying again completes what was begun.
pub async fn begin(plan: &Plan, occasion: &Occasion) -> Result<Begun, Failure> {
    match occasion {
        Occasion::Run => Ok(Begun::Resumed),
        Occasion::Init => Ok(Begun::Founded),
        Occasion::Join(JoinArgs { address, token }) => {
            let (advertised, listen) = (plan.advertised_before()?, plan.listen);
            let wish = JoinWish {
                data_dir: &plan.data_dir,
                manager: address,
                token,
                name: &plan.name,
                address: &advertised,
                listen: Some(listen),
            };
            match join(wish).await? {
                Joined::Anew { name, cluster } => {
                    Ok(Begun::Joined(format!("manager {name} joined cluster {cluster}\n")))
                }
                Joined::Before => Ok(Begun::Resumed),
            }
        }
    }
}

/// Lets a stopped manager go on without the others, and says what became of it. Nothing is started: done at every
/// start, it would make an old log the cluster again and again.
///
/// # Errors
/// Why it does not; nothing was changed.
pub async fn go_on_alone(plan: &Plan) -> Result<String, Failure> {
    let whom = Whom { name: plan.name.clone(), address: plan.advertised_before()? };
    let (data_dir, engine) = (plan.data_dir.clone(), plan.log_engine);
    let went = tokio::task::spawn_blocking(move || {
        alone::go_on(&data_dir, engine, whom, std::time::SystemTime::now())
    });
    let what = "no new cluster was made of this manager";
    match went.await.expect("reading a log does not panic") {
        Ok(alone) => Ok(hint::after_force(alone, &plan.data_dir)),
        Err(error) => {
            let exit = match error {
                AloneError::NoManager(_) => Exit::NotFound,
                AloneError::NoCluster | AloneError::Removed => Exit::Conflict,
                AloneError::Log(warren_log::Error::InUse { .. }) => Exit::Conflict,
                _ => Exit::Failed,
            };
            Err(Failure::new(exit, what, chain(&error), hint::after_refused_force(&error, &plan.data_dir)))
        }
    }
}

/// Starts a manager, and returns once it serves.
///
/// # Errors
/// Why it does not; nothing keeps running then.
pub async fn start(plan: &Plan, node: Option<LocalNode>, begun: &Begun) -> Result<Manager, Failure> {
    let config = Config {
        data_dir: plan.data_dir.clone(),
        run_dir: plan.run_dir.clone(),
        listen: plan.listen,
        advertise: plan.advertise(),
        name: plan.name.clone(),
        ranges: plan.ranges.clone(),
        node,
        log_engine: plan.log_engine,
        accept_data_loss: plan.accept_data_loss,
    };
    let started = Manager::start(config, *begun == Begun::Founded).await;
    started.map_err(|error| not_started(&error, &plan.data_dir))
}

/// Resolves when the manager cannot go on.
pub async fn failed(plan: &Plan, manager: &mut Manager) -> Failure {
    match manager.failed().await {
        Failed::Removed => removed(&plan.data_dir),
        error @ Failed::Overtaken(_) => overtaken(&error, &plan.data_dir),
        Failed::Driver(error) => {
            let hint = hint::after_end(&error, &plan.data_dir);
            Failure::new(Exit::Failed, "the manager cannot go on", chain(&error), hint)
        }
    }
}

/// What the node of a manager showed that its cluster removed, and whom it trusted; `None` of any other machine, and
/// where the manager was none long enough to have a node. Changes nothing.
///
/// # Errors
/// The manager's directory cannot be read.
pub fn removed_node(data_dir: &Path) -> Result<Option<(Credentials, Roots)>, Failure> {
    node_if(data_dir, |standing| matches!(standing, Standing::Removed(_)))
}

/// The same of a manager that its cluster went on without. People may want that one back, and with it what it runs.
///
/// # Errors
/// The manager's directory cannot be read.
pub fn overtaken_node(data_dir: &Path) -> Result<Option<(Credentials, Roots)>, Failure> {
    node_if(data_dir, |standing| matches!(standing, Standing::Overtaken(..)))
}

fn node_if(
    data_dir: &Path,
    wanted: impl Fn(&Standing) -> bool,
) -> Result<Option<(Credentials, Roots)>, Failure> {
    let unusable = |error: &dyn std::error::Error| {
        Failure::new(Exit::Failed, WHAT, chain(error), "check the data directory")
    };
    let dir = data_dir.join("manager");
    let standing = seat::look(&dir).map_err(|error| unusable(&error))?;
    if !wanted(&standing) {
        return Ok(None);
    }
    agent_in(&dir).map_err(|error| unusable(&error))
}

fn removed(data_dir: &Path) -> Failure {
    let why = "it was removed with `warren manager rm`, or replaced by another machine at its address";
    Failure::new(Exit::NotFound, NONE_ANY_MORE, why, hint::after_removal(data_dir))
}

fn overtaken(error: &dyn std::error::Error, data_dir: &Path) -> Failure {
    Failure::new(Exit::NotFound, NONE_ANY_MORE, error, hint::after_overtaking(data_dir))
}

/// Runs a manager alone until it is told to stop.
///
/// # Errors
/// Why it was not started, or could not go on.
pub async fn run(command: Command) -> Result<(), Failure> {
    let (args, occasion, alone) = match command {
        Command::Init { init, args } => (args, Occasion::Init, init.force_new_cluster),
        Command::Join { join, args } => (args, Occasion::Join(join), false),
        Command::Run(args) => (args, Occasion::Run, false),
    };
    let CommandArgs { place, metrics, node_name, flags } = args;
    let remembered = Sections::load(&place.data_dir)?;
    if let Some(kept) = &remembered
        && kept.section::<toml::Table>(WORKER)?.is_some()
        && kept.section::<toml::Table>(MANAGER)?.is_some()
    {
        let why = format!("{} is of a node that also runs tasks", place.data_dir.display());
        return Err(Failure::new(Exit::Conflict, WHAT, why, "use `warren manager run`"));
    }
    let flags = Flags { name: node_name, ..flags };
    let told = Told::merge(remembered.as_ref(), &place, metrics, flags, &occasion)?;
    let plan = Plan::new(place.data_dir, &told, &Machine::look()?)?;
    if alone {
        let text = go_on_alone(&plan).await?;
        told.put(Sections::new(&plan.data_dir)).remember()?;
        // It is done, whether anybody reads that.
        let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
        return Ok(());
    }
    let mut signals = Signals::listen(WHAT)?;
    let telemetry = Telemetry::of(&[PART]);
    // Said before a cluster is made: that the address is taken.
    let served = plan.metrics_listen.serve(&telemetry).await;
    let _server = served.map_err(|failure| or_in_use(&plan.data_dir, failure))?;
    let begun = begin(&plan, &occasion).await?;
    // Also where nothing new begins: an earlier try may have been cut off before this.
    if occasion.is_told() {
        told.put(Sections::new(&plan.data_dir)).remember()?;
    }
    let mut manager = start(&plan, None, &begun).await?;
    telemetry.add(PART, manager.telemetry());
    let ended = serve(&plan, &begun, &mut manager, &mut signals).await;
    manager.stop().await;
    ended
}

async fn serve(
    plan: &Plan,
    begun: &Begun,
    manager: &mut Manager,
    signals: &mut Signals,
) -> Result<(), Failure> {
    if let Some(text) = plan.greeting(manager, begun) {
        let text = text + "this machine runs no tasks (a manager only)\n";
        // Whoever started it may not read what it says, and it has other work than that.
        let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
    }
    let kept_up = keep_up(plan, manager);
    tokio::select! {
        () = signals.next() => Ok(()),
        failure = failed(plan, manager) => Err(failure),
        never = kept_up => match never {},
    }
}

/// `failure`, unless it comes from this: another process uses the data directory, and what belongs to that node.
pub fn or_in_use(data_dir: &Path, failure: Failure) -> Failure {
    // One that was never used is not made for the question.
    let lock = data_dir.join("lock").exists().then(|| DataDir::open(data_dir));
    match lock {
        Some(Err(error @ warren_log::Error::InUse { .. })) => not_started(&StartError::Log(error), data_dir),
        _ => failure,
    }
}

fn not_started(error: &StartError, data_dir: &Path) -> Failure {
    let exit = match error {
        StartError::Restore(RestoreError::Log(warren_log::Error::OtherEngine { .. })) => Exit::Conflict,
        StartError::Log(warren_log::Error::InUse { .. }) => Exit::Conflict,
        StartError::Log(error) if error.is_out_of_space() => Exit::Failed,
        StartError::Log(warren_log::Error::NotWritable { .. }) => Exit::Denied,
        StartError::Removed => return removed(data_dir),
        StartError::Overtaken(_) => return overtaken(error, data_dir),
        StartError::Begun(_) => Exit::Conflict,
        _ => Exit::Failed,
    };
    let hint = match error {
        StartError::Driver(error) => hint::after_end(error, data_dir),
        _ => String::new(),
    };
    Failure::new(exit, WHAT, chain(error), hint)
}

#[cfg(test)]
mod tests;
