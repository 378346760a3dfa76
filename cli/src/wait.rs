//! Waits until the cluster has what was asked for: what is watched only says when to look, `judge` decides.

mod picture;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};
use warren_client::{Change, Client, Error, TaskFilter, Watch};
use warren_proto::v1;

use self::picture::replicas;
pub use picture::{Picture, Verdict, line};

use crate::failure::{Exit, Failure};
use crate::progress::Progress;

/// Looked at this often even if nothing is heard: progress before a task runs is not among the changes.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Looked at so soon after something was heard when what counts is computed by the manager.
const LOOK_AFTER_NEWS: Duration = Duration::from_millis(200);

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// As many tasks run and are ready as are wanted, and no others are left.
    Running,
    /// As [`Goal::Running`], whichever revision they run.
    Scaled,
    /// The tasks run the service's new revision.
    Updated,
    /// The service and its tasks are gone.
    Gone,
}

/// One service that is waited for.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// What shall become of it.
    pub goal: Goal,
    /// The version that the write made which is waited for. What is older was seen before it.
    pub version: u64,
    /// The revision that the write made.
    pub revision: u64,
    /// The number of tasks that the write asked for; `None` for one that asked for none, or for one on each node.
    pub replicas: Option<u32>,
    /// Tasks that had ended before: what became of them is no news.
    pub known: BTreeSet<String>,
}

impl Wanted {
    /// A service that was just created: nothing of it is known.
    pub fn new(service: &v1::Service, goal: Goal) -> Self {
        let name = service.spec.as_ref().map(|spec| spec.name.clone()).unwrap_or_default();
        let (id, known) = (service.id.clone(), BTreeSet::new());
        let (version, revision, replicas) = (service.version, service.revision, replicas(service));
        Self { id, name, goal, version, revision, replicas, known }
    }

    /// A service that has been there: what went wrong with it before is not taken for the answer.
    pub async fn of_old(client: &Client, service: &v1::Service, goal: Goal) -> Result<Self, Error> {
        let filter = TaskFilter { service: service.id.clone(), ..TaskFilter::default() };
        let known = client.tasks().list(filter).await?.into_iter().map(|task| task.id).collect();
        Ok(Self { known, ..Self::new(service, goal) })
    }

    /// As a write left the service. An update waits for its revision with as many tasks as others want.
    #[must_use]
    pub fn made_by(self, answer: &v1::Service) -> Self {
        let replicas = replicas(answer).filter(|_| self.goal != Goal::Updated);
        Self { version: answer.version, revision: answer.revision, replicas, ..self }
    }

    fn what(&self) -> String {
        match self.goal {
            Goal::Running | Goal::Scaled => format!("service {} does not run as wanted", self.name),
            Goal::Updated => {
                format!("the tasks of service {} do not run revision {}", self.name, self.revision)
            }
            Goal::Gone => format!("service {} is not gone", self.name),
        }
    }

    fn hint(&self) -> String {
        let Self { name, .. } = self;
        format!("look further with `warren service ps {name}` and `warren task inspect TASK`")
    }
}

/// Waits for one service after the other; they get on at the same time.
pub async fn until_done(client: &Client, wanted: &[Wanted], timeout: Duration) -> Result<(), Failure> {
    let deadline = Instant::now() + timeout;
    for one in wanted {
        let mut progress = Progress::new();
        let ended = until_one_done(client, one, deadline, &mut progress).await;
        let picture = ended.map_err(|end| end.into_failure(one, timeout))?;
        progress.end(&picture.summary(one));
    }
    Ok(())
}

/// Why waiting ended without what was waited for.
enum End {
    Broken(Vec<String>),
    TimedOut(Picture),
    Client(Error),
}

impl End {
    fn into_failure(self, wanted: &Wanted, timeout: Duration) -> Failure {
        match self {
            Self::Broken(why) => Failure::new(Exit::Failed, wanted.what(), why.join("\n"), wanted.hint()),
            Self::Client(error) => crate::failure::of_client(wanted.what(), error),
            Self::TimedOut(picture) => {
                let lines = picture
                    .waiting_for(wanted.goal)
                    .into_iter()
                    .map(|(task, line)| format!("{task}: {line}"));
                let what = format!("{} after {}", wanted.what(), crate::view::duration(timeout));
                let why: Vec<String> = lines.collect();
                let hint = format!("{}; it goes on by itself, --timeout waits longer", wanted.hint());
                Failure::new(Exit::TimedOut, what, why.join("\n"), hint)
            }
        }
    }
}

async fn until_one_done(
    client: &Client,
    wanted: &Wanted,
    deadline: Instant,
    progress: &mut Progress,
) -> Result<Picture, End> {
    let mut watch = client.cluster().watch(&wanted.id);
    let mut picture = Picture::default();
    let mut look_at = Instant::now();
    loop {
        if Instant::now() >= look_at {
            match timeout_at(deadline, look(client, wanted)).await {
                Ok(Ok(seen)) => picture = seen,
                // The watch says whether it stays so.
                Ok(Err(error)) if passes(&error) => {}
                Ok(Err(error)) => return Err(End::Client(error)),
                Err(_) => return Err(End::TimedOut(picture)),
            }
            look_at = Instant::now() + LOOK_EVERY;
        }
        if picture.is_known() {
            match picture.judge(wanted) {
                Verdict::Reached => return Ok(picture),
                Verdict::Broken(why) => return Err(End::Broken(why)),
                Verdict::Waiting => {
                    progress.show(&picture.summary(wanted), &picture.waiting_for(wanted.goal))
                }
            }
        }
        match next(&mut watch, look_at.min(deadline)).await {
            // It went before it was watched: a look says what that means.
            Err(error) if error.is_not_found() => look_at = Instant::now(),
            Err(error) => return Err(End::Client(error)),
            Ok(Some(Change::Resync(_))) => look_at = Instant::now(),
            Ok(Some(change)) => {
                picture.apply(change);
                if wanted.goal == Goal::Updated {
                    look_at = look_at.min(Instant::now() + LOOK_AFTER_NEWS);
                }
            }
            Ok(None) if Instant::now() >= deadline => return Err(End::TimedOut(picture)),
            Ok(None) => {}
        }
    }
}

/// The next change, or nothing by then.
async fn next(watch: &mut Watch, until: Instant) -> Result<Option<Change>, Error> {
    tokio::select! {
        change = watch.next() => change.map(Some),
        () = sleep_until(until) => Ok(None),
    }
}

async fn look(client: &Client, wanted: &Wanted) -> Result<Picture, Error> {
    let service = match client.services().get(&wanted.id).await {
        Ok(service) => service,
        Err(error) if error.is_not_found() => return Ok(Picture::gone()),
        Err(error) => return Err(error),
    };
    let filter = TaskFilter { service: wanted.id.clone(), ..TaskFilter::default() };
    match client.tasks().list(filter).await {
        Ok(tasks) => Ok(Picture::of(service, tasks)),
        Err(error) if error.is_not_found() => Ok(Picture::gone()),
        Err(error) => Err(error),
    }
}

/// The manager may answer again in a moment.
pub fn passes(error: &Error) -> bool {
    match error {
        Error::Unreachable { .. } | Error::NoAnswer { .. } => true,
        Error::Refused { problem } => problem.code == tonic::Code::Unavailable,
        _ => false,
    }
}
