//! The actor of one task: the loop that reads the inputs, calls `step`, executes one action, and records the
//! outcome.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use warren_control::Clock;
use warren_health::ProbeTarget;
use warren_runtime::NetworkMode;
use warren_task::{
    Action, ContainerState, HookKind, NextStep, ObservedTask, ResourceState, build_report, should_report,
    step,
};
use warren_types::{
    DesiredTaskState, ImageDigest, ServiceName, TaskAssignment, TaskId, TaskReport, Timestamp,
};

use crate::connectivity::NodeConnectivity;
use crate::tasks::checks::{CheckSubject, HealthChecker};
use crate::tasks::container;
use crate::tasks::executor::{ActionExecutor, ActionOutcome, ActionRequest, PreparedResources};
use crate::tasks::failure::ActionFailure;
use crate::tasks::hooks::{HookRequest, HookRun, POST_START_LIMIT};
use crate::tasks::reporter::TaskReporter;

/// Timeout of an action, above the deadlines of its calls. An action that still runs then is reported; no
/// other starts for the task before it ends.
const ACTION_DEADLINE: Duration = Duration::from_secs(120);

/// The namespace of the agent itself, for the thread that opens it.
const HOST_NETNS: &str = "/proc/thread-self/ns/net";

/// Inputs of an actor, set by the supervisor. The counters only increase: an actor that missed one change
/// sees the next.
#[derive(Debug, Clone, Default)]
pub(super) struct ActorInputs {
    /// `None` if the task is unknown.
    pub desired: Option<Arc<TaskAssignment>>,
    /// The task is not desired: the actor ends when nothing is left of it.
    pub is_dismissed: bool,
    /// The container may have changed.
    pub inspect_requests: u64,
    /// The task's network or files may have been damaged.
    pub verify_requests: u64,
    /// The cause of failed actions may be gone.
    pub retry_requests: u64,
    /// An image arrived on the node.
    pub image_arrivals: u64,
    /// No other node sends the stopping task new clients.
    pub is_withdrawn: bool,
    /// The bootstrap service that the start of the task waits for.
    pub awaited_service: Option<ServiceName>,
    /// Connectivity of the node to managers. Wakes only tasks that stop on disconnect.
    pub connectivity: NodeConnectivity,
    /// Why the task must end, because of its writable layer.
    pub eviction: Option<String>,
}

impl ActorInputs {
    /// The task must be removed completely; the last report says so.
    fn wants_removal(&self) -> bool {
        self.desired.as_ref().is_none_or(|desired| desired.desired == DesiredTaskState::Remove)
    }

    /// The task is stopped if the node has no manager for too long.
    pub fn stops_when_disconnected(&self) -> bool {
        self.desired.as_ref().is_some_and(|desired| !desired.spec.on_disconnect.is_keep())
    }
}

/// The supervisor's end of an actor.
#[derive(Debug)]
pub(super) struct ActorHandle {
    inputs: watch::Sender<ActorInputs>,
    seen: Arc<Mutex<SeenContainer>>,
}

/// What an actor last saw of its container.
#[derive(Clone, Copy, Debug)]
struct SeenContainer {
    phase: ContainerPhase,
    /// Its files may exist.
    has_layer: bool,
}

impl From<&ObservedTask> for SeenContainer {
    fn from(found: &ObservedTask) -> Self {
        let phase = ContainerPhase::from(&found.container);
        Self { phase, has_layer: phase != ContainerPhase::Absent && found.layer != ResourceState::Absent }
    }
}

/// The state of a container without its details, to compare what an actor saw with a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContainerPhase {
    Absent,
    Recorded,
    Created,
    Running,
    Stopped,
}

impl From<&ContainerState> for ContainerPhase {
    fn from(container: &ContainerState) -> Self {
        match container {
            ContainerState::Absent => Self::Absent,
            ContainerState::Recorded => Self::Recorded,
            ContainerState::Created => Self::Created,
            ContainerState::Running { .. } => Self::Running,
            ContainerState::Stopped { .. } => Self::Stopped,
        }
    }
}

impl ActorHandle {
    /// Changes the inputs; the actor is woken if `change` returns true.
    pub fn update(&self, change: impl FnOnce(&mut ActorInputs) -> bool) {
        self.inputs.send_if_modified(change);
    }

    /// What the actor last saw.
    pub fn container_phase(&self) -> ContainerPhase {
        self.seen().phase
    }

    /// Whether the task was told to end because of its writable layer.
    pub fn is_evicted(&self) -> bool {
        self.inputs.borrow().eviction.is_some()
    }

    /// Whether the container still has a process or its layer.
    pub fn has_process_or_layer(&self) -> bool {
        let SeenContainer { phase, has_layer } = self.seen();
        has_layer || matches!(phase, ContainerPhase::Created | ContainerPhase::Running)
    }

    fn seen(&self) -> SeenContainer {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An [`Action::EnsureImage`] in progress, which may take hours. Dropping it cancels the pull.
struct ImageFetch {
    work: BoxFuture<'static, Result<ActionOutcome, ActionFailure>>,
    progress: watch::Receiver<String>,
    started_at: tokio::time::Instant,
}

pub(super) struct TaskActor {
    task: TaskId,
    executor: Arc<ActionExecutor>,
    reporter: Arc<TaskReporter>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
    inputs: watch::Receiver<ActorInputs>,
    applied: ActorInputs,
    seen: Arc<Mutex<SeenContainer>>,
    observed: ObservedTask,
    prepared: PreparedResources,
    /// Held from the creation of a process to its start.
    start_permit: Option<OwnedSemaphorePermit>,
    overdue_action: Option<JoinHandle<Result<ActionOutcome, ActionFailure>>>,
    /// The image pull, while `step` requests it.
    image_fetch: Option<ImageFetch>,
    /// Health checks of the process, while it runs and should run.
    checks: Option<HealthChecker>,
    /// Hooks that run in its container.
    hooks: Option<HookRun>,
    /// A container operation failed. Its leftovers may be visible only after the container is removed.
    needs_sweep: bool,
    /// The digest in the assignment of the container's record.
    recorded_digest: Option<ImageDigest>,
}

impl TaskActor {
    /// An actor without knowledge of its container, and the supervisor's end of it.
    pub fn new(
        task: TaskId,
        orders: ActorInputs,
        driver: Arc<ActionExecutor>,
        reporter: Arc<TaskReporter>,
        clock: Arc<dyn Clock>,
        stop: CancellationToken,
    ) -> (Self, ActorHandle) {
        let found = ObservedTask::new(Timestamp(clock.unix_millis()));
        let seen = Arc::new(Mutex::new(SeenContainer::from(&found)));
        let (sender, receiver) = watch::channel(orders.clone());
        let actor = Self {
            task,
            executor: driver,
            reporter,
            clock,
            stop,
            inputs: receiver,
            applied: orders,
            seen: Arc::clone(&seen),
            observed: found,
            prepared: PreparedResources::default(),
            start_permit: None,
            overdue_action: None,
            image_fetch: None,
            checks: None,
            hooks: None,
            needs_sweep: false,
            recorded_digest: None,
        };
        (actor, ActorHandle { inputs: sender, seen })
    }

    /// Runs until the agent stops, or until nothing is left of an undesired task.
    pub async fn run(mut self) {
        while !self.stop.is_cancelled() {
            self.apply_inputs();
            self.update_checks();
            self.update_hooks();
            let now = self.now();
            let disconnected_for = self.applied.connectivity.disconnected_for(self.clock.instant());
            let is_withdrawn = self.applied.is_withdrawn;
            self.observed.record_inputs(self.applied.desired.as_deref(), disconnected_for, is_withdrawn, now);
            self.observed.awaited_service.clone_from(&self.applied.awaited_service);
            self.observed.eviction.clone_from(&self.applied.eviction);
            let answer = step(self.applied.desired.as_deref(), &self.observed, now);
            let output = self.send_report();
            if output.removed && std::mem::take(&mut self.needs_sweep) {
                self.executor.sweep_needed.notify_one();
            }
            if !matches!(answer, NextStep::Do(Action::EnsureImage | Action::Inspect)) {
                self.image_fetch = None;
            }
            match answer {
                NextStep::Do(Action::EnsureImage) => self.advance_image_fetch().await,
                NextStep::Do(action) => self.execute(action).await,
                NextStep::WaitUntil(moment) => self.wait(Some(moment.saturating_since(now))).await,
                NextStep::Settled if output.removed && self.applied.is_dismissed => return,
                NextStep::Settled => self.wait(None).await,
            }
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp(self.clock.unix_millis())
    }

    fn apply_inputs(&mut self) {
        let orders = self.inputs.borrow_and_update().clone();
        if orders.inspect_requests != self.applied.inspect_requests {
            self.observed.mark_stale();
        }
        if orders.verify_requests != self.applied.verify_requests {
            self.observed.invalidate_resources();
        }
        if orders.retry_requests != self.applied.retry_requests {
            self.observed.reset_retry_delays();
        }
        if orders.image_arrivals != self.applied.image_arrivals {
            self.observed.reset_image_delay();
        }
        if self.applied.wants_removal() && !orders.wants_removal() {
            self.reporter.forget_removal(&self.task);
        }
        self.applied = orders;
    }

    /// Applies check results, and starts or stops the checks as needed.
    fn update_checks(&mut self) {
        if let Some(found) = self.checks.as_mut().and_then(HealthChecker::take_change) {
            self.observed.record_health(found);
        }
        let subject = self.check_subject();
        if subject.is_none() {
            self.checks = None;
        } else if self.checks.is_none() {
            let start = |subject| {
                HealthChecker::start(
                    subject,
                    Arc::clone(&self.executor.check_context),
                    Arc::clone(&self.clock),
                )
            };
            self.checks = subject.map(start);
        }
    }

    /// Records the end of hooks; they end with the process at the latest.
    fn update_hooks(&mut self) {
        if !self.observed.container.is_running() {
            self.hooks = None;
        }
        let ended = self.hooks.as_ref().and_then(|hooks| Some((hooks.kind, hooks.result()?.err())));
        if let Some((kind, failure)) = ended {
            if let Some(reason) = &failure {
                tracing::info!(task = %self.task, %kind, reason, "hooks failed");
            }
            self.observed.record_hooks_end(kind, failure);
            self.hooks = None;
        }
    }

    fn start_hooks(&mut self, kind: HookKind) {
        let Some(desired) = self.applied.desired.as_deref() else { return };
        let (hooks, limit) = match kind {
            HookKind::PostStart => (desired.spec.post_start.clone(), POST_START_LIMIT),
            HookKind::PreStop => (desired.spec.pre_stop.clone(), desired.spec.stop_grace),
        };
        let request = HookRequest { kind, container: container::id(&self.task), hooks, limit };
        self.hooks = Some(HookRun::start(request, Arc::clone(&self.executor.runtime)));
    }

    /// The process to check, if any.
    fn check_subject(&self) -> Option<CheckSubject> {
        let desired = self
            .applied
            .desired
            .as_deref()
            .filter(|expected| expected.desired <= DesiredTaskState::Running)?;
        let ContainerState::Running { since } = self.observed.container else { return None };
        let (check, health) = (desired.spec.health.clone()?, self.observed.health(Some(desired)));
        let pid = self.prepared.pid?;
        let (netns, address) = match self.prepared.network.clone()? {
            NetworkMode::Joined(netns) => (netns, desired.address),
            NetworkMode::Isolated => (format!("/proc/{pid}/ns/net").into(), Ipv4Addr::LOCALHOST),
            NetworkMode::Host => (HOST_NETNS.into(), self.executor.node_address()),
        };
        let target = ProbeTarget { container: container::id(&self.task).to_string(), netns, address };
        Some(CheckSubject { task: self.task, check, target, since, health })
    }

    fn send_report(&self) -> TaskReport {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = SeenContainer::from(&self.observed);
        let output = build_report(self.task, self.applied.desired.as_deref(), &self.observed);
        if should_report(self.applied.desired.as_deref(), &self.observed) {
            self.reporter.report(output.clone());
        }
        output
    }

    async fn wait(&mut self, time: Option<Duration>) {
        self.start_permit = None;
        let pause = async {
            match time {
                Some(time) => tokio::time::sleep(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = pause => {}
            () = self.stop.cancelled() => {}
            () = next_check_result(&mut self.checks) => {}
            () = hooks_end(&mut self.hooks) => {}
            changed = self.inputs.changed() => {
                // Without a supervisor there is no further input.
                if changed.is_err() {
                    self.stop.cancelled().await;
                }
            }
        }
    }

    async fn execute(&mut self, action: Action) {
        let begun = self.clock.instant();
        if matches!(action, Action::EnsureContainer | Action::Start) && self.start_permit.is_none() {
            let permit = Arc::clone(&self.executor.start_permits).acquire_owned().await;
            self.start_permit = permit.ok();
        }
        let result = self.perform(&action).await;
        let goes_on = action == Action::EnsureContainer && result.is_ok() && self.is_start_desired();
        if !goes_on {
            self.start_permit = None;
        }
        let took = self.clock.instant().duration_since(begun);
        self.record_result(&action, took, result);
    }

    /// Continues the image pull until there is progress to report or the inputs change.
    async fn advance_image_fetch(&mut self) {
        let getting = match self.image_fetch.take() {
            Some(getting) => getting,
            None => {
                let (sender, output) = watch::channel(String::new());
                let job = ActionRequest { progress: Some(sender), ..self.request(&Action::EnsureImage) };
                let driver = Arc::clone(&self.executor);
                let work = async move { driver.perform(job).await }.boxed();
                ImageFetch { work, progress: output, started_at: self.clock.instant() }
            }
        };
        let getting = self.image_fetch.insert(getting);
        tokio::select! {
            result = &mut getting.work => {
                let took = self.clock.instant().duration_since(getting.started_at);
                self.image_fetch = None;
                self.record_result(&Action::EnsureImage, took, result);
            }
            Ok(()) = getting.progress.changed() => {
                let text = getting.progress.borrow_and_update().clone();
                self.observed.record_pull_progress(text);
            }
            () = self.stop.cancelled() => {}
            changed = self.inputs.changed() => {
                if changed.is_err() {
                    self.stop.cancelled().await;
                }
            }
        }
    }

    fn record_result(
        &mut self,
        action: &Action,
        took: Duration,
        result: Result<ActionOutcome, ActionFailure>,
    ) {
        match result {
            Ok(done) => {
                tracing::debug!(task = %self.task, action = ?action.kind(), ?took, "action completed");
                self.record_done(action, done);
            }
            Err(ActionFailure { kind, reason }) => {
                self.needs_sweep |= action.kind().affects_container();
                tracing::info!(task = %self.task, action = ?action.kind(), failure = ?kind, reason, "action failed");
                self.observed.record_failure(action, kind, reason, self.now());
            }
        }
    }

    fn is_start_desired(&self) -> bool {
        self.applied.desired.as_ref().is_some_and(|desired| desired.desired == DesiredTaskState::Running)
    }

    /// Executes the action in its own task: cancelling a call half-way (such as a creation) leaves orphans.
    async fn perform(&mut self, action: &Action) -> Result<ActionOutcome, ActionFailure> {
        let slow =
            || ActionFailure::transient(format!("action still running after {}s", ACTION_DEADLINE.as_secs()));
        if let Some(mut late) = self.overdue_action.take()
            && tokio::time::timeout(ACTION_DEADLINE, &mut late).await.is_err()
        {
            self.overdue_action = Some(late);
            return Err(slow());
        }
        let job = self.request(action);
        let driver = Arc::clone(&self.executor);
        let mut work = tokio::spawn(async move { driver.perform(job).await });
        match tokio::time::timeout(ACTION_DEADLINE, &mut work).await {
            Ok(Ok(result)) => result,
            Ok(Err(broken)) => Err(ActionFailure::transient(format!("action aborted: {broken}"))),
            Err(_) => {
                self.overdue_action = Some(work);
                Err(slow())
            }
        }
    }

    fn request(&self, action: &Action) -> ActionRequest {
        let mut assignment = self.applied.desired.clone();
        // A digest never changes. The cache may be older than the container, which was created with it.
        if let (Some(task), Some(digest)) = (&mut assignment, &self.recorded_digest)
            && task.digest.is_none()
        {
            Arc::make_mut(task).digest = Some(digest.clone());
        }
        ActionRequest {
            task: self.task,
            assignment,
            attempt: self.observed.history.attempt,
            prepared: self.prepared.clone(),
            action: action.clone(),
            now: self.now(),
            progress: None,
        }
    }

    fn record_done(&mut self, action: &Action, done: ActionOutcome) {
        match done {
            ActionOutcome::Inspected {
                container,
                container_image: made_from,
                digest,
                history: attempts,
                stop_signal,
                pid,
            } => {
                self.recorded_digest = digest.or(self.recorded_digest.take());
                self.prepared.stop_signal = stop_signal;
                self.prepared.pid = pid;
                self.observed.record_inspection(container, attempts);
                self.observed.record_container_image(made_from);
                return;
            }
            ActionOutcome::ImageReady(digest) => {
                self.observed.record_image(digest);
                return;
            }
            ActionOutcome::NetworkAttached(network) => self.prepared.network = Some(network),
            ActionOutcome::FilesWritten(files) => self.prepared.files = Some(files),
            ActionOutcome::SecretObjectsMounted(mounts) => self.prepared.secret_objects = Some(mounts),
            ActionOutcome::Started(pid) => self.prepared.pid = Some(pid),
            ActionOutcome::NoProcess => self.observed.mark_stale(),
            ActionOutcome::Completed => (),
        }
        match action {
            Action::RunHooks(kind) => self.start_hooks(*kind),
            Action::SignalStop => self.hooks = None,
            _ => (),
        }
        self.observed.record_success(action, self.now());
    }
}

/// Waits for a change of the check result; forever without checks.
async fn next_check_result(checks: &mut Option<HealthChecker>) {
    match checks {
        Some(checks) => checks.changed().await,
        None => std::future::pending().await,
    }
}

/// Waits for the end of hooks; forever if none run.
async fn hooks_end(hooks: &mut Option<HookRun>) {
    match hooks {
        Some(hooks) => hooks.ended().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use warren_types::TaskExit;

    use super::*;

    #[test]
    fn process_and_layer_are_seen_until_both_are_gone() {
        let now = Timestamp(1_000_000);
        let exit = TaskExit { code: 137, out_of_memory: false };
        let (running, stopped) =
            (ContainerState::Running { since: now }, ContainerState::Stopped { exit, at: now });
        for (container, layer, expected) in [
            (running, ResourceState::Present, true),
            (running, ResourceState::Absent, true),
            (ContainerState::Created, ResourceState::Absent, true),
            (stopped, ResourceState::Present, true),
            (stopped, ResourceState::Unknown, true),
            (stopped, ResourceState::Absent, false),
            (ContainerState::Recorded, ResourceState::Unknown, true),
            (ContainerState::Recorded, ResourceState::Absent, false),
            (ContainerState::Absent, ResourceState::Unknown, false),
        ] {
            let found = ObservedTask { container, layer, ..ObservedTask::new(now) };
            let (inputs, _actor) = watch::channel(ActorInputs::default());
            let handle = ActorHandle { inputs, seen: Arc::new(Mutex::new(SeenContainer::from(&found))) };
            assert_eq!(handle.has_process_or_layer(), expected, "{container:?} {layer:?}");
            assert!(!handle.is_evicted());
            handle.update(|inputs| {
                inputs.eviction = Some("too large".to_owned());
                true
            });
            assert!(handle.is_evicted());
        }
    }
}
