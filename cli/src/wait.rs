//! Waits until a service reaches its goal. Watch events update the snapshot or trigger a poll;
//! [`ServiceSnapshot::evaluate`] decides.

mod failure_report;
mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};
use warren_client::{Change, Client, ClusterWatch, Error, TaskFilter};
use warren_proto::v1;

use self::snapshot::desired_replicas;
pub use self::snapshot::has_slot;
pub use snapshot::{ServiceSnapshot, WaitOutcome, task_line};

use crate::failure::{CommandError, ExitKind};
use crate::progress::ProgressOutput;

/// Interval of polls. The watch does not report the progress of a task before it runs.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Delay of a poll after a change, for goals that need the rollout, which the watch does not report.
const POLL_AFTER_CHANGE: Duration = Duration::from_millis(200);

/// Time after which a removal names the nodes that have not confirmed it.
const SILENCE: Duration = Duration::from_secs(5);

/// The state to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitGoal {
    /// The desired number of tasks is ready, and no other tasks remain.
    Running,
    /// As [`WaitGoal::Running`], with tasks of any revision.
    Scaled,
    /// The tasks run the new revision.
    Updated,
    /// The tasks of the current revision have ended without an error.
    Completed,
    /// The service and its tasks are removed.
    Gone,
}

/// A service and the state to wait for.
#[derive(Debug, Clone)]
pub struct ServiceGoal {
    pub id: String,
    pub name: String,
    pub goal: WaitGoal,
    /// Version that the write created; older versions are ignored.
    pub version: u64,
    /// Revision that the write created.
    pub revision: u64,
    /// Replicas that the write requested; `None` if it requested none, and for global services.
    pub replicas: Option<u32>,
    /// Tasks that existed before the write; their failures are ignored.
    pub finished_before: BTreeSet<String>,
    /// Show no progress.
    pub quiet: bool,
}

impl ServiceGoal {
    /// The goal for a service that was just created.
    pub fn new(service: &v1::Service, goal: WaitGoal) -> Self {
        let name = service.spec.as_ref().map(|spec| spec.name.clone()).unwrap_or_default();
        let (id, known) = (service.id.clone(), BTreeSet::new());
        let (version, revision, replicas) = (service.version, service.revision, desired_replicas(service));
        Self { id, name, goal, version, revision, replicas, finished_before: known, quiet: false }
    }

    /// The goal for an existing service; failures of its current tasks are ignored.
    pub async fn of_existing(client: &Client, service: &v1::Service, goal: WaitGoal) -> Result<Self, Error> {
        let filter = TaskFilter { service: service.id.clone(), ..TaskFilter::default() };
        let known = client.tasks().list(filter).await?.into_iter().map(|task| task.id).collect();
        Ok(Self { finished_before: known, ..Self::new(service, goal) })
    }

    /// The goal after a write. An update accepts any number of replicas, since another client may scale the service.
    #[must_use]
    pub fn after_write(self, answer: &v1::Service) -> Self {
        let replicas = desired_replicas(answer).filter(|_| self.goal != WaitGoal::Updated);
        Self { version: answer.version, revision: answer.revision, replicas, ..self }
    }

    /// The same service, whose tasks must also end without an error.
    #[must_use]
    pub fn completed(self) -> Self {
        Self { goal: WaitGoal::Completed, ..self }
    }

    fn failure_summary(&self) -> String {
        match self.goal {
            WaitGoal::Running | WaitGoal::Scaled => {
                format!("service {} did not reach the desired state", self.name)
            }
            WaitGoal::Updated => {
                format!("service {} was not updated to revision {}", self.name, self.revision)
            }
            WaitGoal::Completed => format!("service {} did not complete", self.name),
            WaitGoal::Gone => format!("service {} was not removed", self.name),
        }
    }

    fn hint(&self) -> String {
        let Self { name, .. } = self;
        format!("see `warren service ps {name}` and `warren task inspect TASK`")
    }
}

/// Waits for the services sequentially; they make progress concurrently.
pub async fn wait_all(
    client: &Client,
    expected: &[ServiceGoal],
    timeout: Duration,
) -> Result<(), CommandError> {
    let deadline = Instant::now() + timeout;
    for one in expected {
        let mut progress = if one.quiet { ProgressOutput::Quiet } else { ProgressOutput::new() };
        let snapshot = match wait_one(client, one, deadline, &mut progress).await {
            Ok(snapshot) => snapshot,
            Err(WaitError::Failed(mut why, snapshot)) => {
                why.extend(failure_report::lines(client, one, &snapshot).await);
                return Err(WaitError::Failed(why, snapshot).into_failure(one, timeout));
            }
            Err(end) => return Err(end.into_failure(one, timeout)),
        };
        progress.end(&snapshot.summary(one));
    }
    Ok(())
}

/// Why the goal was not reached.
enum WaitError {
    Failed(Vec<String>, ServiceSnapshot),
    TimedOut(ServiceSnapshot),
    Client(Error),
}

impl WaitError {
    fn into_failure(self, expected: &ServiceGoal, timeout: Duration) -> CommandError {
        match self {
            Self::Failed(why, _) => CommandError::new(
                ExitKind::Failed,
                expected.failure_summary(),
                why.join("\n"),
                expected.hint(),
            ),
            Self::Client(error) => crate::failure::from_client(expected.failure_summary(), error),
            Self::TimedOut(snapshot) => {
                let silent = match expected.goal {
                    WaitGoal::Gone => snapshot.silent_nodes(),
                    _ => Vec::new(),
                };
                let lines = snapshot
                    .waiting_for(expected.goal)
                    .into_iter()
                    .chain(silent)
                    .map(|(task, line)| format!("{task}: {line}"));
                let what = format!("{} after {}", expected.failure_summary(), crate::view::duration(timeout));
                let why: Vec<String> = lines.collect();
                let hint =
                    format!("{}; the cluster continues; use --timeout to wait longer", expected.hint());
                CommandError::new(ExitKind::TimedOut, what, why.join("\n"), hint)
            }
        }
    }
}

async fn wait_one(
    client: &Client,
    expected: &ServiceGoal,
    deadline: Instant,
    progress: &mut ProgressOutput,
) -> Result<ServiceSnapshot, WaitError> {
    let mut watch = client.cluster().watch(&expected.id);
    let mut snapshot = ServiceSnapshot::default();
    let started = Instant::now();
    let mut poll_at = started;
    loop {
        if Instant::now() >= poll_at {
            match timeout_at(deadline, fetch_snapshot(client, expected)).await {
                Ok(Ok(seen)) => snapshot = seen,
                // The watch reports a permanent error.
                Ok(Err(error)) if is_transient(&error) => {}
                Ok(Err(error)) => return Err(WaitError::Client(error)),
                Err(_) => return Err(WaitError::TimedOut(snapshot)),
            }
            // No change says that a task has run for long enough.
            let settling = snapshot.settling_time().unwrap_or(POLL_INTERVAL).max(POLL_AFTER_CHANGE);
            poll_at = Instant::now() + settling.min(POLL_INTERVAL);
        }
        if snapshot.is_known() {
            match snapshot.evaluate(expected) {
                WaitOutcome::Reached => return Ok(snapshot),
                WaitOutcome::Failed(why) => return Err(WaitError::Failed(why, snapshot)),
                WaitOutcome::Waiting => {
                    let mut lines = snapshot.waiting_for(expected.goal);
                    if expected.goal == WaitGoal::Gone && started.elapsed() >= SILENCE {
                        lines.extend(snapshot.silent_nodes());
                    }
                    progress.show(&snapshot.summary(expected), &lines);
                }
            }
        }
        match next_change(&mut watch, poll_at.min(deadline)).await {
            // The service was removed before the watch began: poll.
            Err(error) if error.is_not_found() => poll_at = Instant::now(),
            Err(error) => return Err(WaitError::Client(error)),
            Ok(Some(Change::Resync(_))) => poll_at = Instant::now(),
            Ok(Some(change)) => {
                if let Change::Task(task) = &change
                    && task.settles_in_ms > 0
                {
                    let settling = Duration::from_millis(task.settles_in_ms).max(POLL_AFTER_CHANGE);
                    poll_at = poll_at.min(Instant::now() + settling);
                }
                snapshot.update(change);
                if expected.goal == WaitGoal::Updated {
                    poll_at = poll_at.min(Instant::now() + POLL_AFTER_CHANGE);
                }
            }
            Ok(None) if Instant::now() >= deadline => return Err(WaitError::TimedOut(snapshot)),
            Ok(None) => {}
        }
    }
}

/// The next change; `None` if there is none until `until`.
async fn next_change(watch: &mut ClusterWatch, until: Instant) -> Result<Option<Change>, Error> {
    tokio::select! {
        change = watch.next() => change.map(Some),
        () = sleep_until(until) => Ok(None),
    }
}

async fn fetch_snapshot(client: &Client, expected: &ServiceGoal) -> Result<ServiceSnapshot, Error> {
    let service = match client.services().get(&expected.id).await {
        Ok(service) => service,
        Err(error) if error.is_not_found() => return Ok(ServiceSnapshot::removed()),
        Err(error) => return Err(error),
    };
    let filter = TaskFilter { service: expected.id.clone(), ..TaskFilter::default() };
    match client.tasks().list(filter).await {
        Ok(tasks) => Ok(ServiceSnapshot::of(service, tasks)),
        Err(error) if error.is_not_found() => Ok(ServiceSnapshot::removed()),
        Err(error) => Err(error),
    }
}

/// Whether a retry may succeed.
pub fn is_transient(error: &Error) -> bool {
    match error {
        Error::Unreachable { .. } | Error::NoAnswer { .. } => true,
        Error::Refused { problem } => problem.code == tonic::Code::Unavailable,
        _ => false,
    }
}
