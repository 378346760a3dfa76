//! `warren manager init|join|run`: a manager and, unless told otherwise, a worker in one process. The worker dials
//! the manager's port like any other.

mod hybrid;
mod restore;

use std::path::Path;

use warren_manager::process::{Occasion, Plan, Told, go_on_alone};
use warren_process::settings::Sections;
use warren_process::{Failure, Machine};
use warren_worker::process::Flags;

use crate::args::NodeArgs;
use crate::output;

pub use restore::restore;

/// Name of the worker's section of `node.toml`.
const WORKER: &str = "worker";

/// What a node is started as, and what is remembered of that.
struct Node {
    plan: Plan,
    told: Told,
    worker: Option<Flags>,
    /// What the worker is or was told: it is to clear up what a removed node ran, also where none is to run any more.
    ran: Option<Flags>,
}

impl Node {
    fn of(args: NodeArgs, machine: &Machine, occasion: &Occasion) -> Result<Self, Failure> {
        let NodeArgs { place, metrics, manager_only, mut manager, worker } = args;
        let kept = Sections::load(&place.data_dir)?;
        // A manager is called as its node is, also where it has none.
        manager.name = worker.node_name.clone();
        let ran = ran(kept.as_ref())?;
        let worker = worker_flags(kept.as_ref(), manager_only, worker)?;
        let ran = worker.clone().or(ran);
        manager.name = manager.name.or_else(|| worker.as_ref().and_then(|flags| flags.node_name.clone()));
        let told = Told::merge(kept.as_ref(), &place, metrics, manager, occasion)?;
        let plan = Plan::new(place.data_dir, &told, machine)?;
        Ok(Self { plan, told, worker, ran })
    }

    fn sections(&self) -> Sections {
        sections(&self.plan.data_dir, &self.told, self.worker.as_ref())
    }
}

/// Runs until it is told to stop.
pub async fn run(args: NodeArgs, occasion: Occasion) -> Result<(), Failure> {
    let machine = Machine::look()?;
    let node = Node::of(args, &machine, &occasion)?;
    let sections = node.sections();
    let worker = node.worker.map(|flags| hybrid::WorkerPlan::new(flags, &machine)).transpose()?;
    hybrid::run(node.plan, (worker, node.ran), &occasion, sections).await
}

/// Lets the stopped manager of this machine go on without the others. Nothing is started.
pub async fn force_new_cluster(args: NodeArgs) -> Result<(), Failure> {
    let node = Node::of(args, &Machine::look()?, &Occasion::Init)?;
    let text = go_on_alone(&node.plan).await?;
    node.sections().remember()?;
    output::print(&text)
}

/// What the worker is told; `None` runs none. A node that was made without one stays so until it is told otherwise.
fn worker_flags(
    kept: Option<&Sections>,
    manager_only: Option<bool>,
    said: Flags,
) -> Result<Option<Flags>, Failure> {
    let old = ran(kept)?;
    let was_without = kept.is_some() && old.is_none();
    let without = manager_only.unwrap_or(was_without);
    Ok((!without).then(|| said.over(old.unwrap_or_default())))
}

/// What the worker was told, where there was one.
fn ran(kept: Option<&Sections>) -> Result<Option<Flags>, Failure> {
    Ok(kept.map(|kept| kept.section::<Flags>(WORKER)).transpose()?.flatten())
}

/// What is remembered.
fn sections(data_dir: &Path, told: &Told, worker: Option<&Flags>) -> Sections {
    let sections = told.put(Sections::new(data_dir));
    match worker {
        Some(flags) => sections.with(WORKER, flags),
        None => sections,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use warren_process::{MetricsArgs, NodeSection, PlaceArgs};

    use super::*;

    fn kept(worker: Option<&Flags>) -> Sections {
        let told = Told { node: NodeSection::default(), flags: warren_manager::process::Flags::default() };
        sections(Path::new("/d"), &told, worker)
    }

    #[test]
    fn a_node_stays_what_it_was_made_until_it_is_told_otherwise() {
        let socket = |path: &str| Flags { containerd_socket: Some(PathBuf::from(path)), ..Flags::default() };
        let check = |kept: Option<&Sections>, manager_only, said: Flags, wanted: Option<Flags>| {
            assert_eq!(worker_flags(kept, manager_only, said).unwrap(), wanted);
        };
        check(None, None, socket("/a"), Some(socket("/a")));
        check(None, Some(true), socket("/a"), None);
        check(Some(&kept(None)), None, Flags::default(), None);
        check(Some(&kept(None)), Some(false), socket("/a"), Some(socket("/a")));
        let hybrid = kept(Some(&socket("/a")));
        check(Some(&hybrid), None, Flags::default(), Some(socket("/a")));
        check(Some(&hybrid), None, socket("/b"), Some(socket("/b")));
        check(Some(&hybrid), Some(true), Flags::default(), None);
    }

    #[test]
    fn a_manager_is_called_as_its_node_is_also_without_one_and_the_next_time() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine { host_name: "host".into(), address: None, root: true };
        let args = |name: Option<&str>, manager_only| NodeArgs {
            place: PlaceArgs { data_dir: dir.path().to_owned(), run_dir: None },
            metrics: MetricsArgs::default(),
            manager_only,
            manager: warren_manager::process::Flags::default(),
            worker: Flags { node_name: name.map(|name| name.parse().unwrap()), ..Flags::default() },
        };
        let node = |name, only| Node::of(args(name, only), &machine, &Occasion::Init).unwrap();
        assert_eq!(node(None, None).plan.name.as_str(), "host");
        let first = node(Some("m1"), Some(true));
        assert_eq!(first.plan.name.as_str(), "m1");
        first.sections().remember().unwrap();
        assert_eq!(node(None, None).plan.name.as_str(), "m1");
        assert_eq!(node(Some("m2"), None).plan.name.as_str(), "m2");
    }

    #[test]
    fn a_node_that_is_to_run_no_worker_any_more_knows_what_it_had_to_clear_up() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine { host_name: "host".into(), address: None, root: true };
        let node = |manager_only| {
            let args = NodeArgs {
                place: PlaceArgs { data_dir: dir.path().to_owned(), run_dir: None },
                metrics: MetricsArgs::default(),
                manager_only,
                manager: warren_manager::process::Flags::default(),
                worker: Flags::default(),
            };
            Node::of(args, &machine, &Occasion::Init).unwrap()
        };
        assert!(node(Some(true)).ran.is_none(), "it never ran a worker");
        let socket = Flags { containerd_socket: Some(PathBuf::from("/a")), ..Flags::default() };
        let hybrid = node(None);
        Node { worker: Some(socket.clone()), ..hybrid }.sections().remember().unwrap();
        for manager_only in [None, Some(true)] {
            let node = node(manager_only);
            assert_eq!((node.worker.is_some(), node.ran), (manager_only.is_none(), Some(socket.clone())));
        }
    }
}
