//! The loop around `step` for one task: look at the orders, ask, do one action, note what came of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use warren_control::Clock;
use warren_health::Target;
use warren_task::{Action, Container, Found, Step, is_worth_telling, report, step};
use warren_types::{Desired, TaskAssignment, TaskId, TaskReport, Timestamp};

use crate::session::Standing;
use crate::tasks::checks::{Checks, Subject};
use crate::tasks::container;
use crate::tasks::driver::{Done, Driver, Job, Surroundings};
use crate::tasks::failure::Failure;
use crate::tasks::reporter::Reporter;

/// What an action may take in all, above the deadlines of the calls it is made of. One that is still at work
/// then is reported; no other is begun for the task before it ends.
const ACTION_DEADLINE: Duration = Duration::from_secs(120);

/// What the supervisor tells an actor. The counters only rise: an actor that missed one change sees the
/// next.
#[derive(Debug, Clone, Default)]
pub(super) struct Orders {
    /// `None` when nobody knows what the task is.
    pub wanted: Option<Arc<TaskAssignment>>,
    /// Nobody wants the task: the actor ends when nothing is left of it.
    pub dismissed: bool,
    /// Something may have happened to the container.
    pub looks: u64,
    /// The task's network or files may have been damaged.
    pub doubts: u64,
    /// What made actions fail may be over.
    pub retries: u64,
    /// Whether the node has a manager. Who does not mind is not woken by it.
    pub standing: Standing,
}

impl Orders {
    /// Nothing is to be left of the task, which ends with the word that nothing is.
    fn want_nothing(&self) -> bool {
        self.wanted.as_ref().is_none_or(|wanted| wanted.desired == Desired::Remove)
    }

    /// The task is stopped when the node has no manager for too long.
    pub fn minds(&self) -> bool {
        self.wanted.as_ref().is_some_and(|wanted| !wanted.spec.on_disconnect.is_keep())
    }
}

/// The supervisor's end of an actor.
#[derive(Debug)]
pub(super) struct Handle {
    orders: watch::Sender<Orders>,
    kind: Arc<AtomicU8>,
}

/// A container without its times, to compare with a listing.
pub(super) fn kind(container: &Container) -> u8 {
    match container {
        Container::Absent => 0,
        Container::Recorded => 1,
        Container::Created => 2,
        Container::Running { .. } => 3,
        Container::Stopped { .. } => 4,
    }
}

impl Handle {
    /// Changes the orders; the actor is woken when `change` says that they are other ones.
    pub fn order(&self, change: impl FnOnce(&mut Orders) -> bool) {
        self.orders.send_if_modified(change);
    }

    /// The [`kind`] of container that the actor last saw.
    pub fn kind(&self) -> u8 {
        self.kind.load(Ordering::Relaxed)
    }
}

/// An [`Action::EnsureImage`] under way, which may take hours. Dropping it gives it up.
struct Getting {
    work: BoxFuture<'static, Result<Done, Failure>>,
    said: watch::Receiver<String>,
    begun: tokio::time::Instant,
}

/// One task's actor.
pub(super) struct Actor {
    task: TaskId,
    driver: Arc<Driver>,
    reporter: Arc<Reporter>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
    orders: watch::Receiver<Orders>,
    obeyed: Orders,
    kind: Arc<AtomicU8>,
    found: Found,
    surroundings: Surroundings,
    /// Held from the creation of a process to its start.
    start_permit: Option<OwnedSemaphorePermit>,
    late: Option<JoinHandle<Result<Done, Failure>>>,
    /// The image that is being got, for as long as `step` asks for it.
    getting: Option<Getting>,
    /// The checks of its process, while it runs and is to run.
    checks: Option<Checks>,
    /// Something about the container failed. What that left may show only once the container is gone.
    botched: bool,
}

impl Actor {
    /// An actor that knows nothing of its container yet, and the supervisor's end of it.
    pub fn new(
        task: TaskId,
        orders: Orders,
        driver: Arc<Driver>,
        reporter: Arc<Reporter>,
        clock: Arc<dyn Clock>,
        stop: CancellationToken,
    ) -> (Self, Handle) {
        let found = Found::new(Timestamp(clock.unix_millis()));
        let kind = Arc::new(AtomicU8::new(kind(&found.container)));
        let (sender, receiver) = watch::channel(orders.clone());
        let actor = Self {
            task,
            driver,
            reporter,
            clock,
            stop,
            orders: receiver,
            obeyed: orders,
            kind: Arc::clone(&kind),
            found,
            surroundings: Surroundings::default(),
            start_permit: None,
            late: None,
            getting: None,
            checks: None,
            botched: false,
        };
        (actor, Handle { orders: sender, kind })
    }

    /// Works until the agent stops, or until nothing is left of a task that nobody wants.
    pub async fn run(mut self) {
        while !self.stop.is_cancelled() {
            self.obey();
            self.tend_checks();
            let now = self.now();
            self.found.alone_for = self.obeyed.standing.alone_for(self.clock.instant());
            let answer = step(self.obeyed.wanted.as_deref(), &self.found, now);
            let said = self.tell();
            if said.removed && std::mem::take(&mut self.botched) {
                self.driver.botched.notify_one();
            }
            if !matches!(answer, Step::Do(Action::EnsureImage | Action::Inspect)) {
                self.getting = None;
            }
            match answer {
                Step::Do(Action::EnsureImage) => self.get_image().await,
                Step::Do(action) => self.act(action).await,
                Step::WaitUntil(moment) => self.wait(Some(moment.since(now))).await,
                Step::Settled if said.removed && self.obeyed.dismissed => return,
                Step::Settled => self.wait(None).await,
            }
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp(self.clock.unix_millis())
    }

    fn obey(&mut self) {
        let orders = self.orders.borrow_and_update().clone();
        if orders.looks != self.obeyed.looks {
            self.found.overtaken();
        }
        if orders.doubts != self.obeyed.doubts {
            self.found.distrust_surroundings();
        }
        if orders.retries != self.obeyed.retries {
            self.found.forget_delays();
        }
        if self.obeyed.want_nothing() && !orders.want_nothing() {
            self.reporter.forget_removal(&self.task);
        }
        self.obeyed = orders;
    }

    /// Takes over what the checks found, and has them only while there is something to check.
    fn tend_checks(&mut self) {
        if let Some(found) = self.checks.as_mut().and_then(Checks::news) {
            self.found.checked(found);
        }
        let subject = self.subject();
        if subject.is_none() {
            self.checks = None;
        } else if self.checks.is_none() {
            let start =
                |subject| Checks::start(subject, Arc::clone(&self.driver.checking), Arc::clone(&self.clock));
            self.checks = subject.map(start);
        }
    }

    /// What is to be checked now.
    fn subject(&self) -> Option<Subject> {
        let wanted = self.obeyed.wanted.as_deref().filter(|wanted| wanted.desired <= Desired::Running)?;
        let Container::Running { since } = self.found.container else { return None };
        let (check, health) = (wanted.spec.health.clone()?, self.found.health(Some(wanted)));
        let target = Target {
            container: container::id(&self.task).to_string(),
            pid: self.surroundings.pid?,
            netns: self.surroundings.netns.clone()?,
            address: wanted.address,
        };
        Some(Subject { task: self.task, check, target, since, health })
    }

    fn tell(&self) -> TaskReport {
        self.kind.store(kind(&self.found.container), Ordering::Relaxed);
        let said = report(self.task, self.obeyed.wanted.as_deref(), &self.found);
        if is_worth_telling(self.obeyed.wanted.as_deref(), &self.found) {
            self.reporter.tell(said.clone());
        }
        said
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
            () = news(&mut self.checks) => {}
            changed = self.orders.changed() => {
                // Without a supervisor nobody will ever order anything again.
                if changed.is_err() {
                    self.stop.cancelled().await;
                }
            }
        }
    }

    async fn act(&mut self, action: Action) {
        let begun = self.clock.instant();
        if matches!(action, Action::EnsureContainer | Action::Start) && self.start_permit.is_none() {
            let permit = Arc::clone(&self.driver.starts).acquire_owned().await;
            self.start_permit = permit.ok();
        }
        let result = self.perform(&action).await;
        let goes_on = action == Action::EnsureContainer && result.is_ok() && self.wants_start();
        if !goes_on {
            self.start_permit = None;
        }
        let took = self.clock.instant().duration_since(begun);
        self.learn(&action, took, result);
    }

    /// Goes on with getting the image until something is to be told, or may be wanted otherwise.
    async fn get_image(&mut self) {
        let getting = match self.getting.take() {
            Some(getting) => getting,
            None => {
                let (sender, said) = watch::channel(String::new());
                let job = Job { said: Some(sender), ..self.job(&Action::EnsureImage) };
                let driver = Arc::clone(&self.driver);
                let work = async move { driver.perform(job).await }.boxed();
                Getting { work, said, begun: self.clock.instant() }
            }
        };
        let getting = self.getting.insert(getting);
        tokio::select! {
            result = &mut getting.work => {
                let took = self.clock.instant().duration_since(getting.begun);
                self.getting = None;
                self.learn(&Action::EnsureImage, took, result);
            }
            Ok(()) = getting.said.changed() => {
                let said = getting.said.borrow_and_update().clone();
                self.found.arriving(said);
            }
            () = self.stop.cancelled() => {}
            changed = self.orders.changed() => {
                if changed.is_err() {
                    self.stop.cancelled().await;
                }
            }
        }
    }

    fn learn(&mut self, action: &Action, took: Duration, result: Result<Done, Failure>) {
        match result {
            Ok(done) => {
                tracing::debug!(task = %self.task, verb = ?action.verb(), ?took, "done");
                self.note(action, done);
            }
            Err(Failure { severity, reason }) => {
                self.botched |= action.verb().is_about_the_container();
                tracing::info!(task = %self.task, verb = ?action.verb(), ?severity, reason, "action failed");
                self.found.failed(action, severity, reason, self.now());
            }
        }
    }

    fn wants_start(&self) -> bool {
        self.obeyed.wanted.as_ref().is_some_and(|wanted| wanted.desired == Desired::Running)
    }

    /// Does the action in a task of its own: a call that is cut off half-way (a container that is being
    /// made) leaves behind what nobody finds again.
    async fn perform(&mut self, action: &Action) -> Result<Done, Failure> {
        let slow = || Failure::transient(format!("still at work after {}s", ACTION_DEADLINE.as_secs()));
        if let Some(mut late) = self.late.take()
            && tokio::time::timeout(ACTION_DEADLINE, &mut late).await.is_err()
        {
            self.late = Some(late);
            return Err(slow());
        }
        let job = self.job(action);
        let driver = Arc::clone(&self.driver);
        let mut work = tokio::spawn(async move { driver.perform(job).await });
        match tokio::time::timeout(ACTION_DEADLINE, &mut work).await {
            Ok(Ok(result)) => result,
            Ok(Err(broken)) => Err(Failure::transient(format!("the action broke off: {broken}"))),
            Err(_) => {
                self.late = Some(work);
                Err(slow())
            }
        }
    }

    fn job(&self, action: &Action) -> Job {
        Job {
            task: self.task,
            assignment: self.obeyed.wanted.clone(),
            attempt: self.found.ledger.attempt,
            surroundings: self.surroundings.clone(),
            action: action.clone(),
            now: self.now(),
            said: None,
        }
    }

    fn note(&mut self, action: &Action, done: Done) {
        match done {
            Done::Saw { container, made_from, ledger, stop_signal, pid } => {
                self.surroundings.stop_signal = stop_signal;
                self.surroundings.pid = pid;
                self.found.inspected(container, ledger);
                self.found.is_made_from(made_from);
                return;
            }
            Done::Obtained(digest) => {
                self.found.obtained(digest);
                return;
            }
            Done::Attached(netns) => self.surroundings.netns = Some(netns),
            Done::Wrote(files) => self.surroundings.files = Some(files),
            Done::Brought(mounts) => self.surroundings.contents = Some(mounts),
            Done::Started(pid) => self.surroundings.pid = Some(pid),
            Done::NothingToSignal => self.found.overtaken(),
            Done::Plainly => (),
        }
        self.found.succeeded(action, self.now());
    }
}

/// Waits for news of the checks; for ever where there are none.
async fn news(checks: &mut Option<Checks>) {
    match checks {
        Some(checks) => checks.changed().await,
        None => std::future::pending().await,
    }
}
