//! Does one action of one task: the only place where `step`'s words become calls.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, RwLock, Semaphore, watch};
use tokio::time::timeout;
use warren_logger::Programs;
use warren_network::files::TaskFiles;
use warren_network::{Network, TaskKey, TaskNetwork};
use warren_runtime::{Error as RuntimeError, Runtime, Signal};
use warren_task::{Action, Container, Ledger, Severity};
use warren_types::{ClusterId, ImageDigest, TaskAssignment, TaskId, Timestamp};

use crate::handlers::files::{Directories, FilesError, hostname};
use crate::handlers::images::{self, ImageError, ImageSource};
use crate::handlers::ports::{Ports, PortsError};
use crate::tasks::container;
use crate::tasks::container::spec::{self, Joined};
use crate::tasks::ground::{Ground, NOT_YET};

/// How long the first try to make the node's network is waited for. It takes some 10 ms where nothing is wrong.
const GROUND_WITHIN: Duration = Duration::from_secs(3);

/// Everything that actions are done with; shared by all actors.
pub(crate) struct Driver {
    pub runtime: Arc<dyn Runtime>,
    pub network: Arc<dyn Network>,
    pub images: Arc<dyn ImageSource>,
    /// What containers are run with.
    pub programs: Programs,
    pub directories: Directories,
    pub ports: Ports,
    pub cluster: ClusterId,
    /// Whether the node's own part of the network is made.
    pub ground: watch::Receiver<Ground>,
    /// Held from the creation of a process to its start, so that one that is made is started before others
    /// are made: the first of many tasks is ready early, and the last no later.
    pub starts: Arc<Semaphore>,
    /// Held for writing from the listing of containers to the making of their networks and ports, and for reading
    /// by what takes these away: else what went in between would be made again, for nobody.
    pub laying: RwLock<()>,
    /// A task is removed, and the making or the removal of its container had failed before: something of it
    /// may be left.
    pub botched: Notify,
}

/// What earlier actions of this agent made for the task.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surroundings {
    pub netns: Option<PathBuf>,
    pub files: Option<TaskFiles>,
    pub stop_signal: Option<Signal>,
}

/// What is asked of the driver.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub task: TaskId,
    /// `None` when nobody knows what the task was.
    pub assignment: Option<Arc<TaskAssignment>>,
    pub attempt: u32,
    pub surroundings: Surroundings,
    pub action: Action,
    pub now: Timestamp,
    /// Where to say how far a pull has come.
    pub said: Option<watch::Sender<String>>,
}

/// What came of an action, beside that it was done.
#[derive(Debug)]
pub(crate) enum Done {
    Plainly,
    /// The container was looked at.
    Saw {
        container: Container,
        ledger: Option<Ledger>,
        stop_signal: Option<Signal>,
    },
    /// The image is here, and this is what it is.
    Obtained(ImageDigest),
    /// The task's network namespace.
    Attached(PathBuf),
    /// The task's files.
    Wrote(TaskFiles),
    /// There was no process to signal any more.
    NothingToSignal,
}

/// Why an action did not work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub severity: Severity,
    pub reason: String,
}

impl Failure {
    pub fn transient(reason: impl Into<String>) -> Self {
        Self { severity: Severity::Transient, reason: reason.into() }
    }

    fn permanent(reason: impl Into<String>) -> Self {
        Self { severity: Severity::Permanent, reason: reason.into() }
    }
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Self {
        match error {
            // These only mean that the container is not as it was last seen.
            RuntimeError::Conflict { .. } | RuntimeError::NotFound { .. } => {
                Self::transient(error.to_string())
            }
            // It went since it was looked for, and is looked for again.
            RuntimeError::ImageMissing { .. } => Self::transient(error.to_string()),
            RuntimeError::InvalidSpec { field, reason } => match spec::path(&field) {
                Some(path) => Self::permanent(format!("{path}: {reason}")),
                // What the node adds itself is made again.
                None => Self::transient(format!("{field} is refused: {reason}")),
            },
            error if error.is_transient() => Self::transient(error.to_string()),
            error => Self::permanent(error.to_string()),
        }
    }
}

impl From<ImageError> for Failure {
    fn from(error: ImageError) -> Self {
        match error.is_transient() {
            true => Self::transient(error.to_string()),
            false => Self::permanent(error.to_string()),
        }
    }
}

impl From<warren_network::Error> for Failure {
    fn from(error: warren_network::Error) -> Self {
        use warren_network::Error as E;
        match error {
            E::PortTaken { .. }
            | E::HostIpMissing { .. }
            | E::AddressOutsideSubnet { .. }
            | E::LinkNameTaken { .. }
            | E::BadTaskKey { .. } => Self::permanent(error.to_string()),
            error => Self::transient(error.to_string()),
        }
    }
}

impl From<PortsError> for Failure {
    fn from(error: PortsError) -> Self {
        match error {
            PortsError::Network(error) => error.into(),
            PortsError::OfAnotherService { .. } => Self::transient(error.to_string()),
            PortsError::Zero => Self::permanent(error.to_string()),
        }
    }
}

impl From<FilesError> for Failure {
    fn from(error: FilesError) -> Self {
        Self::transient(error.to_string())
    }
}

impl Driver {
    /// Does the action to its end. Every call below it has a deadline of its own. Dropping the future may leave an
    /// action half-done, but for [`Action::EnsureImage`], which it gives up.
    pub async fn perform(&self, job: Job) -> Result<Done, Failure> {
        let container = container::id(&job.task);
        match &job.action {
            Action::Inspect => return self.inspect(&job).await,
            Action::EnsureImage => {
                let digest = images::ensure(&*self.images, job.assignment()?, job.said.as_ref()).await?;
                return Ok(Done::Obtained(digest));
            }
            Action::EnsureNetwork => return self.attach(&job).await,
            Action::EnsureFiles => {
                return Ok(Done::Wrote(self.directories.ensure(job.assignment()?).await?));
            }
            Action::HoldPorts => {
                self.stand().await?;
                self.ports.hold(job.assignment()?).await?;
            }
            Action::Serve => {
                self.stand().await?;
                self.ports.serve(job.assignment()?).await?;
            }
            Action::EnsureContainer => self.create(&job).await?,
            Action::Start => self.runtime.start(&container).await.map(|_| ())?,
            Action::RecordLedger(ledger) => self.record(&job, ledger).await?,
            Action::SignalStop => {
                return self.signal(&job, job.surroundings.stop_signal.unwrap_or(Signal::TERM)).await;
            }
            Action::Kill => return self.signal(&job, Signal::KILL).await,
            Action::DeleteProcess => {
                absent_is_fine(self.runtime.delete_process(&container).await.map(|_| ()))?;
            }
            Action::RemoveContainer => {
                absent_is_fine(self.runtime.remove(&container).await)?;
            }
            Action::RemoveNetwork => {
                let _ground = self.laying.read().await;
                self.network.remove_task(&job.key()?).await?;
            }
            Action::ReleasePorts => {
                let _ground = self.laying.read().await;
                self.ports.release(&job.task).await?;
            }
            Action::RemoveFiles => self.directories.remove(&job.task).await?,
        }
        Ok(Done::Plainly)
    }

    async fn inspect(&self, job: &Job) -> Result<Done, Failure> {
        let found = self.runtime.inspect(&container::id(&job.task)).await?;
        let container = container::state(found.as_ref(), job.now).map_err(Failure::transient)?;
        let ledger = found.as_ref().and_then(container::ledger);
        Ok(Done::Saw { container, ledger, stop_signal: found.map(|found| found.stop_signal) })
    }

    /// Nothing is made for a task before the node's own part of the network is there. While an agent that has
    /// just started makes that, it is waited for: a failure would be told to managers and be wrong a moment
    /// later.
    async fn stand(&self) -> Result<(), Failure> {
        let mut ground = self.ground.clone();
        let tried = ground.wait_for(|ground| *ground != Ground::Awaited);
        match timeout(GROUND_WITHIN, tried).await.map(|tried| tried.map(|ground| ground.clone())) {
            Ok(Ok(Ground::Laid)) => Ok(()),
            Ok(Ok(Ground::Missing(reason))) => Err(Failure::transient(reason)),
            Ok(Ok(Ground::Awaited) | Err(_)) | Err(_) => Err(Failure::transient(NOT_YET)),
        }
    }

    async fn attach(&self, job: &Job) -> Result<Done, Failure> {
        self.stand().await?;
        let network = TaskNetwork { task: job.key()?, address: job.assignment()?.address };
        Ok(Done::Attached(self.network.ensure_task(&network).await?))
    }

    async fn create(&self, job: &Job) -> Result<(), Failure> {
        let task = job.assignment()?;
        let missing = || Failure::transient("the task's network and files are not made yet");
        let joined = Joined {
            netns: job.surroundings.netns.clone().ok_or_else(missing)?,
            files: job.surroundings.files.clone().ok_or_else(missing)?,
            log: self.directories.log(&job.task),
            hostname: hostname(task),
            programs: self.programs.clone(),
        };
        let spec = spec::spec(task, job.attempt, self.cluster, &joined)?;
        self.runtime.ensure_created(&spec).await?;
        if let Err(error) = self.images.touch(&spec.image, job.now).await {
            tracing::debug!(image = %spec.image, %error, "its last use is not noted");
        }
        Ok(())
    }

    async fn record(&self, job: &Job, ledger: &Ledger) -> Result<(), Failure> {
        let recorded = self.runtime.set_ledger(&container::id(&job.task), &ledger.to_string()).await;
        Ok(absent_is_fine(recorded)?)
    }

    async fn signal(&self, job: &Job, signal: Signal) -> Result<Done, Failure> {
        match self.runtime.signal(&container::id(&job.task), signal).await {
            Ok(true) => Ok(Done::Plainly),
            Ok(false) | Err(RuntimeError::NotFound { .. }) => Ok(Done::NothingToSignal),
            Err(error) => Err(error.into()),
        }
    }
}

fn absent_is_fine(result: Result<(), RuntimeError>) -> Result<(), RuntimeError> {
    match result {
        Err(RuntimeError::NotFound { .. }) => Ok(()),
        other => other,
    }
}

impl Job {
    fn assignment(&self) -> Result<&TaskAssignment, Failure> {
        let unknown = || Failure::transient("nobody has said what the task is");
        self.assignment.as_deref().ok_or_else(unknown)
    }

    fn key(&self) -> Result<TaskKey, Failure> {
        Ok(TaskKey::parse(&self.task.to_string())?)
    }
}
