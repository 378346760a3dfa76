//! What a person types when a manager has stopped for good, or was changed while it was stopped. Pure.

use std::path::Path;

use warren_consensus::Fatal;
use warren_process::data_dir_flag;

use crate::raft::driver::DriverError;
use crate::recovery::alone::{Alone, AloneError};

/// After a manager ended with `error`.
pub(super) fn after_end(error: &DriverError, data_dir: &Path) -> String {
    let start = format!("`warren manager run{}`", data_dir_flag(data_dir));
    match error {
        DriverError::Log(warren_log::Error::Newer { .. }) | DriverError::Entry { .. } => upgrade(&start),
        DriverError::Raft(fatal) if matches!(**fatal, Fatal::UnknownChange { .. }) => upgrade(&start),
        DriverError::Log(_) | DriverError::Discontinued { .. } => {
            format!("check the disk with `dmesg`; {}", join_again(data_dir))
        }
        DriverError::Raft(_) => join_again(data_dir),
        DriverError::Seal(_) => format!("start it again with {start}: it makes a new data key"),
        DriverError::NoSnapshot(_) | DriverError::Panicked => {
            format!("start it again with {start}; if it ends like this again, {}", join_again(data_dir))
        }
    }
}

fn upgrade(start: &str) -> String {
    format!(
        "install the version of Warren that `warren manager ls -o wide` shows for the others, then {start}"
    )
}

/// A machine that joins with the address of a manager that is down takes its place, so that nothing has to be removed.
fn join_again(data_dir: &Path) -> String {
    let flag = data_dir_flag(data_dir);
    let dir = data_dir.join("manager");
    format!(
        "where other managers run, move {dir} away, and have this machine join them again with `warren manager join \
         HOST:PORT --token TOKEN{flag}` (`warren token create --role manager` prints a token there); where none is \
         left, move it away and restore a backup with `warren manager restore FILE{flag}`",
        dir = dir.display()
    )
}

/// After the cluster removed this manager.
pub(super) fn after_removal(data_dir: &Path) -> String {
    format!("to make it one again: `warren manager join HOST:PORT --token TOKEN{}`", data_dir_flag(data_dir))
}

/// After the cluster went on without this manager.
pub(super) fn after_overtaking(data_dir: &Path) -> String {
    let flag = data_dir_flag(data_dir);
    format!(
        "to join what went on: `warren manager join HOST:PORT --token TOKEN{flag}`; to make this manager the cluster \
         again: `warren manager init --force-new-cluster{flag}`"
    )
}

/// After no new cluster was made of this manager.
pub(super) fn after_refused_force(error: &AloneError, data_dir: &Path) -> String {
    match error {
        AloneError::NoManager(_) => "name the directory of the manager that is left with --data-dir".to_owned(),
        AloneError::NoCluster | AloneError::Removed => {
            "run `warren manager init --force-new-cluster` on another machine that has a manager, or restore a \
             backup on a machine without one: `warren manager restore FILE`; this one is as it was"
                .to_owned()
        }
        AloneError::Log(warren_log::Error::InUse { .. }) => {
            format!("stop it, then repeat `warren manager init --force-new-cluster{}`", data_dir_flag(data_dir))
        }
        _ => "nothing was changed: choose another manager that is left, or restore a backup on a machine without one \
              with `warren manager restore FILE`"
            .to_owned(),
    }
}

/// What became of a manager that shall go on alone, and what to do next.
pub(super) fn after_force(alone: Alone, data_dir: &Path) -> String {
    let what = match alone {
        Alone::Already => {
            "this manager was the only one of its cluster already; nothing was changed".to_owned()
        }
        Alone::Now { others, uncommitted } => {
            let count = |count: u64, one: &str, more: &str| match count {
                1 => format!("1 {one}"),
                count => format!("{count} {more}"),
            };
            format!(
                "this manager is the only one of its cluster from now on, without {}\n\
                 {} of its log counted as committed",
                count(others as u64, "other", "others"),
                count(uncommitted, "further entry", "further entries"),
            )
        }
    };
    format!(
        "{what}\n\
         see that no other manager of it runs: two that come back and cannot reach this one would lead another half of \
         it,\n\
         for nodes and people that have not heard of this life; one that reaches this one stops, and joins again with \
         a\n\
         token: what it runs goes on until then, and is stopped and removed when it joins\n\
         then start this one, without --force-new-cluster, with\n  warren manager run{}\n",
        data_dir_flag(data_dir)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_after_each_end_names_a_command_with_the_data_dir() {
        let lost = Fatal::LostLog { leader: 2, commit: 9 };
        let diverged = Fatal::Diverged { leader: 2, index: 9, ours: 1, theirs: 2 };
        for error in [
            DriverError::Raft(Box::new(lost)),
            DriverError::Raft(Box::new(diverged)),
            DriverError::Log(warren_log::Error::Crashed),
            DriverError::NoSnapshot(7),
            DriverError::Panicked,
        ] {
            let said = error.to_string();
            assert!(!said.contains("see ") && !said.contains("new id"), "{said}");
            let hint = after_end(&error, Path::new("/d"));
            assert!(hint.contains(" --data-dir /d`"), "{hint}");
            assert!(!hint.contains("log above"), "{hint}");
            assert!(!after_end(&error, Path::new(warren_process::DATA_DIR)).contains("--data-dir"));
        }
    }

    #[test]
    fn hint_after_a_lost_log_says_how_to_join_again() {
        let lost = Box::new(Fatal::LostLog { leader: 2, commit: 9 });
        let hint = after_end(&DriverError::Raft(lost), Path::new("/d"));
        for said in [
            "move /d/manager away",
            "`warren manager join HOST:PORT --token TOKEN --data-dir /d`",
            "`warren token create --role manager`",
            "`warren manager restore FILE --data-dir /d`",
        ] {
            assert!(hint.contains(said), "{hint}");
        }
    }
}
