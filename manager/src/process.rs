//! The manager as a program: flags, stored settings, start, output and exit. `warren-manager` is only this;
//! `warren manager` adds a worker.

mod context;
mod flags;
mod hints;
mod join;
mod setup;
mod unlock;

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use clap::{Args, Subcommand};
use warren_bootstrap::ca::load_agent;
use warren_bootstrap::force_new_cluster::{self, ForceNewClusterError};
use warren_bootstrap::member_identity::{self, LocalMemberStatus};
use warren_bootstrap::restore::ManagerContact;
use warren_daemon::node_file::NodeFile;
use warren_daemon::{
    CommandError, DirArgs, ExitKind, HostInfo, MetricsArgs, NodeSection, ShutdownSignals, error_chain,
    notify_ready,
};
use warren_log::DataDir;
use warren_registry::RegistryClients;
use warren_security::{Credentials, Roots, UnlockKey};
use warren_store::raft::open::OpenStoreError;
use warren_telemetry::Telemetry;
use warren_types::{ManagerAddress, NodeName};
use zeroize::Zeroizing;

use crate::config::{LocalNode, ManagerConfig};
use crate::manager::{Manager, ManagerFailure, ManagerStartError};

pub use crate::advertise::AdvertiseAddress;
pub use context::{keep_contexts_current, write_admin_context};
pub use flags::{DockerSocketPath, ManagerFlags};
pub use join::{JoinParams, ManagerJoinOutcome, join};
pub use setup::{DEFAULT_LISTEN, ManagerSetup};
pub use unlock::{LockState, await_unlock, needed_unlock_key};

const START_FAILED: &str = "the node was not started";
const NOT_A_MEMBER: &str = "this machine is not a manager of its cluster any more";
/// Section names of `node.toml`.
const NODE_SECTION: &str = "node";
/// Section of the manager's settings.
pub const MANAGER_SECTION: &str = "manager";
const WORKER_SECTION: &str = "worker";
/// Section of a machine that joined as a worker.
const JOINED_SECTION: &str = "joined";
/// The most bytes that are read for an unlock key.
const MAX_UNLOCK_KEY_INPUT: usize = 256;
/// Name of the manager among the components of a node.
pub const COMPONENT: &str = "manager";

/// The commands of `warren-manager`.
#[derive(Debug, Subcommand)]
pub enum ManagerCommand {
    /// Create a cluster on this machine and run its first manager, or resume an earlier init
    Init {
        /// Flags of the creation.
        #[command(flatten)]
        init: InitArgs,
        /// Flags of the manager.
        #[command(flatten)]
        args: CommandArgs,
    },
    /// Add this machine to a cluster as a manager and run it, or resume an earlier join
    Join {
        /// The cluster to join.
        #[command(flatten)]
        join: ManagerJoinArgs,
        /// Flags of the manager.
        #[command(flatten)]
        args: CommandArgs,
    },
    /// Run the manager that an earlier `init` or `join` set up
    Run(CommandArgs),
}

/// Flags of `init` only.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub struct InitArgs {
    /// Create a new cluster from the state of this manager; the other managers are lost for good. Does not
    /// start the manager.
    #[arg(long)]
    pub force_new_cluster: bool,
}

/// Flags of `join` only.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct ManagerJoinArgs {
    /// Address of a manager of the cluster
    #[arg(value_name = "HOST:PORT")]
    pub address: ManagerAddress,
    /// Join token; print one with `warren token create --role manager`
    #[arg(long, env = "WARREN_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub token: String,
}

/// Flags of every command.
#[derive(Debug, Clone, Args)]
pub struct CommandArgs {
    /// Directories of the node.
    #[command(flatten)]
    pub paths: DirArgs,
    /// Metrics and health endpoint.
    #[command(flatten)]
    pub metrics: MetricsArgs,
    /// Name of this manager [default: the host name]
    #[arg(long, env = "WARREN_NODE_NAME", value_name = "NAME")]
    pub node_name: Option<NodeName>,
    /// Allow plain HTTP to this registry (repeatable)
    #[arg(long, env = "WARREN_INSECURE_REGISTRY", value_name = "HOST:PORT", value_delimiter = ',')]
    pub insecure_registry: Vec<String>,
    /// Flags of the manager itself.
    #[command(flatten)]
    pub flags: ManagerFlags,
}

/// Why a manager is started.
#[derive(Debug, Clone)]
pub enum ManagerStartReason {
    /// Create a cluster, unless the machine is a manager already.
    Init,
    /// Join a cluster, unless the machine is a manager already.
    Join(ManagerJoinArgs),
    /// Resume the existing manager.
    Run,
}

impl ManagerStartReason {
    /// Whether new settings are stored: the command creates the manager, or is repeated to change settings.
    pub fn accepts_new_settings(&self) -> bool {
        !matches!(self, Self::Run)
    }
}

/// The result of setting up the manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManagerStartOutcome {
    /// It leads a new cluster.
    Initialized,
    /// It joined a cluster; the text for the user.
    Joined(String),
    /// It was a manager already.
    Resumed,
}

/// The effective settings: flags of this command, else those stored at init.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagerSettings {
    /// Settings of the node.
    pub node: NodeSection,
    /// Settings of the manager.
    pub flags: ManagerFlags,
}

impl ManagerSettings {
    /// Merges the given flags over the stored ones. `occasion` decides whether stored settings must exist.
    ///
    /// # Errors
    /// There is no manager, the machine is a worker, or a fixed setting differs.
    pub fn merge(
        stored: Option<&NodeFile>,
        dirs: &DirArgs,
        metrics: MetricsArgs,
        given: ManagerFlags,
        occasion: &ManagerStartReason,
    ) -> Result<Self, CommandError> {
        let given_node = NodeSection::from_args(dirs, metrics);
        if stored.map(|kept| kept.section::<toml::Table>(JOINED_SECTION)).transpose()?.flatten().is_some() {
            let why = format!("{} belongs to a worker", dirs.data_dir.display());
            let hint = "leave with `warren worker leave` first, or choose another --data-dir";
            return Err(CommandError::new(ExitKind::Conflict, START_FAILED, why, hint));
        }
        let old = stored.map(|kept| kept.section::<ManagerFlags>(MANAGER_SECTION)).transpose()?.flatten();
        let Some(old) = old else {
            return match occasion {
                ManagerStartReason::Init => Ok(Self { node: given_node, flags: given }),
                ManagerStartReason::Join(_) => {
                    given.check_join().map(|flags| Self { node: given_node, flags })
                }
                ManagerStartReason::Run => {
                    let why = format!("{} has no manager", dirs.data_dir.display());
                    let hint = "create one with `warren manager init` or `warren manager join`";
                    Err(CommandError::new(ExitKind::NotFound, START_FAILED, why, hint))
                }
            };
        };
        let node = stored.map(|kept| kept.section::<NodeSection>(NODE_SECTION)).transpose()?.flatten();
        Ok(Self { node: given_node.or(node.unwrap_or_default()), flags: given.merge_over(old)? })
    }

    /// Adds its sections to the file.
    #[must_use]
    pub fn add_to(&self, sections: NodeFile) -> NodeFile {
        sections.with_section(NODE_SECTION, &self.node).with_section(MANAGER_SECTION, &self.flags)
    }
}

/// Makes the machine a manager if it is none and `occasion` requires it.
///
/// # Errors
/// Why it failed; a repeated call resumes.
pub async fn ensure_member(
    plan: &ManagerSetup,
    occasion: &ManagerStartReason,
) -> Result<ManagerStartOutcome, CommandError> {
    match occasion {
        ManagerStartReason::Run => Ok(ManagerStartOutcome::Resumed),
        ManagerStartReason::Init => Ok(ManagerStartOutcome::Initialized),
        ManagerStartReason::Join(ManagerJoinArgs { address, token }) => {
            let (advertised, listen) = (plan.join_address()?, plan.listen);
            let request = JoinParams {
                data_dir: &plan.data_dir,
                manager: address,
                token,
                name: &plan.name,
                address: &advertised,
                listen: Some(listen),
            };
            match join(request).await? {
                ManagerJoinOutcome::New { name, cluster } => {
                    Ok(ManagerStartOutcome::Joined(format!("manager {name} joined cluster {cluster}\n")))
                }
                ManagerJoinOutcome::Existing => Ok(ManagerStartOutcome::Resumed),
            }
        }
    }
}

/// Creates a new cluster from a stopped manager without the others, and returns the result for the user. It
/// starts nothing: repeated at every start, it would make an old log the cluster again. `unlock_key` is that of
/// [`needed_unlock_key`].
///
/// # Errors
/// Why it failed; nothing was changed.
pub async fn force_new_cluster(
    plan: &ManagerSetup,
    unlock_key: Option<UnlockKey>,
) -> Result<String, CommandError> {
    let whom = ManagerContact { name: plan.name.clone(), address: plan.join_address()? };
    let (data_dir, engine) = (plan.data_dir.clone(), plan.log_engine);
    let went = tokio::task::spawn_blocking(move || {
        let now = std::time::SystemTime::now();
        force_new_cluster::force_new_cluster(&data_dir, engine, unlock_key.as_ref(), whom, now)
    });
    let what = "the new cluster was not created";
    match went.await.expect("reading a log does not panic") {
        Ok(outcome) => Ok(hints::after_force_new_cluster(outcome, &plan.data_dir)),
        Err(error) => {
            let exit = match error {
                ForceNewClusterError::NoManager(_) => ExitKind::NotFound,
                ForceNewClusterError::NoCluster | ForceNewClusterError::Removed => ExitKind::Conflict,
                ForceNewClusterError::Log(warren_log::Error::InUse { .. }) => ExitKind::Conflict,
                _ => ExitKind::Failed,
            };
            Err(CommandError::new(
                exit,
                what,
                error_chain(&error),
                hints::after_refused_force(&error, &plan.data_dir),
            ))
        }
    }
}

/// Starts a manager, and returns when it serves. `unlock_key` is that of [`await_unlock`].
///
/// # Errors
/// Why it failed; nothing keeps running then.
pub async fn start(
    plan: &ManagerSetup,
    node: Option<LocalNode>,
    begun: &ManagerStartOutcome,
    unlock_key: Option<UnlockKey>,
) -> Result<Manager, CommandError> {
    let config = ManagerConfig {
        data_dir: plan.data_dir.clone(),
        run_dir: plan.run_dir.clone(),
        listen: plan.listen,
        advertise: plan.advertise(),
        name: plan.name.clone(),
        cluster_ranges: plan.cluster_ranges.clone(),
        data_plane: plan.data_plane,
        node,
        log_engine: plan.log_engine,
        is_data_loss_accepted: plan.accept_data_loss,
        docker: plan.docker.clone(),
        registries: Arc::new(RegistryClients::new(plan.registries.clone())),
        unlock_key,
    };
    let started = Manager::start(config, *begun == ManagerStartOutcome::Initialized).await;
    started.map_err(|error| start_failure(&error, &plan.data_dir))
}

/// Resolves when the manager cannot continue.
pub async fn wait_failed(plan: &ManagerSetup, manager: &mut Manager) -> CommandError {
    match manager.wait_failed().await {
        ManagerFailure::Removed => removed_failure(&plan.data_dir),
        error @ ManagerFailure::Superseded(_) => superseded_failure(&error, &plan.data_dir),
        ManagerFailure::Driver(error) => {
            let hint = hints::after_driver_error(&error, &plan.data_dir);
            CommandError::new(ExitKind::Failed, "manager failed", error_chain(&error), hint)
        }
    }
}

/// The credentials and CAs of a removed manager's node; `None` on any other machine, and if the manager never
/// had a node. Changes nothing.
///
/// # Errors
/// The manager's directory cannot be read.
pub fn removed_node(data_dir: &Path) -> Result<Option<(Credentials, Roots)>, CommandError> {
    node_credentials_if(data_dir, None, |standing| matches!(standing, LocalMemberStatus::Removed(_)))
}

/// The same for a superseded manager, whose keys may be locked. It may become the cluster again, with the tasks that it
/// runs.
///
/// # Errors
/// The manager's directory cannot be read.
pub fn superseded_node(
    data_dir: &Path,
    unlock_key: Option<&UnlockKey>,
) -> Result<Option<(Credentials, Roots)>, CommandError> {
    node_credentials_if(data_dir, unlock_key, |standing| {
        matches!(standing, LocalMemberStatus::Superseded(..))
    })
}

fn node_credentials_if(
    data_dir: &Path,
    unlock_key: Option<&UnlockKey>,
    desired: impl Fn(&LocalMemberStatus) -> bool,
) -> Result<Option<(Credentials, Roots)>, CommandError> {
    let unusable = |error: &dyn std::error::Error| {
        CommandError::new(ExitKind::Failed, START_FAILED, error_chain(error), "check the data directory")
    };
    let dir = data_dir.join("manager");
    let standing = member_identity::read_status(&dir).map_err(|error| unusable(&error))?;
    if !desired(&standing) {
        return Ok(None);
    }
    load_agent(&dir, unlock_key).map_err(|error| unusable(&error))
}

fn removed_failure(data_dir: &Path) -> CommandError {
    let why =
        "the manager was removed with `warren manager rm`, or replaced by another machine at its address";
    CommandError::new(ExitKind::NotFound, NOT_A_MEMBER, why, hints::after_removal(data_dir))
}

fn superseded_failure(error: &dyn std::error::Error, data_dir: &Path) -> CommandError {
    CommandError::new(ExitKind::NotFound, NOT_A_MEMBER, error, hints::after_superseded(data_dir))
}

/// Runs a manager without a worker until it is stopped.
///
/// # Errors
/// Why it did not start, or could not continue.
pub async fn run(command: ManagerCommand) -> Result<(), CommandError> {
    let (args, occasion, is_forced) = match command {
        ManagerCommand::Init { init, args } => (args, ManagerStartReason::Init, init.force_new_cluster),
        ManagerCommand::Join { join, args } => (args, ManagerStartReason::Join(join), false),
        ManagerCommand::Run(args) => (args, ManagerStartReason::Run, false),
    };
    let CommandArgs { paths: dirs, metrics, node_name, insecure_registry, flags } = args;
    let stored = NodeFile::load(&dirs.data_dir)?;
    if let Some(kept) = &stored
        && kept.section::<toml::Table>(WORKER_SECTION)?.is_some()
        && kept.section::<toml::Table>(MANAGER_SECTION)?.is_some()
    {
        let why = format!("{} belongs to a node that also runs tasks", dirs.data_dir.display());
        return Err(CommandError::new(ExitKind::Conflict, START_FAILED, why, "use `warren manager run`"));
    }
    let flags = ManagerFlags { name: node_name, insecure_registry, ..flags };
    let reported = ManagerSettings::merge(stored.as_ref(), &dirs, metrics, flags, &occasion)?;
    let plan = ManagerSetup::new(dirs.data_dir, &reported, &HostInfo::detect()?)?;
    if is_forced {
        let text = force_new_cluster(&plan, unlock_key_from_stdin(&plan.data_dir)?).await?;
        reported.add_to(NodeFile::new(&plan.data_dir)).save()?;
        // It is done even if the output is closed.
        let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
        return Ok(());
    }
    let mut signals = ShutdownSignals::listen(START_FAILED)?;
    let telemetry = Telemetry::with_components(&[COMPONENT]);
    // Checked before a cluster is created: the address may be in use.
    let served = plan.metrics_listen.serve(&telemetry).await;
    let _server = served.map_err(|failure| or_data_dir_in_use(&plan.data_dir, failure))?;
    let LockState::Unlocked(unlock_key) = await_unlock(&plan, &telemetry, &mut signals).await? else {
        return Ok(());
    };
    let begun = ensure_member(&plan, &occasion).await?;
    // Also stored if nothing was created: an earlier attempt may have been interrupted before this.
    if occasion.accepts_new_settings() {
        reported.add_to(NodeFile::new(&plan.data_dir)).save()?;
    }
    let mut manager = start(&plan, None, &begun, unlock_key).await?;
    telemetry.add(COMPONENT, manager.telemetry());
    notify_ready();
    let ended = serve(&plan, &begun, &mut manager, &mut signals).await;
    manager.stop().await;
    ended
}

/// The unlock key that the stopped manager needs, from standard input.
fn unlock_key_from_stdin(data_dir: &Path) -> Result<Option<UnlockKey>, CommandError> {
    if needed_unlock_key(data_dir)?.is_none() {
        return Ok(None);
    }
    let unusable = |why: &dyn std::fmt::Display| {
        let hint = "give the unlock key of the cluster on standard input";
        CommandError::new(ExitKind::Usage, "the new cluster was not created", why.to_string(), hint)
    };
    // Without the buffer of the standard library, which would keep the key.
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().map(File::from);
    let mut text = Zeroizing::new(String::with_capacity(MAX_UNLOCK_KEY_INPUT));
    let read = stdin.and_then(|stdin| stdin.take(MAX_UNLOCK_KEY_INPUT as u64).read_to_string(&mut text));
    read.map_err(|error| unusable(&error))?;
    UnlockKey::parse(&text).map(Some).map_err(|error| unusable(&error))
}

async fn serve(
    plan: &ManagerSetup,
    begun: &ManagerStartOutcome,
    manager: &mut Manager,
    signals: &mut ShutdownSignals,
) -> Result<(), CommandError> {
    if let Some(text) = plan.startup_message(manager, begun) {
        let text = text + "this machine runs no tasks (manager only)\n";
        // The output may be closed; that is not an error.
        let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
    }
    let kept_up = keep_contexts_current(plan, manager);
    tokio::select! {
        () = signals.next() => Ok(()),
        failure = wait_failed(plan, manager) => Err(failure),
        never = kept_up => match never {},
    }
}

/// The manager that uses this data directory, if one runs. Changes nothing.
pub fn running_manager(data_dir: &Path) -> Option<u32> {
    DataDir::holder(data_dir)
}

/// `failure`, unless its cause is another process that uses the data directory, and so that node's addresses.
pub fn or_data_dir_in_use(data_dir: &Path, failure: CommandError) -> CommandError {
    // A missing directory is not created for the check.
    let lock = data_dir.join("lock").exists().then(|| DataDir::open(data_dir));
    match lock {
        Some(Err(error @ warren_log::Error::InUse { .. })) => {
            start_failure(&ManagerStartError::Log(error), data_dir)
        }
        _ => failure,
    }
}

fn start_failure(error: &ManagerStartError, data_dir: &Path) -> CommandError {
    let exit = match error {
        ManagerStartError::Restore(OpenStoreError::Log(warren_log::Error::OtherEngine { .. })) => {
            ExitKind::Conflict
        }
        ManagerStartError::Log(warren_log::Error::InUse { .. }) => ExitKind::Conflict,
        ManagerStartError::Log(error) if error.is_out_of_space() => ExitKind::Failed,
        ManagerStartError::Log(warren_log::Error::NotWritable { .. }) => ExitKind::Denied,
        ManagerStartError::Removed => return removed_failure(data_dir),
        ManagerStartError::Superseded(_) => return superseded_failure(error, data_dir),
        ManagerStartError::JoinPending(_) => ExitKind::Conflict,
        _ => ExitKind::Failed,
    };
    let hint = match error {
        ManagerStartError::Driver(error) => hints::after_driver_error(error, data_dir),
        _ => String::new(),
    };
    CommandError::new(exit, START_FAILED, error_chain(error), hint)
}

#[cfg(test)]
mod tests;
