//! `warren manager restore`: makes a manager of a backup, on a machine that has none. Nothing is started.

use std::path::Path;
use std::time::SystemTime;

use warren_manager::ca::Keys;
use warren_manager::process::{Flags, MANAGER, Occasion, told_context};
use warren_manager::recovery::backup::{self, Backup, Writer};
use warren_manager::recovery::restore::{Restoring, RestoringError, Whom};
use warren_process::settings::Sections;
use warren_process::{Exit, Failure, Machine, chain, data_dir_flag};
use warren_types::{ManagerAddress, NodeRole};

use super::Node;
use crate::args::{NodeArgs, PassphraseArgs};
use crate::view::{age, now};
use crate::{input, output};

const WHAT: &str = "the backup was not restored";

/// Restores the backup in `file`.
pub async fn restore(file: &Path, passphrase: &PassphraseArgs, args: NodeArgs) -> Result<(), Failure> {
    let machine = Machine::look()?;
    let given = args.manager.cluster_range.clone();
    let kept = Sections::load(&args.place.data_dir)?;
    let restoring = Restoring::begin(&args.place.data_dir).map_err(|error| failed(&error))?;
    let passphrase = input::passphrase(passphrase.passphrase_file.as_deref(), input::Times::Once, WHAT)?;
    let sealed = std::fs::read(file).map_err(|error| unread(file, &error))?;
    let opened = tokio::task::spawn_blocking(move || backup::read(&passphrase, sealed)).await;
    let opened = opened.expect("reading a backup does not panic").map_err(|error| {
        let why = format!("{}: {}", file.display(), chain(&error));
        Failure::new(Exit::Failed, WHAT, why, "check the passphrase, or use another backup")
    })?;
    let cluster = opened.state.cluster().expect("a backup without a cluster is refused");
    if !given.is_empty() && given != cluster.ranges {
        let why = "the cluster's ranges are in the backup, and --cluster-range says others";
        return Err(Failure::new(Exit::Usage, WHAT, why, "leave --cluster-range out"));
    }
    let args = as_written(args, kept.as_ref(), opened.writer.as_ref())?;
    let mut node = Node::of(args, &machine, &Occasion::Init)?;
    // Remembered as what the cluster was made with, since that is what later flags are held against.
    node.told.flags.cluster_range = cluster.ranges.clone();
    let advertised = node.plan.advertised_before()?;
    let mut text = told(&opened, &node, &advertised);
    // Before the manager: it is one once its directory is there.
    node.sections().remember()?;
    let (name, address) = (node.plan.name.clone(), advertised.to_string());
    let whom = Whom { name, address: advertised };
    let engine = node.plan.log_engine;
    let made = move || restoring.finish(opened, engine, whom, SystemTime::now());
    let made = tokio::task::spawn_blocking(made).await.expect("writing files does not panic");
    made.map_err(|error| failed(&error))?;
    let keys = Keys::open(&node.plan.data_dir.join("manager"), false, SystemTime::now());
    let keys = keys.map_err(|error| failed(&error.into()))?;
    let admin = keys.admin().borrow().clone();
    let context = told_context(&address, &[], keys.cluster, &keys.authority.roots(), &admin);
    text += context.as_deref().unwrap_or_default();
    output::print(&text)
}

/// What a machine is started as that was told nothing, neither now nor before: what the manager was that wrote the
/// backup.
fn as_written(
    mut args: NodeArgs,
    kept: Option<&Sections>,
    writer: Option<&Writer>,
) -> Result<NodeArgs, Failure> {
    let before = kept.map(|kept| kept.section::<Flags>(MANAGER)).transpose()?.flatten();
    if let (None, Some(Writer { name, manager_only })) = (before, writer) {
        args.worker.node_name = args.worker.node_name.or_else(|| Some(name.clone()));
        args.manager_only = args.manager_only.or(Some(*manager_only));
    }
    Ok(args)
}

/// What came back, and what to do next.
fn told(backup: &Backup, node: &Node, address: &ManagerAddress) -> String {
    let Backup { state, created_at, .. } = backup;
    let cluster = state.cluster().map(|cluster| cluster.id.to_string()).unwrap_or_default();
    let count = |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    let tokens = match state.tokens_after(None).count() {
        0 => String::new(),
        found => format!("without its join tokens ({found}): make new ones with `warren token create`\n"),
    };
    let workers = state.nodes().filter(|node| node.role == NodeRole::Worker);
    let workers: Vec<&str> = workers.map(|node| node.name.as_str()).collect();
    let is_known = state.members().any(|member| member.address == *address);
    let runs = if node.worker.is_some() { "runs tasks" } else { "runs no tasks (--manager-only)" };
    format!(
        "cluster {cluster} is restored as it was {} ago: {}, {}\n{tokens}\
         this machine is its only manager, is called {} and {runs}; see that no other one of it runs, then start this \
         one with\n  warren manager run{}\n{}",
        age(*created_at, now()),
        count(state.services().count(), "service"),
        count(state.nodes().count(), "node"),
        node.plan.name,
        data_dir_flag(&node.plan.data_dir),
        workers_elsewhere(&workers, is_known, address),
    )
}

/// What to do with `workers`, which look for managers only where they know them; nothing where they know `address`.
fn workers_elsewhere(workers: &[&str], is_known: bool, address: &ManagerAddress) -> String {
    if workers.is_empty() || is_known {
        return String::new();
    }
    format!(
        "workers do not know its address, {address}, and would be DOWN, with their tasks started elsewhere as well; on \
         each of them ({}) stop the worker, and have it go on as the node that it is with\n  \
         warren worker join {address} --token TOKEN\n\
         TOKEN is what `warren token create --role worker` prints once this manager runs\n",
        workers.join(", ")
    )
}

fn unread(file: &Path, error: &std::io::Error) -> Failure {
    let exit = if error.kind() == std::io::ErrorKind::NotFound { Exit::NotFound } else { Exit::Failed };
    Failure::new(exit, WHAT, format!("{}: {error}", file.display()), "check the path and who may read it")
}

fn failed(error: &RestoringError) -> Failure {
    let (exit, hint) = if error.is_taken() {
        (Exit::Conflict, "choose another --data-dir, or move that one away")
    } else {
        (Exit::Failed, "check the data directory, then try again")
    };
    Failure::new(exit, WHAT, chain(error), hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restore_at_an_address_that_workers_do_not_know_says_how_each_joins_again() {
        let address = "10.0.0.9:8080".parse().unwrap();
        assert_eq!(workers_elsewhere(&["w1"], true, &address), "");
        assert_eq!(workers_elsewhere(&[], false, &address), "");
        let said = workers_elsewhere(&["w1", "w2"], false, &address);
        let command = "\n  warren worker join 10.0.0.9:8080 --token TOKEN\n";
        assert!(said.contains("(w1, w2)") && said.contains(command), "{said}");
    }
}
