//! Does one action of one task: the only place where `step`'s words become calls.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, RwLock, Semaphore, watch};
use tokio::time::timeout;
use warren_logger::Programs;
use warren_network::files::TaskFiles;
use warren_network::{Network, TaskKey, TaskNetwork};
use warren_runtime::{Error as RuntimeError, Mount, Process, Runtime, Signal};
use warren_task::{Action, Container, Ledger, Wishes};
use warren_types::{ClusterId, ImageDigest, NodeSettings, TaskAssignment, TaskId, Timestamp};

use crate::handlers::contents::courier::Courier;
use crate::handlers::files::{Directories, hostname};
use crate::handlers::images::{self, ImageSource};
use crate::handlers::ports::Ports;
use crate::handlers::volumes::{Sources, Volumes};
use crate::tasks::checks::Checking;
use crate::tasks::container;
use crate::tasks::container::field::named;
use crate::tasks::container::spec::{self, Joined};
use crate::tasks::contents::Contents;
use crate::tasks::failure::Failure;
use crate::tasks::ground::{Ground, NOT_YET};
use crate::tasks::templates;

/// How long the first try to make the node's network is waited for. It takes some 10 ms where nothing is wrong.
const GROUND_WITHIN: Duration = Duration::from_secs(3);

/// Everything that actions are done with; shared by all actors.
pub(crate) struct Driver {
    pub runtime: Arc<dyn Runtime>,
    pub network: Arc<dyn Network>,
    pub images: Arc<dyn ImageSource>,
    /// Knows as whom a registry is asked.
    pub courier: Arc<dyn Courier>,
    /// What containers are run with.
    pub programs: Programs,
    pub directories: Directories,
    pub ports: Ports,
    pub contents: Arc<dyn Contents>,
    pub volumes: Arc<Volumes>,
    pub checking: Arc<Checking>,
    pub cluster: ClusterId,
    /// Who this node is, which templates ask for.
    pub wishes: watch::Receiver<Wishes>,
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
    /// How secrets and configs are mounted.
    pub contents: Option<Vec<Mount>>,
    pub stop_signal: Option<Signal>,
    /// The process that was last seen.
    pub pid: Option<u32>,
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
        made_from: Option<ImageDigest>,
        ledger: Option<Ledger>,
        stop_signal: Option<Signal>,
        pid: Option<u32>,
    },
    /// The image is here, and this is what it is.
    Obtained(ImageDigest),
    /// The task's network namespace.
    Attached(PathBuf),
    /// The task's files.
    Wrote(TaskFiles),
    /// The files of its secrets and configs, as they are mounted.
    Brought(Vec<Mount>),
    /// The process that runs.
    Started(u32),
    /// There was no process to signal any more.
    NothingToSignal,
}

impl Driver {
    /// Does the action to its end. Every call below it has a deadline of its own. Dropping the future may leave an
    /// action half-done, but for [`Action::EnsureImage`], which it gives up.
    pub async fn perform(&self, job: Job) -> Result<Done, Failure> {
        let container = container::id(&job.task);
        match &job.action {
            Action::Inspect => return self.inspect(&job).await,
            Action::EnsureImage => {
                let (task, said) = (job.assignment()?, job.said.as_ref());
                let digest = images::ensure(&*self.images, &*self.courier, task, said).await?;
                return Ok(Done::Obtained(digest));
            }
            Action::EnsureNetwork => return self.attach(&job).await,
            Action::EnsureFiles => {
                let expanded = self.expanded(&job)?;
                return Ok(Done::Wrote(self.directories.ensure(&expanded).await?));
            }
            Action::EnsureVolumes => {
                self.sources(&job).await?;
            }
            Action::EnsureContents => {
                let mounts = self.contents.ensure(job.assignment()?, &self.settings()?).await?;
                return Ok(Done::Brought(mounts));
            }
            Action::RemoveContents => self.contents.remove(&job.task).await?,
            Action::HoldPorts => {
                self.stand().await?;
                self.ports.hold(job.assignment()?).await?;
            }
            Action::Serve => {
                self.stand().await?;
                self.ports.serve(job.assignment()?).await?;
            }
            Action::EnsureContainer => self.create(&job).await?,
            Action::Start => return Ok(Done::Started(self.runtime.start(&container).await?)),
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
        let made_from = found.as_ref().and_then(container::made_from);
        let pid = found.as_ref().and_then(|found| match found.process {
            Process::Running { pid } => Some(pid),
            _ => None,
        });
        let stop_signal = found.map(|found| found.stop_signal);
        Ok(Done::Saw { container, made_from, ledger, stop_signal, pid })
    }

    fn settings(&self) -> Result<NodeSettings, Failure> {
        let unknown = || Failure::transient("no manager has told this node who it is yet");
        self.wishes.borrow().settings.clone().ok_or_else(unknown)
    }

    /// The task with what its templates stand for here.
    fn expanded(&self, job: &Job) -> Result<TaskAssignment, Failure> {
        templates::expand(job.assignment()?, &self.settings()?)
    }

    /// What its mounts come from, made where it is missing.
    async fn sources(&self, job: &Job) -> Result<Sources, Failure> {
        let (task, settings) = (job.assignment()?, self.settings()?);
        Ok(self.volumes.ensure(task, &templates::values(task, &settings)).await?)
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
        let (task, expanded) = (job.assignment()?, self.expanded(job)?);
        let missing = || Failure::transient("the task's network and files are not made yet");
        let sources = self.sources(job).await?;
        let joined = Joined {
            netns: job.surroundings.netns.clone().ok_or_else(missing)?,
            files: job.surroundings.files.clone().ok_or_else(missing)?,
            log: self.directories.log(&job.task),
            hostname: hostname(&expanded),
            programs: self.programs.clone(),
            sources: sources.paths.clone(),
            contents: job.surroundings.contents.clone().unwrap_or_default(),
        };
        let spec = spec::spec(task, &expanded.spec, job.attempt, self.cluster, &joined)?;
        let made = self.runtime.ensure_created(&spec).await;
        // A container that is made has mounts of its own.
        drop(sources);
        made.map_err(|error| named(error, &task.spec))?;
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
