//! `warren manager restore`: creates a manager from a backup, on a machine without one. Starts nothing.

use std::path::Path;
use std::time::SystemTime;

use warren_bootstrap::backup::{self, Backup, BackupAuthor};
use warren_bootstrap::ca::ManagerKeys;
use warren_bootstrap::restore::{BackupRestore, BackupRestoreError, ManagerContact};
use warren_daemon::node_file::NodeFile;
use warren_daemon::{CommandError, ExitKind, HostInfo, data_dir_flag, error_chain};
use warren_manager::process::{MANAGER_SECTION, ManagerFlags, ManagerStartReason, write_admin_context};
use warren_types::{ManagerAddress, NodeRole};

use super::NodeStart;
use crate::args::{NodeRunArgs, PassphraseArgs};
use crate::view::{age, now};
use crate::{input, output};

const WHAT: &str = "the backup was not restored";

/// Restores the backup in `file`.
pub async fn restore(
    file: &Path,
    passphrase: &PassphraseArgs,
    args: NodeRunArgs,
) -> Result<(), CommandError> {
    let machine = HostInfo::detect()?;
    let given = args.manager.cluster_range.clone();
    let kept = NodeFile::load(&args.dirs.data_dir)?;
    let restoring = BackupRestore::begin(&args.dirs.data_dir).map_err(|error| failed(&error))?;
    let passphrase =
        input::read_passphrase(passphrase.passphrase_file.as_deref(), input::PromptCount::Once, WHAT)?;
    let sealed = std::fs::read(file).map_err(|error| read_failed(file, &error))?;
    let opened = tokio::task::spawn_blocking(move || backup::read(&passphrase, sealed)).await;
    let opened = opened.expect("reading a backup does not panic").map_err(|error| {
        let why = format!("{}: {}", file.display(), error_chain(&error));
        CommandError::new(ExitKind::Failed, WHAT, why, "check the passphrase, or use another backup")
    })?;
    let cluster = opened.state.cluster().expect("a backup without a cluster is refused");
    if !given.is_empty() && given != cluster.ranges {
        let why = "--cluster-range conflicts with the ranges in the backup";
        return Err(CommandError::new(ExitKind::Usage, WHAT, why, "leave --cluster-range out"));
    }
    let args = with_backup_settings(args, kept.as_ref(), opened.author.as_ref())?;
    let mut node = NodeStart::from_args(args, &machine, &ManagerStartReason::Init)?;
    // Stored as given at cluster creation, since later flags are checked against it.
    node.stored.flags.cluster_range = cluster.ranges.clone();
    let advertised = node.plan.join_address()?;
    let mut text = restored_message(&opened, &node, &advertised);
    // Before the directory of the manager, whose existence makes this machine a manager.
    node.sections().save()?;
    let (name, address) = (node.plan.name.clone(), advertised.to_string());
    let contact = ManagerContact { name, address: advertised };
    let engine = node.plan.log_engine;
    let finish = move || restoring.finish(opened, engine, contact, SystemTime::now());
    let finished = tokio::task::spawn_blocking(finish).await.expect("writing files does not panic");
    finished.map_err(|error| failed(&error))?;
    let keys = ManagerKeys::open(&node.plan.data_dir.join("manager"), false, SystemTime::now());
    let keys = keys.map_err(|error| failed(&error.into()))?;
    let admin = keys.admin().borrow().clone();
    let context = write_admin_context(&address, &[], keys.cluster, &keys.trust.roots(), &admin);
    text += context.as_deref().unwrap_or_default();
    output::print(&text)
}

/// Fills flags that were given neither now nor before with those of the manager that wrote the backup.
fn with_backup_settings(
    mut args: NodeRunArgs,
    kept: Option<&NodeFile>,
    writer: Option<&BackupAuthor>,
) -> Result<NodeRunArgs, CommandError> {
    let before = kept.map(|kept| kept.section::<ManagerFlags>(MANAGER_SECTION)).transpose()?.flatten();
    if let (None, Some(BackupAuthor { name, is_manager_only: manager_only })) = (before, writer) {
        args.worker.node_name = args.worker.node_name.or_else(|| Some(name.clone()));
        args.manager_only = args.manager_only.or(Some(*manager_only));
    }
    Ok(args)
}

/// Describes the restored cluster and the next steps.
fn restored_message(backup: &Backup, node: &NodeStart, address: &ManagerAddress) -> String {
    let Backup { state, created_at, .. } = backup;
    let cluster = state.cluster().map(|cluster| cluster.id.to_string()).unwrap_or_default();
    let count = |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    let tokens = match state.tokens_after(None).count() {
        0 => String::new(),
        count => {
            format!("join tokens are not restored ({count}): create new ones with `warren token create`\n")
        }
    };
    let autolock = match state.unlock_key() {
        None => "",
        Some(_) => {
            "autolock is off now: turn it on, with a new unlock key, with `warren cluster update --autolock on`\n"
        }
    };
    let workers = state.nodes().filter(|node| node.role == NodeRole::Worker);
    let workers: Vec<&str> = workers.map(|node| node.name.as_str()).collect();
    let is_known = state.members().any(|member| member.address == *address);
    let runs = if node.worker.is_some() { "runs tasks" } else { "runs no tasks (--manager-only)" };
    format!(
        "cluster {cluster} restored to its state {} ago: {}, {}\n{tokens}{autolock}\
         this machine is its only manager, is named {} and {runs}; make sure that no other manager of it runs, then \
         start this one with\n  warren manager run{}\n{}",
        age(*created_at, now()),
        count(state.services().count(), "service"),
        count(state.nodes().count(), "node"),
        node.plan.name,
        data_dir_flag(&node.plan.data_dir),
        workers_to_rejoin_message(&workers, is_known, address),
    )
}

/// How the workers join again; empty if `address` is among their managers already.
fn workers_to_rejoin_message(workers: &[&str], is_known: bool, address: &ManagerAddress) -> String {
    if workers.is_empty() || is_known {
        return String::new();
    }
    format!(
        "workers do not know its address, {address}: they would be DOWN, and their tasks would also start on other \
         nodes; on each of them ({}) stop the worker, then let it rejoin as the same node with\n  \
         warren worker join {address} --token TOKEN\n\
         create TOKEN with `warren token create --role worker` once this manager runs\n",
        workers.join(", ")
    )
}

fn read_failed(file: &Path, error: &std::io::Error) -> CommandError {
    let exit =
        if error.kind() == std::io::ErrorKind::NotFound { ExitKind::NotFound } else { ExitKind::Failed };
    CommandError::new(
        exit,
        WHAT,
        format!("{}: {error}", file.display()),
        "check the path and its permissions",
    )
}

fn failed(error: &BackupRestoreError) -> CommandError {
    let (exit, hint) = if error.is_directory_in_use() {
        (ExitKind::Conflict, "choose another --data-dir, or move that one away")
    } else {
        (ExitKind::Failed, "check the data directory, then try again")
    };
    CommandError::new(exit, WHAT, error_chain(error), hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restore_at_new_address_lists_worker_join_commands() {
        let address = "10.0.0.9:8080".parse().unwrap();
        assert_eq!(workers_to_rejoin_message(&["w1"], true, &address), "");
        assert_eq!(workers_to_rejoin_message(&[], false, &address), "");
        let output = workers_to_rejoin_message(&["w1", "w2"], false, &address);
        let command = "\n  warren worker join 10.0.0.9:8080 --token TOKEN\n";
        assert!(output.contains("(w1, w2)") && output.contains(command), "{output}");
    }
}
