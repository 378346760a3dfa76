//! The worker as a program: join, run, leave. `warren-worker` is this alone, `warren worker` the same within
//! `warren`, and a hybrid node uses its flags.

mod clear;
mod flags;
mod join;
mod leave;
mod run;
mod telemetry;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use warren_daemon::node_file::NodeFile;
use warren_daemon::{CommandError, DirArgs, ExitKind, MetricsArgs, NodeSection, error_chain};
use warren_network::NamespaceLock;
use warren_security::{Credentials, MembershipStore, NodeMembership, Roots};
use warren_types::ManagerAddress;

use crate::session::RemovalRecord;
use crate::worker::node_identity;

pub use clear::clear;
pub use flags::{LabelArg, TaintArgs, WorkerFlags};
pub use run::{WorkerSetup, check, ready, start};
use telemetry::WorkerTelemetry;

const NOT_STARTED: &str = "cannot start the node";
/// Sections of `node.toml`.
const NODE: &str = "node";
const MANAGER: &str = "manager";
const WORKER: &str = "worker";
const JOINED: &str = "joined";
/// Name of the worker's telemetry component.
pub const PART: &str = "worker";
/// Maximum size of an archive for `image import`.
const MAX_ARCHIVE: u64 = 16 << 30;

/// Commands of `warren-worker`.
#[derive(Debug, Subcommand)]
pub enum WorkerCommand {
    /// Add this machine to a cluster as a worker and run it, or resume an earlier join
    Join(WorkerJoinArgs),
    /// Run the worker that an earlier `join` set up
    Run(WorkerRunArgs),
    /// Leave the cluster: replace the tasks elsewhere, remove the node, then stop what it ran
    Leave(WorkerLeaveArgs),
}

/// Flags of `join`.
#[derive(Debug, Args)]
pub struct WorkerJoinArgs {
    /// Address of a manager of the cluster
    #[arg(value_name = "HOST:PORT", value_parser = flags::parse_manager)]
    pub address: String,
    /// Join token; print one with `warren token create --role worker`
    #[arg(long, env = "WARREN_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub token: String,
    /// Address at which other machines reach this one [default: the local address of the connection to the
    /// manager]
    #[arg(long, env = "WARREN_ADVERTISE", value_name = "HOST")]
    pub advertise: Option<String>,
    /// Taints.
    #[command(flatten)]
    pub taints: TaintArgs,
    /// Directories.
    #[command(flatten)]
    pub dirs: DirArgs,
    /// Metrics listener.
    #[command(flatten)]
    pub metrics: MetricsArgs,
    /// Flags of the worker.
    #[command(flatten)]
    pub flags: WorkerFlags,
}

/// Flags of `run`.
#[derive(Debug, Args)]
pub struct WorkerRunArgs {
    /// Directories.
    #[command(flatten)]
    pub dirs: DirArgs,
    /// Metrics listener.
    #[command(flatten)]
    pub metrics: MetricsArgs,
    /// Flags of the worker.
    #[command(flatten)]
    pub flags: WorkerFlags,
}

/// Flags of `leave`.
#[derive(Debug, Args)]
pub struct WorkerLeaveArgs {
    /// Directories.
    #[command(flatten)]
    pub dirs: DirArgs,
    /// Leave at once, without waiting until the tasks run elsewhere
    #[arg(long)]
    pub force: bool,
    /// Contact no manager (the cluster is gone for good); only stop and remove what is on this machine
    #[arg(long)]
    pub offline: bool,
    /// Time limit for replacing the tasks, and then for stopping the containers
    #[arg(long, default_value = "10m", value_parser = flags::parse_timeout, value_name = "DURATION")]
    pub deadline: Duration,
}

/// Settings of the join.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct JoinedSection {
    /// Configured managers, each `host:port`.
    managers: Vec<String>,
    /// Managers from the last session.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    known_managers: Vec<ManagerAddress>,
    #[serde(skip_serializing_if = "Option::is_none")]
    advertise: Option<String>,
}

/// Settings of a worker: stored ones, with the command line over them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WorkerSettings {
    data_dir: PathBuf,
    node: NodeSection,
    joined: JoinedSection,
    flags: WorkerFlags,
}

impl WorkerSettings {
    /// The stored settings with the given flags over them; `None` without stored settings.
    fn load(dirs: DirArgs, metrics: MetricsArgs, given: WorkerFlags) -> Result<Option<Self>, CommandError> {
        let node = NodeSection::from_args(&dirs, metrics);
        let data_dir = dirs.data_dir;
        let Some(kept) = NodeFile::load(&data_dir)? else { return Ok(None) };
        if kept.section::<toml::Table>(MANAGER)?.is_some() {
            let why = format!("{} belongs to a manager", data_dir.display());
            let hint = "use `warren manager run`, or choose another --data-dir";
            return Err(CommandError::new(ExitKind::Conflict, NOT_STARTED, why, hint));
        }
        let node = node.or(kept.section::<NodeSection>(NODE)?.unwrap_or_default());
        let Some(joined) = kept.section::<JoinedSection>(JOINED)? else { return Ok(None) };
        let flags = given.or(kept.section::<WorkerFlags>(WORKER)?.unwrap_or_default());
        Ok(Some(Self { data_dir, node, joined, flags }))
    }

    /// Adds the arguments of a repeated join. An additional manager is only one more to dial.
    fn with_join(mut self, given: JoinedSection) -> Self {
        let new = given.managers.into_iter().filter(|manager| !self.joined.managers.contains(manager));
        let new: Vec<_> = new.collect();
        self.joined.managers.extend(new);
        self.joined.advertise = given.advertise.or(self.joined.advertise);
        self
    }

    fn save(&self) -> Result<(), CommandError> {
        let sections =
            NodeFile::new(&self.data_dir).with_section(NODE, &self.node).with_section(JOINED, &self.joined);
        sections.with_section(WORKER, &self.flags).save()
    }

    fn run_dir(&self) -> PathBuf {
        self.node.run_dir()
    }

    /// Every known manager, each `host:port`.
    fn managers(&self) -> Vec<String> {
        let JoinedSection { managers, known_managers: known, .. } = &self.joined;
        let known = known.iter().map(ToString::to_string).filter(|known| !managers.contains(known));
        managers.iter().cloned().chain(known).collect()
    }

    fn membership(&self) -> MembershipStore {
        MembershipStore::new(self.data_dir.join("worker"))
    }

    /// Certificate and trusted roots of this node.
    fn load_membership(&self) -> Result<(Credentials, Roots), CommandError> {
        let member = self.membership().load();
        match member.map_err(|error| failed(NOT_STARTED, &error, "check the data directory"))? {
            NodeMembership::Member { credentials, roots } => Ok((credentials, roots)),
            NodeMembership::Joining { .. } | NodeMembership::NotMember => Err(not_a_worker(&self.data_dir)),
        }
    }

    /// The record of the removal of this node from its cluster.
    fn removal_record(&self, credentials: &Credentials) -> Result<RemovalRecord, CommandError> {
        let (cluster, node) = node_identity(credentials.identity()).map_err(|error| {
            failed(NOT_STARTED, &error, "restore the data directory, or join with another one")
        })?;
        Ok(RemovalRecord::new(&self.data_dir, cluster, node))
    }
}

/// Saves the known managers.
fn save_known_managers(data_dir: &Path, known: Vec<ManagerAddress>) -> Result<(), CommandError> {
    let Some(kept) = NodeFile::load(data_dir)? else { return Ok(()) };
    let Some(joined) = kept.section::<JoinedSection>(JOINED)? else { return Ok(()) };
    if joined.known_managers == known {
        return Ok(());
    }
    kept.with_section(JOINED, &JoinedSection { known_managers: known, ..joined }).save()
}

/// Removes a file if it exists.
fn remove_if_present(file: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn not_a_worker(data_dir: &Path) -> CommandError {
    let why = format!("{} has no worker", data_dir.display());
    CommandError::new(
        ExitKind::NotFound,
        NOT_STARTED,
        why,
        "join a cluster with `warren worker join HOST:PORT --token TOKEN`",
    )
}

fn failed(what: &str, error: &dyn std::error::Error, hint: &str) -> CommandError {
    CommandError::new(ExitKind::Failed, what, error_chain(error), hint)
}

/// The worker in this network namespace, if one runs. Changes nothing.
pub fn running_worker() -> Option<u32> {
    NamespaceLock::holder()
}

/// Executes `command`; a worker runs until a signal, or until it was removed from its cluster.
///
/// # Errors
/// The command failed.
pub async fn run(command: WorkerCommand) -> Result<(), CommandError> {
    match command {
        WorkerCommand::Join(args) => join::join(args).await,
        WorkerCommand::Run(WorkerRunArgs { dirs, metrics, flags }) => {
            let data_dir = dirs.data_dir.clone();
            let settings =
                WorkerSettings::load(dirs, metrics, flags)?.ok_or_else(|| not_a_worker(&data_dir))?;
            let shown = WorkerTelemetry::start(&settings).await?;
            match run::run_joined(&settings, run::WorkerStartReason::Run, &shown).await? {
                run::WorkerEnd::Removed { removal, .. } => Err(run::removed_failure(&removal)),
                run::WorkerEnd::Stopped | run::WorkerEnd::UnknownNode => Ok(()),
            }
        }
        WorkerCommand::Leave(args) => leave::leave(args).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_managers_are_saved_beside_configured_ones() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = DirArgs { data_dir: dir.path().to_owned(), run_dir: None };
        let joined = JoinedSection { managers: vec!["m1:8080".into()], ..JoinedSection::default() };
        let flags = WorkerFlags { runtime: Some("crun".into()), ..WorkerFlags::default() };
        let node = NodeSection::default();
        let settings = WorkerSettings { data_dir: dir.path().to_owned(), node, joined, flags };
        save_known_managers(dir.path(), vec!["m2:8080".parse().unwrap()]).unwrap();
        assert!(NodeFile::load(dir.path()).unwrap().is_none(), "nobody joined here");
        settings.save().unwrap();
        for known in [&["m1:8080", "m2:8080"][..], &["m2:8080", "m3:8080"], &["m2:8080", "m3:8080"]] {
            let known = known.iter().map(|known| known.parse().unwrap()).collect();
            save_known_managers(dir.path(), known).unwrap();
        }
        let given = WorkerFlags { runtime: Some("runc".into()), ..WorkerFlags::default() };
        let settings = WorkerSettings::load(dirs, MetricsArgs::default(), given).unwrap().unwrap();
        assert_eq!(settings.managers(), ["m1:8080", "m2:8080", "m3:8080"]);
        let kept = NodeFile::load(dir.path()).unwrap().unwrap();
        assert_eq!(kept.section::<WorkerFlags>(WORKER).unwrap().unwrap().runtime.as_deref(), Some("crun"));
    }

    /// The golden file is never changed: a later format gets one of its own.
    #[test]
    fn settings_of_version_1_are_readable() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("node.toml"), include_str!("process/golden/node.1.toml")).unwrap();
        let dirs = DirArgs { data_dir: dir.path().to_owned(), run_dir: None };
        let found = WorkerSettings::load(dirs, MetricsArgs::default(), WorkerFlags::default());
        let node = NodeSection {
            run_dir: Some("/run/warren-2".into()),
            metrics_listen: Some("127.0.0.1:9091".parse().unwrap()),
        };
        let joined = JoinedSection {
            managers: vec!["10.0.0.7:8080".into()],
            known_managers: vec!["10.0.0.8:8080".parse().unwrap()],
            advertise: Some("10.0.0.9".into()),
        };
        let flags = WorkerFlags {
            containerd_socket: Some("/run/containerd.sock".into()),
            runtime: Some("crun".into()),
            cpus: Some("1.5".parse().unwrap()),
            memory: Some("2GiB".parse().unwrap()),
            node_name: Some("n1".parse().unwrap()),
            data_address: Some([192, 0, 2, 7].into()),
            vxlan_port: Some(8472),
            vxlan_id: Some(7),
            wireguard_port: Some(51821),
            allow_port: vec!["9100".parse().unwrap(), "6000-6009/udp".parse().unwrap()],
            label: vec!["zone=a".parse().unwrap()],
            user_namespace_ids: Some("1000000-1983039".parse().unwrap()),
            insecure_registry: vec!["registry.example:5000".into()],
            taints: std::collections::BTreeSet::from(["dedicated=gpu:NoSchedule".parse().unwrap()]),
        };
        let expected = WorkerSettings { data_dir: dir.path().to_owned(), node, joined, flags };
        assert_eq!(found.unwrap(), Some(expected));
    }
}
