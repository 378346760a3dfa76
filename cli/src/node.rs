//! `warren manager init|run`: a manager and, unless told otherwise, a worker in one process. The worker dials
//! the manager's port like any other.

mod hybrid;

use std::path::Path;

use warren_manager::process::{Plan, Told};
use warren_process::settings::Sections;
use warren_process::{Failure, Machine};
use warren_worker::process::Flags;

use crate::args::{ManagerCommand, NodeArgs};

/// Name of the worker's section of `node.toml`.
const WORKER: &str = "worker";

/// Runs until it is told to stop.
pub async fn run(command: ManagerCommand) -> Result<(), Failure> {
    let (NodeArgs { place, metrics, manager_only, manager, worker }, create) = match command {
        ManagerCommand::Init(args) => (args, true),
        ManagerCommand::Run(args) => (args, false),
    };
    let kept = Sections::load(&place.data_dir)?;
    let worker = worker_flags(kept.as_ref(), manager_only, worker)?;
    let told = Told::merge(kept.as_ref(), &place, metrics, manager, create)?;
    let sections = sections(&place.data_dir, &told, worker.as_ref());
    let machine = Machine::look()?;
    let plan = Plan::new(place.data_dir, &told, &machine);
    let worker = worker.map(|flags| hybrid::WorkerPlan::new(flags, &machine)).transpose()?;
    hybrid::run(plan, worker, create.then_some(sections)).await
}

/// What the worker is told; `None` runs none. A node that was made without one stays so until it is told otherwise.
fn worker_flags(
    kept: Option<&Sections>,
    manager_only: Option<bool>,
    said: Flags,
) -> Result<Option<Flags>, Failure> {
    let old = kept.map(|kept| kept.section::<Flags>(WORKER)).transpose()?;
    let was_without = matches!(old, Some(None));
    let without = manager_only.unwrap_or(was_without);
    Ok((!without).then(|| said.over(old.flatten().unwrap_or_default())))
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

    use warren_process::NodeSection;

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
}
