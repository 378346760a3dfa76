//! `warren manager init|join|run`: a manager and, by default, a worker in one process. The worker connects to the
//! port of the manager like any other worker.

mod hybrid;
mod restore;

use std::path::Path;

use warren_daemon::node_file::NodeFile;
use warren_daemon::{CommandError, HostInfo, NodeSection};
use warren_manager::process::{
    self, MANAGER_SECTION, ManagerFlags, ManagerSettings, ManagerSetup, ManagerStartReason,
};
use warren_worker::process::WorkerFlags;

use crate::args::NodeRunArgs;
use crate::{input, output};

pub use restore::restore;

/// Sections of `node.toml`.
const NODE: &str = "node";
const WORKER: &str = "worker";

/// The parts of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKind {
    /// A manager that runs no tasks.
    Manager,
    /// A manager and a worker.
    Hybrid,
    /// A worker.
    Worker,
}

/// The stored settings of this machine's node.
#[derive(Debug, Clone)]
pub struct StoredNode {
    /// Settings of all parts.
    pub node: NodeSection,
    /// `None` for a worker.
    pub manager: Option<ManagerFlags>,
    /// `None` for a manager that runs no tasks.
    pub worker: Option<WorkerFlags>,
}

impl StoredNode {
    /// Reads the settings; `None` if the machine is no node yet. `what` is the failure summary.
    pub fn load(data_dir: &Path, what: &str) -> Result<Option<Self>, CommandError> {
        let read = || {
            let Some(file) = NodeFile::load(data_dir)? else { return Ok(None) };
            let node = file.section::<NodeSection>(NODE)?.unwrap_or_default();
            let manager = file.section::<ManagerFlags>(MANAGER_SECTION)?;
            let worker = previous_worker_flags(Some(&file))?;
            Ok((manager.is_some() || worker.is_some()).then_some(Self { node, manager, worker }))
        };
        read().map_err(|failure: CommandError| CommandError { what: what.to_owned(), ..failure })
    }

    /// Its parts.
    pub fn kind(&self) -> NodeKind {
        match (&self.manager, &self.worker) {
            (Some(_), Some(_)) => NodeKind::Hybrid,
            (Some(_), None) => NodeKind::Manager,
            (None, _) => NodeKind::Worker,
        }
    }
}

/// The process of the node of this machine, if one runs.
pub fn running(data_dir: &Path) -> Option<u32> {
    process::running_manager(data_dir).or_else(warren_worker::process::running_worker)
}

/// Settings of a node, and the settings that are stored.
struct NodeStart {
    plan: ManagerSetup,
    stored: ManagerSettings,
    worker: Option<WorkerFlags>,
    /// Current or earlier flags of the worker: needed to clean up after a removed node, even if no worker is to run.
    previous_worker: Option<WorkerFlags>,
}

impl NodeStart {
    fn from_args(
        args: NodeRunArgs,
        machine: &HostInfo,
        occasion: &ManagerStartReason,
    ) -> Result<Self, CommandError> {
        let NodeRunArgs { dirs, metrics, manager_only, mut manager, worker } = args;
        let stored = NodeFile::load(&dirs.data_dir)?;
        // A manager has the name of its node.
        manager.name = worker.node_name.clone();
        let insecure_registry = worker.insecure_registry.clone();
        let ran = previous_worker_flags(stored.as_ref())?;
        let worker = worker_flags(stored.as_ref(), manager_only, worker)?;
        // It asks the registries of its node, also those that only the section of the worker has.
        manager.insecure_registry =
            worker.as_ref().map_or(insecure_registry, |flags| flags.insecure_registry.clone());
        let ran = worker.clone().or(ran);
        manager.name = manager.name.or_else(|| worker.as_ref().and_then(|flags| flags.node_name.clone()));
        let settings = ManagerSettings::merge(stored.as_ref(), &dirs, metrics, manager, occasion)?;
        let plan = ManagerSetup::new(dirs.data_dir, &settings, machine)?;
        Ok(Self { plan, stored: settings, worker, previous_worker: ran })
    }

    fn sections(&self) -> NodeFile {
        sections(&self.plan.data_dir, &self.stored, self.worker.as_ref())
    }
}

/// Runs a node until a signal.
pub async fn run(args: NodeRunArgs, occasion: ManagerStartReason) -> Result<(), CommandError> {
    let machine = HostInfo::detect()?;
    let node = NodeStart::from_args(args, &machine, &occasion)?;
    let sections = node.sections();
    let worker = node.worker.map(|flags| hybrid::WorkerPlan::new(flags, &machine)).transpose()?;
    hybrid::run(node.plan, (worker, node.previous_worker), &occasion, sections).await
}

/// Creates a new cluster from the stopped manager of this machine. Starts nothing.
pub async fn force_new_cluster(args: NodeRunArgs) -> Result<(), CommandError> {
    let node = NodeStart::from_args(args, &HostInfo::detect()?, &ManagerStartReason::Init)?;
    let unlock_key = match process::needed_unlock_key(&node.plan.data_dir)? {
        Some(_) => Some(input::read_unlock_key("the new cluster was not created")?),
        None => None,
    };
    let text = process::force_new_cluster(&node.plan, unlock_key).await?;
    node.sections().save()?;
    output::print(&text)
}

/// Flags of the worker; `None` runs none. A node that was created without a worker keeps none unless a flag says so.
fn worker_flags(
    stored: Option<&NodeFile>,
    manager_only: Option<bool>,
    given: WorkerFlags,
) -> Result<Option<WorkerFlags>, CommandError> {
    let old = previous_worker_flags(stored)?;
    let was_without = stored.is_some() && old.is_none();
    let without = manager_only.unwrap_or(was_without);
    Ok((!without).then(|| given.or(old.unwrap_or_default())))
}

/// Stored flags of the worker, if there was one.
fn previous_worker_flags(stored: Option<&NodeFile>) -> Result<Option<WorkerFlags>, CommandError> {
    Ok(stored.map(|stored| stored.section::<WorkerFlags>(WORKER)).transpose()?.flatten())
}

/// The stored sections of `node.toml`.
fn sections(data_dir: &Path, settings: &ManagerSettings, worker: Option<&WorkerFlags>) -> NodeFile {
    let sections = settings.add_to(NodeFile::new(data_dir));
    match worker {
        Some(flags) => sections.with_section(WORKER, flags),
        None => sections,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use warren_daemon::{DirArgs, MetricsArgs};

    use super::*;

    fn sections_with_worker(worker: Option<&WorkerFlags>) -> NodeFile {
        let settings = ManagerSettings { node: NodeSection::default(), flags: ManagerFlags::default() };
        sections(Path::new("/d"), &settings, worker)
    }

    #[test]
    fn stored_role_applies_until_changed() {
        let socket = |path: &str| WorkerFlags {
            containerd_socket: Some(PathBuf::from(path)),
            ..WorkerFlags::default()
        };
        let check =
            |stored: Option<&NodeFile>, manager_only, given: WorkerFlags, expected: Option<WorkerFlags>| {
                assert_eq!(worker_flags(stored, manager_only, given).unwrap(), expected);
            };
        check(None, None, socket("/a"), Some(socket("/a")));
        check(None, Some(true), socket("/a"), None);
        check(Some(&sections_with_worker(None)), None, WorkerFlags::default(), None);
        check(Some(&sections_with_worker(None)), Some(false), socket("/a"), Some(socket("/a")));
        let hybrid = sections_with_worker(Some(&socket("/a")));
        check(Some(&hybrid), None, WorkerFlags::default(), Some(socket("/a")));
        check(Some(&hybrid), None, socket("/b"), Some(socket("/b")));
        check(Some(&hybrid), Some(true), WorkerFlags::default(), None);
    }

    #[test]
    fn stored_sections_say_what_the_node_is() {
        let dir = tempfile::tempdir().unwrap();
        let load = |text: &str| {
            std::fs::write(dir.path().join("node.toml"), text).unwrap();
            StoredNode::load(dir.path(), "x").unwrap().map(|stored| stored.kind())
        };
        assert!(StoredNode::load(dir.path(), "x").unwrap().is_none());
        for (text, kind) in [
            ("", None),
            ("[node]\n", None),
            ("[node]\n[manager]\n", Some(NodeKind::Manager)),
            ("[node]\n[manager]\n[worker]\n", Some(NodeKind::Hybrid)),
            ("[node]\n[joined]\nmanagers = []\n[worker]\n", Some(NodeKind::Worker)),
        ] {
            assert_eq!(load(text), kind, "{text}");
        }
    }

    #[test]
    fn manager_keeps_node_name_across_starts() {
        let dir = tempfile::tempdir().unwrap();
        let machine = HostInfo { host_name: "host".into(), address: None, is_root: true };
        let args = |name: Option<&str>, manager_only| NodeRunArgs {
            dirs: DirArgs { data_dir: dir.path().to_owned(), run_dir: None },
            metrics: MetricsArgs::default(),
            manager_only,
            manager: ManagerFlags::default(),
            worker: WorkerFlags {
                node_name: name.map(|name| name.parse().unwrap()),
                ..WorkerFlags::default()
            },
        };
        let node =
            |name, only| NodeStart::from_args(args(name, only), &machine, &ManagerStartReason::Init).unwrap();
        assert_eq!(node(None, None).plan.name.as_str(), "host");
        let first = node(Some("m1"), Some(true));
        assert_eq!(first.plan.name.as_str(), "m1");
        first.sections().save().unwrap();
        assert_eq!(node(None, None).plan.name.as_str(), "m1");
        assert_eq!(node(Some("m2"), None).plan.name.as_str(), "m2");
    }

    #[test]
    fn manager_asks_the_insecure_registries_of_its_worker() {
        let dir = tempfile::tempdir().unwrap();
        let machine = HostInfo { host_name: "host".into(), address: None, is_root: true };
        let registries = |given: &[&str]| {
            let args = NodeRunArgs {
                dirs: DirArgs { data_dir: dir.path().to_owned(), run_dir: None },
                metrics: MetricsArgs::default(),
                manager_only: None,
                manager: ManagerFlags::default(),
                worker: WorkerFlags {
                    insecure_registry: given.iter().map(|host| (*host).to_owned()).collect(),
                    ..WorkerFlags::default()
                },
            };
            let node = NodeStart::from_args(args, &machine, &ManagerStartReason::Init).unwrap();
            node.stored.flags.insecure_registry
        };
        assert!(registries(&[]).is_empty());
        let text = "[node]\n[manager]\n[worker]\ninsecure-registry = [\"10.0.0.1:5000\"]\n";
        std::fs::write(dir.path().join("node.toml"), text).unwrap();
        assert_eq!(registries(&[]), ["10.0.0.1:5000"]);
        assert_eq!(registries(&["10.0.0.2:5000"]), ["10.0.0.2:5000"]);
    }

    #[test]
    fn disabled_worker_is_cleaned_up() {
        let dir = tempfile::tempdir().unwrap();
        let machine = HostInfo { host_name: "host".into(), address: None, is_root: true };
        let node = |manager_only| {
            let args = NodeRunArgs {
                dirs: DirArgs { data_dir: dir.path().to_owned(), run_dir: None },
                metrics: MetricsArgs::default(),
                manager_only,
                manager: ManagerFlags::default(),
                worker: WorkerFlags::default(),
            };
            NodeStart::from_args(args, &machine, &ManagerStartReason::Init).unwrap()
        };
        assert!(node(Some(true)).previous_worker.is_none(), "it never ran a worker");
        let socket = WorkerFlags { containerd_socket: Some(PathBuf::from("/a")), ..WorkerFlags::default() };
        let hybrid = node(None);
        NodeStart { worker: Some(socket.clone()), ..hybrid }.sections().save().unwrap();
        for manager_only in [None, Some(true)] {
            let node = node(manager_only);
            assert_eq!(
                (node.worker.is_some(), node.previous_worker),
                (manager_only.is_none(), Some(socket.clone()))
            );
        }
    }
}
