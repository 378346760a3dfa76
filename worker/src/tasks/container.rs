//! Between a task and its container's record.

pub(super) mod field;
pub(super) mod spec;

use std::time::UNIX_EPOCH;

use warren_runtime::{ContainerId, Process};
use warren_task::{Container, Ledger};
use warren_types::{ClusterId, Exit, ImageDigest, TaskAssignment, TaskId, Timestamp};

/// Label with the cluster's id.
const CLUSTER: &str = "cluster";

/// The container's id: the task's.
pub(super) fn id(task: &TaskId) -> ContainerId {
    ContainerId::parse(&task.to_string()).expect("a task's id is letters and digits with one dash between")
}

/// A container that an agent of this cluster made, as a listing shows it.
#[derive(Debug, Clone)]
pub(crate) struct Listed {
    pub task: TaskId,
    /// `None` when the record's extension cannot be read.
    pub assignment: Option<TaskAssignment>,
    pub process: Process,
    /// `None` of a record that was just made.
    pub ledger: Option<Ledger>,
}

/// Reads a listed container; `None` when it is not ours.
pub(crate) fn listed(found: &warren_runtime::Found, cluster: ClusterId) -> Option<Listed> {
    let task: TaskId = found.owner.as_ref()?.task.parse().ok()?;
    if found.labels.get(CLUSTER) != Some(&cluster.to_string()) || found.id != id(&task) {
        return None;
    }
    let assignment = serde_json::from_slice(&found.assignment);
    let assignment = assignment.map_err(|error| {
        tracing::warn!(%task, %error, "the record holds no assignment that this version can read");
    });
    let assignment = assignment.ok().filter(|assignment: &TaskAssignment| assignment.id == task);
    Some(Listed { task, assignment, process: found.process.clone(), ledger: ledger(found) })
}

/// What the container is made from, if its record is bound to that, as all are that an agent makes.
pub(super) fn made_from(found: &warren_runtime::Found) -> Option<ImageDigest> {
    found.image.rsplit_once('@').and_then(|(_, digest)| digest.parse().ok())
}

/// The ledger in the record; a record that was just made has none.
pub(super) fn ledger(found: &warren_runtime::Found) -> Option<Ledger> {
    if found.ledger.is_empty() {
        return None;
    }
    let parsed = found.ledger.parse();
    parsed.map_err(|error| tracing::warn!(container = %found.id, %error, "starting a new history")).ok()
}

/// The container as `step` sees it. `Err` with the runtime's words when it did not say.
pub(super) fn state(found: Option<&warren_runtime::Found>, now: Timestamp) -> Result<Container, String> {
    Ok(match found.map(|found| &found.process) {
        None => Container::Absent,
        Some(Process::None) => Container::Recorded,
        Some(Process::Created { .. }) => Container::Created,
        Some(Process::Running { .. }) => Container::Running { since: now },
        Some(Process::Stopped(exit)) => Container::Stopped { exit: exit_of(exit), at: ended_at(exit, now) },
        Some(Process::Unknown { reason }) => return Err(reason.clone()),
    })
}

fn exit_of(exit: &warren_runtime::Exit) -> Exit {
    Exit { code: i32::try_from(exit.code).unwrap_or(i32::MAX), out_of_memory: exit.out_of_memory }
}

/// An exit time of zero or in the future is a runtime that does not know it, or a clock that was set back.
fn ended_at(exit: &warren_runtime::Exit, now: Timestamp) -> Timestamp {
    let millis = exit.at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    match u64::try_from(millis) {
        Ok(millis) if millis > 0 && millis <= now.0 => Timestamp(millis),
        _ => now,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::{Duration, SystemTime};

    use warren_logger::Programs;
    use warren_network::files::TaskFiles;
    use warren_runtime::{Found, Signal};

    use super::spec::{Joined, spec};
    use super::*;
    use crate::samples::{settings, task, task_id};

    pub fn joined() -> Joined {
        let file = |name: &str| PathBuf::from("/data/tasks/x").join(name);
        let files =
            TaskFiles { resolv_conf: file("resolv.conf"), hosts: file("hosts"), hostname: file("hostname") };
        let bin = |name: &str| PathBuf::from("/data/bin").join(name);
        let programs = Programs { logger: bin("logger"), init: bin("init"), exec: bin("exec") };
        let (netns, hostname) = ("/run/netns/x".into(), "web-1".into());
        let (sources, contents) = (Vec::new(), Vec::new());
        Joined { netns, files, log: file("output"), hostname, programs, sources, contents }
    }

    fn found(process: Process) -> Found {
        let cluster = settings().cluster;
        let task = task(1);
        let spec = spec(&task, &task.spec, 1, cluster, &joined()).unwrap();
        Found {
            id: spec.id,
            owner: Some(spec.owner),
            image: "demo:1".into(),
            assignment: spec.assignment,
            ledger: String::new(),
            labels: spec.labels,
            stop_signal: Signal::TERM,
            process,
            snapshot: true,
        }
    }

    #[test]
    fn a_record_says_what_its_task_is() {
        let task = task(1);
        let spec = spec(&task, &task.spec, 1, settings().cluster, &joined()).unwrap();
        spec.check().unwrap();
        let listed = listed(&found(Process::None), settings().cluster).unwrap();
        assert_eq!((listed.task, listed.assignment), (task_id(1), Some(task)));
    }

    #[test]
    fn containers_of_others_are_not_ours() {
        let cluster = settings().cluster;
        let foreign = Found { owner: None, ..found(Process::None) };
        assert!(listed(&foreign, cluster).is_none());
        assert!(listed(&found(Process::None), ClusterId(warren_types::Id(99))).is_none());
        let torn = Found { assignment: b"{".to_vec(), ..found(Process::None) };
        assert!(listed(&torn, cluster).unwrap().assignment.is_none());
    }

    #[test]
    fn exits_have_a_time_that_is_past() {
        let now = Timestamp(10_000);
        let exit = |millis| warren_runtime::Exit {
            code: 137,
            at: SystemTime::UNIX_EPOCH + Duration::from_millis(millis),
            out_of_memory: true,
        };
        for (millis, wanted) in [(9_000, 9_000), (0, 10_000), (11_000, 10_000)] {
            let stopped = found(Process::Stopped(exit(millis)));
            let wanted =
                Container::Stopped { exit: Exit { code: 137, out_of_memory: true }, at: Timestamp(wanted) };
            assert_eq!(state(Some(&stopped), now), Ok(wanted));
        }
        let unknown = found(Process::Unknown { reason: "busy".into() });
        assert_eq!(state(Some(&unknown), now), Err("busy".into()));
    }
}
