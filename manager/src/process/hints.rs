//! Hints for users after a manager has failed, or was changed while stopped. Pure.

use std::path::Path;

use warren_bootstrap::force_new_cluster::{ForceNewClusterError, ForceNewClusterOutcome};
use warren_consensus::FatalError;
use warren_daemon::data_dir_flag;
use warren_store::raft::driver::DriverError;

/// After the driver ended with `error`.
pub(super) fn after_driver_error(error: &DriverError, data_dir: &Path) -> String {
    let start = format!("`warren manager run{}`", data_dir_flag(data_dir));
    match error {
        DriverError::Log(warren_log::Error::Newer { .. }) | DriverError::UnreadableEntry { .. } => {
            upgrade_hint(&start)
        }
        DriverError::Raft(fatal) if matches!(**fatal, FatalError::UnreadableChange { .. }) => {
            upgrade_hint(&start)
        }
        DriverError::Log(_) | DriverError::LogReplaced { .. } => {
            format!("check the disk with `dmesg`; {}", join_again_hint(data_dir))
        }
        DriverError::Raft(_) => join_again_hint(data_dir),
        DriverError::Seal(_) => format!("start it again with {start}: it creates a new data key"),
        DriverError::SnapshotMissing(_) | DriverError::Panicked => {
            format!("start it again with {start}; if it fails again, {}", join_again_hint(data_dir))
        }
    }
}

fn upgrade_hint(start: &str) -> String {
    format!(
        "install the version of Warren that `warren manager ls -o wide` shows for the others, then {start}"
    )
}

/// A machine that joins with the address of a manager that is down replaces it, so nothing has to be removed.
fn join_again_hint(data_dir: &Path) -> String {
    let flag = data_dir_flag(data_dir);
    let dir = data_dir.join("manager");
    format!(
        "if other managers are running, move {dir} away and join this machine again with `warren manager \
         join HOST:PORT --token TOKEN{flag}` (token: `warren token create --role manager` there); if none \
         is left, move it away and restore a backup with `warren manager restore FILE{flag}`",
        dir = dir.display()
    )
}

/// After this manager was removed from the cluster.
pub(super) fn after_removal(data_dir: &Path) -> String {
    format!(
        "to make the machine a manager again: `warren manager join HOST:PORT --token TOKEN{}`",
        data_dir_flag(data_dir)
    )
}

/// After the cluster was superseded by a later incarnation.
pub(super) fn after_superseded(data_dir: &Path) -> String {
    let flag = data_dir_flag(data_dir);
    format!(
        "to join the new incarnation: `warren manager join HOST:PORT --token TOKEN{flag}`; to create a new \
         cluster from this manager: `warren manager init --force-new-cluster{flag}`"
    )
}

/// After creating a new cluster from this manager failed.
pub(super) fn after_refused_force(error: &ForceNewClusterError, data_dir: &Path) -> String {
    match error {
        ForceNewClusterError::NoManager(_) => {
            "give the data directory of the remaining manager with --data-dir".to_owned()
        }
        ForceNewClusterError::NoCluster | ForceNewClusterError::Removed => {
            "run `warren manager init --force-new-cluster` on another machine that has a manager, or \
             restore a backup on a machine without one: `warren manager restore FILE`; this one was not \
             changed"
                .to_owned()
        }
        ForceNewClusterError::Log(warren_log::Error::InUse { .. }) => {
            format!("stop it, then repeat `warren manager init --force-new-cluster{}`", data_dir_flag(data_dir))
        }
        _ => "nothing was changed: choose another remaining manager, or restore a backup on a machine without one \
              with `warren manager restore FILE`"
            .to_owned(),
    }
}

/// After a new cluster was created from this manager: the result, and what to do next.
pub(super) fn after_force_new_cluster(alone: ForceNewClusterOutcome, data_dir: &Path) -> String {
    let what = match alone {
        ForceNewClusterOutcome::Unchanged => {
            "this manager is the only member of its cluster already; nothing was changed".to_owned()
        }
        ForceNewClusterOutcome::Created { others, uncommitted } => {
            let count = |count: u64, one: &str, more: &str| match count {
                1 => format!("1 {one}"),
                count => format!("{count} {more}"),
            };
            format!(
                "this manager is now the only member of its cluster, without {}\n\
                 {} of its log counted as committed",
                count(others as u64, "other", "others"),
                count(uncommitted, "further entry", "further entries"),
            )
        }
    };
    format!(
        "{what}\n\
         make sure that none of the other managers runs: two of them that cannot reach this one elect their own\n\
         leader for nodes and users that do not know this incarnation; one that reaches this manager stops and must\n\
         join again with a token: its tasks keep running until then, and are stopped and removed when it joins\n\
         then start this manager without --force-new-cluster:\n  warren manager run{}\n",
        data_dir_flag(data_dir)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_names_command_and_data_dir() {
        let lost = FatalError::LogLost { leader: 2, commit: 9 };
        let diverged = FatalError::LogDiverged { leader: 2, index: 9, local_term: 1, leader_term: 2 };
        for error in [
            DriverError::Raft(Box::new(lost)),
            DriverError::Raft(Box::new(diverged)),
            DriverError::Log(warren_log::Error::Crashed),
            DriverError::SnapshotMissing(7),
            DriverError::Panicked,
        ] {
            let output = error.to_string();
            assert!(!output.contains("see "), "{output}");
            let hint = after_driver_error(&error, Path::new("/d"));
            assert!(hint.contains(" --data-dir /d`"), "{hint}");
            assert!(!hint.contains("log above"), "{hint}");
            assert!(!after_driver_error(&error, Path::new(warren_daemon::DATA_DIR)).contains("--data-dir"));
        }
    }

    #[test]
    fn lost_log_hint_says_how_to_rejoin() {
        let lost = Box::new(FatalError::LogLost { leader: 2, commit: 9 });
        let hint = after_driver_error(&DriverError::Raft(lost), Path::new("/d"));
        for output in [
            "move /d/manager away",
            "`warren manager join HOST:PORT --token TOKEN --data-dir /d`",
            "`warren token create --role manager`",
            "`warren manager restore FILE --data-dir /d`",
        ] {
            assert!(hint.contains(output), "{hint}");
        }
    }
}
