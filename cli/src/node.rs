//! `warren manager init|join|run`: a manager and, by default, a worker in one process. The worker connects to the
//! port of the manager like any other worker.

mod hybrid;
mod restore;

use std::path::Path;

use warren_daemon::node_file::NodeFile;
use warren_daemon::{CommandError, HostInfo};
use warren_manager::process::{self, ManagerSettings, ManagerSetup, ManagerStartReason};
use warren_worker::process::WorkerFlags;

use crate::args::NodeRunArgs;
use crate::output;

pub use restore::restore;

/// Section of the worker in `node.toml`.
const WORKER: &str = "worker";

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
        let ran = previous_worker_flags(stored.as_ref())?;
        let worker = worker_flags(stored.as_ref(), manager_only, worker)?;
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
    let text = process::force_new_cluster(&node.plan).await?;
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

    use warren_daemon::{DirArgs, MetricsArgs, NodeSection};

    use super::*;

    fn sections_with_worker(worker: Option<&WorkerFlags>) -> NodeFile {
        let settings = ManagerSettings {
            node: NodeSection::default(),
            flags: warren_manager::process::ManagerFlags::default(),
        };
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
    fn manager_keeps_node_name_across_starts() {
        let dir = tempfile::tempdir().unwrap();
        let machine = HostInfo { host_name: "host".into(), address: None, is_root: true };
        let args = |name: Option<&str>, manager_only| NodeRunArgs {
            dirs: DirArgs { data_dir: dir.path().to_owned(), run_dir: None },
            metrics: MetricsArgs::default(),
            manager_only,
            manager: warren_manager::process::ManagerFlags::default(),
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
    fn disabled_worker_is_cleaned_up() {
        let dir = tempfile::tempdir().unwrap();
        let machine = HostInfo { host_name: "host".into(), address: None, is_root: true };
        let node = |manager_only| {
            let args = NodeRunArgs {
                dirs: DirArgs { data_dir: dir.path().to_owned(), run_dir: None },
                metrics: MetricsArgs::default(),
                manager_only,
                manager: warren_manager::process::ManagerFlags::default(),
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
