//! Conversion between tasks and container records.

pub(super) mod spec;
pub(super) mod spec_path;

use std::time::UNIX_EPOCH;

use warren_runtime::{ContainerId, ProcessState};
use warren_task::{AttemptHistory, ContainerState};
use warren_types::{ClusterId, IdRange, ImageDigest, TaskAssignment, TaskExit, TaskId, Timestamp};

/// Label with the cluster's id; users cannot set labels that start with `warren/`.
const CLUSTER_LABEL: &str = "warren/cluster";

/// The container's id: the task's.
pub(crate) fn id(task: &TaskId) -> ContainerId {
    ContainerId::parse(&task.to_string()).expect("a task's id is letters and digits with one dash between")
}

/// A container that an agent of this cluster created, from a listing.
#[derive(Debug, Clone)]
pub(crate) struct ListedContainer {
    pub task: TaskId,
    /// `None` if the record's extension cannot be read.
    pub assignment: Option<TaskAssignment>,
    pub process: ProcessState,
    /// `None` in a new record.
    pub history: Option<AttemptHistory>,
    /// The ids of its users on this node; `None` without a user namespace of its own.
    pub ids: Option<IdRange>,
}

/// Parses a listed container; `None` for other clients' containers.
pub(crate) fn parse_listed(
    found: &warren_runtime::ContainerStatus,
    cluster: ClusterId,
) -> Option<ListedContainer> {
    let task: TaskId = found.owner.as_ref()?.task.parse().ok()?;
    if found.labels.get(CLUSTER_LABEL) != Some(&cluster.to_string()) || found.id != id(&task) {
        return None;
    }
    let assignment = serde_json::from_slice(&found.assignment);
    let assignment = assignment.map_err(|error| {
        tracing::warn!(%task, %error, "this version cannot read the assignment in the record");
    });
    let assignment = assignment.ok().filter(|assignment: &TaskAssignment| assignment.id == task);
    Some(ListedContainer {
        task,
        assignment,
        process: found.process.clone(),
        history: parse_history(found),
        ids: found.ids,
    })
}

/// Digest of the container's image, if its record has one; every record of an agent has.
pub(super) fn container_image(found: &warren_runtime::ContainerStatus) -> Option<ImageDigest> {
    found.image.rsplit_once('@').and_then(|(_, digest)| digest.parse().ok())
}

/// The digest in the assignment that the container was created from.
pub(super) fn recorded_digest(found: &warren_runtime::ContainerStatus) -> Option<ImageDigest> {
    serde_json::from_slice::<TaskAssignment>(&found.assignment).ok()?.digest
}

/// The attempt history in the record; `None` in a new record.
pub(super) fn parse_history(found: &warren_runtime::ContainerStatus) -> Option<AttemptHistory> {
    if found.attempt_history.is_empty() {
        return None;
    }
    let parsed = found.attempt_history.parse();
    parsed
        .map_err(|error| tracing::warn!(container = %found.id, %error, "starting a new attempt history"))
        .ok()
}

/// The container's state for `step`. `Err` with the cause if the runtime did not answer.
pub(super) fn state(
    found: Option<&warren_runtime::ContainerStatus>,
    now: Timestamp,
) -> Result<ContainerState, String> {
    Ok(match found.map(|found| &found.process) {
        None => ContainerState::Absent,
        Some(ProcessState::Absent) => ContainerState::Recorded,
        Some(ProcessState::Created { .. }) => ContainerState::Created,
        Some(ProcessState::Running { .. }) => ContainerState::Running { since: now },
        Some(ProcessState::Stopped(exit)) => {
            ContainerState::Stopped { exit: exit_of(exit), at: ended_at(exit, now) }
        }
        Some(ProcessState::Unknown { reason }) => return Err(reason.clone()),
    })
}

fn exit_of(exit: &warren_runtime::ProcessExit) -> TaskExit {
    TaskExit { code: i32::try_from(exit.code).unwrap_or(i32::MAX), out_of_memory: exit.out_of_memory }
}

/// An exit time of zero or in the future is unknown to the runtime, or the clock was set back.
fn ended_at(exit: &warren_runtime::ProcessExit, now: Timestamp) -> Timestamp {
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

    use warren_container_programs::ContainerPrograms;
    use warren_network::files::TaskNetworkFiles;
    use warren_runtime::{ContainerStatus, Signal};

    use super::spec::{ContainerInputs, container_spec};
    use super::*;
    use crate::fixtures::{settings, task, task_id};

    pub fn test_inputs() -> ContainerInputs {
        let file = |name: &str| PathBuf::from("/data/tasks/x").join(name);
        let files = TaskNetworkFiles {
            resolv_conf: file("resolv.conf"),
            hosts: file("hosts"),
            hostname: file("hostname"),
        };
        let programs = ContainerPrograms::in_dir("/data/bin".as_ref());
        let network = warren_runtime::NetworkMode::Joined("/run/netns/x".into());
        let (sources, objects) = (Vec::new(), Vec::new());
        ContainerInputs {
            network,
            files,
            log: file("output"),
            stdin: file("stdin"),
            hostname: "web-1".into(),
            programs,
            sources,
            secret_objects: objects,
            users: None,
            seccomp: None,
        }
    }

    fn container_status(process: ProcessState) -> ContainerStatus {
        let cluster = settings().cluster;
        let task = task(1);
        let spec = container_spec(&task, &task.spec, 1, cluster, &test_inputs()).unwrap();
        ContainerStatus {
            id: spec.id,
            owner: Some(spec.owner),
            image: "demo:1".into(),
            assignment: spec.assignment,
            attempt_history: String::new(),
            labels: spec.labels,
            stop_signal: Signal::TERM,
            process,
            has_snapshot: true,
            ids: None,
        }
    }

    #[test]
    fn record_is_parsed() {
        let task = task(1);
        let spec = container_spec(&task, &task.spec, 1, settings().cluster, &test_inputs()).unwrap();
        spec.validate().unwrap();
        let listed = parse_listed(&container_status(ProcessState::Absent), settings().cluster).unwrap();
        assert_eq!((listed.task, listed.assignment), (task_id(1), Some(task)));
    }

    #[test]
    fn foreign_containers_are_ignored() {
        let cluster = settings().cluster;
        let foreign = ContainerStatus { owner: None, ..container_status(ProcessState::Absent) };
        assert!(parse_listed(&foreign, cluster).is_none());
        assert!(
            parse_listed(&container_status(ProcessState::Absent), ClusterId(warren_types::Id(99))).is_none()
        );
        let torn = ContainerStatus { assignment: b"{".to_vec(), ..container_status(ProcessState::Absent) };
        assert!(parse_listed(&torn, cluster).unwrap().assignment.is_none());
    }

    #[test]
    fn exit_time_is_never_in_future() {
        let now = Timestamp(10_000);
        let exit = |millis| warren_runtime::ProcessExit {
            code: 137,
            at: SystemTime::UNIX_EPOCH + Duration::from_millis(millis),
            out_of_memory: true,
        };
        for (millis, expected) in [(9_000, 9_000), (0, 10_000), (11_000, 10_000)] {
            let stopped = container_status(ProcessState::Stopped(exit(millis)));
            let desired = ContainerState::Stopped {
                exit: TaskExit { code: 137, out_of_memory: true },
                at: Timestamp(expected),
            };
            assert_eq!(state(Some(&stopped), now), Ok(desired));
        }
        let unknown = container_status(ProcessState::Unknown { reason: "busy".into() });
        assert_eq!(state(Some(&unknown), now), Err("busy".into()));
    }
}
