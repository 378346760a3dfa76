//! The observed state of a task on this node, and how the result of each action changes it.

use std::collections::BTreeMap;
use std::time::Duration;

use warren_types::{
    DesiredTaskState, Health, ImageDigest, ServiceName, TaskAssignment, TaskExit, TaskNetworkMode, Timestamp,
};

use crate::action::{Action, ActionKind, HookKind};
use crate::attempt_history::{AttemptHistory, AttemptPhase};

/// First delay after a transient failure; it doubles up to [`MAX_RETRY_DELAY`].
const MIN_RETRY_DELAY: Duration = Duration::from_millis(250);
/// The longest delay between two tries of a failing action.
pub(crate) const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);

/// The observed state of one task. After a restart of the agent the container and its attempt history are
/// read back; the rest starts as unknown and is observed by doing it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedTask {
    /// Whether `container` is up to date.
    pub freshness: Freshness,
    /// The container as last inspected.
    pub container: ContainerState,
    /// The image from which the container is created.
    pub image: ImageState,
    /// The image digest in the container's record: all that an agent knows of the image of a container that
    /// an earlier agent created.
    pub container_image: Option<ImageDigest>,
    /// The task's network.
    pub network: ResourceState,
    /// The task's directory.
    pub files: ResourceState,
    /// The volumes that it mounts. No action relies on their absence.
    pub volumes: ResourceState,
    /// The files of its secrets and configs.
    pub secret_objects: ResourceState,
    /// The writable layer of its container. Only its absence matters.
    pub layer: ResourceState,
    /// The result of this agent's health checks of the running process; `None` before the first check has
    /// ended.
    pub observed_health: Option<HealthObservation>,
    /// The task's share of its service's published ports on this node.
    pub ports: PortState,
    /// The history of its attempts.
    pub history: AttemptHistory,
    /// Since when the running process has been stopping, if it may have clients.
    pub drain_start: Option<Timestamp>,
    /// When a manager said, since then, that no other node sends the process new clients.
    pub withdrawn_at: Option<Timestamp>,
    /// The post_start hooks of the running process, as far as this agent ran them.
    pub post_start: HookProgress,
    /// Its pre_stop hooks.
    pub pre_stop: HookProgress,
    /// The stop signal, once it was sent.
    pub stop: Option<SentStop>,
    /// The actions that failed when they were last tried.
    pub failures: BTreeMap<ActionKind, FailedAction>,
    /// When this agent accepted the task.
    pub accepted_at: Timestamp,
    /// How long the node has been disconnected; `None` while it is connected to a manager.
    pub disconnected_for: Option<Duration>,
    /// The bootstrap service that the task waits for before its process is started.
    pub awaited_service: Option<ServiceName>,
    /// Why its node ends it, because of what its writable layer has.
    pub eviction: Option<String>,
}

/// How far hooks are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookProgress {
    /// Not started.
    Pending,
    /// They run.
    Running {
        /// When the first of them began.
        since: Timestamp,
    },
    /// They ended.
    Ended {
        /// When the first of them began.
        since: Timestamp,
        /// The first failure, after which no further hook was run.
        failure: Option<String>,
    },
}

impl HookProgress {
    /// When the first of them began.
    pub fn since(&self) -> Option<Timestamp> {
        match self {
            Self::Pending => None,
            Self::Running { since } | Self::Ended { since, .. } => Some(*since),
        }
    }

    fn end(&mut self, failure: Option<String>) {
        if let Self::Running { since } = *self {
            *self = Self::Ended { since, failure };
        }
    }
}

/// Whether the last inspection of the container is up to date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// Not inspected by this agent yet: the history in the container's record must still be read.
    Unknown,
    /// Something may have happened since the last inspection.
    Stale,
    /// Nothing is known to have happened since the last inspection.
    Fresh,
}

/// The result of a process's health checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthObservation {
    /// Starting, healthy or unhealthy.
    pub health: Health,
    /// Why it is not healthy; empty when it is.
    pub reason: String,
}

/// The container's record and process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerState {
    /// There is no record.
    Absent,
    /// A record without a process.
    Recorded,
    /// A process that is created and not started.
    Created,
    /// A running process.
    Running {
        /// Since when, as far as known.
        since: Timestamp,
    },
    /// A process that exited and is not deleted yet.
    Stopped {
        /// The exit status.
        exit: TaskExit,
        /// The time of the exit.
        at: Timestamp,
    },
}

/// The image on this node. An existing container does not need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageState {
    /// Not looked up yet, or it may have been deleted since.
    Unknown,
    /// It is being pulled.
    Pulling {
        /// Progress, human-readable.
        progress: String,
    },
    /// It is on the node, with this digest.
    Present(ImageDigest),
}

/// Whether a resource of the task exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceState {
    /// It may exist, completely or in part.
    Unknown,
    /// It exists completely.
    Present,
    /// Nothing of it exists.
    Absent,
}

/// The task's share of published ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortState {
    /// Perhaps reserved or routed.
    Unknown,
    /// Reserved for this node, without traffic to the task.
    Reserved,
    /// The task receives its share of the traffic.
    Routed,
    /// Neither.
    Released,
}

/// The stop request, as far as this agent sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentStop {
    /// When the stop signal was sent.
    pub at: Timestamp,
    /// When the container was last killed.
    pub killed_at: Option<Timestamp>,
}

/// Whether a retry can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// A retry can help: something was unreachable, took too long, or failed without a cause.
    Transient,
    /// A retry cannot help unless the spec or the node changes.
    Permanent,
}

/// An action's failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedAction {
    /// Whether a retry can help.
    pub kind: FailureKind,
    /// What went wrong and what to do.
    pub reason: String,
    /// How often it failed in a row.
    pub consecutive: u32,
    /// When it failed last.
    pub at: Timestamp,
}

impl FailedAction {
    /// The earliest time of the next try.
    pub(crate) fn retry_at(&self) -> Timestamp {
        let doublings = self.consecutive.saturating_sub(1).min(16);
        self.at + MIN_RETRY_DELAY.saturating_mul(1 << doublings).min(MAX_RETRY_DELAY)
    }
}

impl ContainerState {
    /// Whether a process is running.
    pub fn is_running(self) -> bool {
        matches!(self, Self::Running { .. })
    }
}

impl ObservedTask {
    /// A task that the agent accepts at `now` and has not inspected.
    pub fn new(now: Timestamp) -> Self {
        Self {
            freshness: Freshness::Unknown,
            container: ContainerState::Absent,
            image: ImageState::Unknown,
            container_image: None,
            network: ResourceState::Unknown,
            files: ResourceState::Unknown,
            volumes: ResourceState::Unknown,
            secret_objects: ResourceState::Unknown,
            layer: ResourceState::Unknown,
            observed_health: None,
            ports: PortState::Unknown,
            history: AttemptHistory::default(),
            drain_start: None,
            withdrawn_at: None,
            post_start: HookProgress::Pending,
            pre_stop: HookProgress::Pending,
            stop: None,
            failures: BTreeMap::new(),
            accepted_at: now,
            disconnected_for: None,
            awaited_service: None,
            eviction: None,
        }
    }

    /// Records an inspection of the container. `recorded` is the history in its record; it is used at the
    /// first inspection, after that this agent's own is newer.
    pub fn record_inspection(&mut self, container: ContainerState, recorded: Option<AttemptHistory>) {
        if let (Freshness::Unknown, Some(history)) = (self.freshness, recorded) {
            self.history = history;
        }
        self.freshness = Freshness::Fresh;
        self.failures.remove(&ActionKind::Inspect);
        if std::mem::discriminant(&container) != std::mem::discriminant(&self.container) {
            // A failed action may have taken effect after all.
            self.failures
                .retain(|verb, failure| !verb.affects_container() || failure.kind == FailureKind::Permanent);
        }
        // A start time that the agent itself recorded is more exact than an inspected one.
        let container = match (container, self.container, &self.history.phase) {
            (ContainerState::Running { .. }, ContainerState::Running { since }, _) => {
                ContainerState::Running { since }
            }
            (ContainerState::Running { .. }, _, AttemptPhase::Started { at, .. }) => {
                ContainerState::Running { since: *at }
            }
            (seen, _, _) => seen,
        };
        self.set_container(container);
    }

    /// Records the image digest in the inspected container's record.
    pub fn record_container_image(&mut self, digest: Option<ImageDigest>) {
        self.container_image = digest;
    }

    /// The health of one process does not apply to the next one.
    fn set_container(&mut self, container: ContainerState) {
        if !(self.container.is_running() && container.is_running()) {
            self.observed_health = None;
        }
        if container == ContainerState::Created {
            (self.post_start, self.pre_stop) = (HookProgress::Pending, HookProgress::Pending);
        }
        self.container = container;
    }

    /// Records what [`step()`](crate::step()) depends on beside the node; called before it.
    pub fn record_inputs(
        &mut self,
        desired: Option<&TaskAssignment>,
        disconnected_for: Option<Duration>,
        is_withdrawn: bool,
        now: Timestamp,
    ) {
        self.disconnected_for = disconnected_for;
        let drains = self.container.is_running() && desired.is_some_and(|task| self.may_have_clients(task));
        self.drain_start = drains.then(|| self.drain_start.unwrap_or(now));
        self.withdrawn_at = self.withdrawn_at.or(is_withdrawn.then_some(now)).filter(|_| drains);
    }

    /// Whether the task is stopping and others may know its address. An unhealthy one was withdrawn before.
    fn may_have_clients(&self, task: &TaskAssignment) -> bool {
        let has_endpoint =
            matches!(task.spec.network, TaskNetworkMode::Networks(_)) || !task.ports.is_empty();
        task.desired > DesiredTaskState::Running
            && has_endpoint
            && (self.drain_start.is_some()
                || task.spec.health.is_none()
                || self.process_health() == Health::Healthy)
    }

    /// Records a health check of the running process. The check of a process that has exited since changes
    /// nothing.
    pub fn record_health(&mut self, checked: HealthObservation) {
        if self.container.is_running() {
            self.observed_health = Some(checked);
        }
    }

    /// The task's health: from this agent's checks, before them from those of earlier agents.
    pub fn health(&self, desired: Option<&TaskAssignment>) -> Health {
        let has_check = desired
            .is_some_and(|task| task.spec.health.is_some() && task.desired <= DesiredTaskState::Running);
        if !has_check || !self.container.is_running() {
            return Health::None;
        }
        self.process_health()
    }

    /// The health of the running process of a task with checks.
    fn process_health(&self) -> Health {
        match (&self.observed_health, &self.history.phase) {
            (Some(checked), _) => checked.health,
            (None, AttemptPhase::Started { health: Health::None, .. }) => Health::Starting,
            (None, AttemptPhase::Started { health, .. }) => *health,
            (None, _) => Health::Starting,
        }
    }

    /// Whether the post_start hooks of the running process have ended with success, or there are none.
    pub fn is_set_up(&self, task: &TaskAssignment) -> bool {
        let are_done = matches!(self.history.phase, AttemptPhase::Started { hooks_done: true, .. });
        task.spec.post_start.is_empty() || are_done
    }

    /// Records the end of hooks that [`Action::RunHooks`] began. If the process has ended, that may be why they failed:
    /// it is inspected first.
    pub fn record_hooks_end(&mut self, kind: HookKind, failure: Option<String>) {
        if failure.is_some() {
            self.mark_stale();
        }
        match kind {
            HookKind::PostStart => self.post_start.end(failure),
            HookKind::PreStop => self.pre_stop.end(failure),
        }
    }

    /// The health that the next agent needs, if the history does not have it yet.
    pub(crate) fn unrecorded_health(&self, desired: Option<&TaskAssignment>) -> Option<Health> {
        let recorded = match self.history.phase {
            AttemptPhase::Started { health, .. } => health,
            _ => Health::None,
        };
        match self.health(desired) {
            health @ (Health::Healthy | Health::Unhealthy) if health != recorded => Some(health),
            _ => None,
        }
    }

    /// Records the progress of [`Action::EnsureImage`], as human-readable text.
    pub fn record_pull_progress(&mut self, text: String) {
        self.image = ImageState::Pulling { progress: text };
    }

    /// Records the success of [`Action::EnsureImage`]: the image is on the node, with this digest.
    pub fn record_image(&mut self, digest: ImageDigest) {
        self.image = ImageState::Present(digest);
        self.failures.remove(&ActionKind::EnsureImage);
    }

    /// Records the success of `action`; [`Action::Inspect`] is recorded by
    /// [`ObservedTask::record_inspection`] and [`Action::EnsureImage`] by [`ObservedTask::record_image`]
    /// instead.
    pub fn record_success(&mut self, action: &Action, now: Timestamp) {
        match action {
            Action::Inspect | Action::EnsureImage => return,
            Action::EnsureNetwork => self.network = ResourceState::Present,
            Action::RemoveNetwork => self.network = ResourceState::Absent,
            Action::EnsureFiles => self.files = ResourceState::Present,
            Action::RemoveFiles => self.files = ResourceState::Absent,
            Action::EnsureVolumes => self.volumes = ResourceState::Present,
            Action::EnsureSecretObjects => self.secret_objects = ResourceState::Present,
            Action::RemoveSecretObjects => self.secret_objects = ResourceState::Absent,
            Action::ReservePorts => self.ports = PortState::Reserved,
            Action::RouteTraffic => self.ports = PortState::Routed,
            Action::ReleasePorts => self.ports = PortState::Released,
            Action::EnsureContainer => {
                self.set_container(ContainerState::Created);
                self.layer = ResourceState::Present;
            }
            Action::Start => self.set_container(ContainerState::Running { since: now }),
            Action::RecordHistory(history) => self.history = history.clone(),
            Action::RunHooks(HookKind::PostStart) => self.post_start = HookProgress::Running { since: now },
            Action::RunHooks(HookKind::PreStop) => self.pre_stop = HookProgress::Running { since: now },
            Action::SignalStop => {
                self.stop = Some(SentStop { at: now, killed_at: None });
                self.pre_stop.end(Some("did not end within the grace period".to_owned()));
            }
            Action::Kill => {
                let at = self.stop.map_or(now, |stop| stop.at);
                self.stop = Some(SentStop { at, killed_at: Some(now) });
                // There is no event for the exit of a process that had exited before.
                self.mark_stale();
            }
            Action::DeleteProcess => self.set_container(ContainerState::Recorded),
            Action::RemoveLayer => self.layer = ResourceState::Absent,
            Action::RemoveContainer => {
                self.set_container(ContainerState::Absent);
                self.layer = ResourceState::Absent;
            }
        }
        match action.kind() {
            // Both are done again after each failed creation of the container, and do not end its delay.
            kind @ (ActionKind::EnsureVolumes | ActionKind::EnsureSecretObjects) => {
                self.failures.remove(&kind);
            }
            // The task made progress: what failed before may succeed now.
            _ => self.failures.clear(),
        }
    }

    /// Records the failure of `action`, which may have taken effect in part: what it touches is unknown until
    /// it was inspected or done again.
    pub fn record_failure(&mut self, action: &Action, kind: FailureKind, reason: String, now: Timestamp) {
        let verb = action.kind();
        match verb {
            ActionKind::EnsureImage => self.image = ImageState::Unknown,
            ActionKind::EnsureNetwork | ActionKind::RemoveNetwork => self.network = ResourceState::Unknown,
            ActionKind::EnsureFiles | ActionKind::RemoveFiles => self.files = ResourceState::Unknown,
            ActionKind::EnsureVolumes => {
                self.volumes = ResourceState::Unknown;
                // The image that fills them may have been deleted meanwhile.
                self.image = ImageState::Unknown;
            }
            ActionKind::EnsureSecretObjects | ActionKind::RemoveSecretObjects => {
                self.secret_objects = ResourceState::Unknown
            }
            ActionKind::ReservePorts | ActionKind::RouteTraffic | ActionKind::ReleasePorts => {
                self.ports = PortState::Unknown
            }
            verb if verb.affects_container() => self.mark_stale(),
            _ => (),
        }
        if verb == ActionKind::EnsureContainer {
            self.layer = ResourceState::Unknown;
            // The image may have been deleted meanwhile, or what the task mounts.
            self.image = ImageState::Unknown;
            self.volumes = ResourceState::Unknown;
            self.secret_objects = ResourceState::Unknown;
        }
        let before = self.failures.get(&verb).map_or(0, |failure| failure.consecutive);
        let failures = before.saturating_add(1);
        self.failures.insert(verb, FailedAction { kind, reason, consecutive: failures, at: now });
    }

    /// The container may have changed: inspect it before the next action.
    pub fn mark_stale(&mut self) {
        if self.freshness == Freshness::Fresh {
            self.freshness = Freshness::Stale;
        }
    }

    /// The task's resources may have been damaged: create them again. Idempotent.
    pub fn invalidate_resources(&mut self) {
        let doubt = |presence: &mut ResourceState| {
            if *presence == ResourceState::Present {
                *presence = ResourceState::Unknown;
            }
        };
        doubt(&mut self.network);
        doubt(&mut self.files);
        doubt(&mut self.volumes);
        doubt(&mut self.secret_objects);
    }

    /// The causes of transient failures may be gone: retry immediately.
    pub fn reset_retry_delays(&mut self) {
        self.failures.retain(|_, failure| failure.kind == FailureKind::Permanent);
    }

    /// The image may be on the node by now: look for it immediately.
    pub fn reset_image_delay(&mut self) {
        self.failures.retain(|kind, failure| {
            *kind != ActionKind::EnsureImage || failure.kind == FailureKind::Permanent
        });
    }

    /// Why the task can never run here, unless its process is already running.
    pub(crate) fn rejection(&self) -> Option<(ActionKind, &FailedAction)> {
        let hopeless = |(verb, failure): &(&ActionKind, &FailedAction)| {
            failure.kind == FailureKind::Permanent && verb.is_required_to_run()
        };
        let (verb, failure) = self.failures.iter().find(hopeless)?;
        (!self.container.is_running()).then_some((*verb, failure))
    }
}
