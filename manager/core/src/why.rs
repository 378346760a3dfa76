//! Why an object is as it is: the chain of causes from what is desired to what is, with evidence and what to do.
//!
//! A pure function of a state and of what nodes reported beside it. Codes are stable: programs may compare them.

mod certificate;
mod node;
mod service;
mod storage;
mod target;
mod task;
mod worker_reason;

use std::collections::BTreeMap;
use std::ops::Range;

use warren_types::{ManagerId, NodeId, Task, TaskId, Timestamp};

pub use self::certificate::CertificateHolder;
pub use self::target::{CERTIFICATE, WhyTarget};
pub use self::worker_reason::WORKER_STEPS;
use crate::scheduler::{UnschedulableReasons, schedule};
use crate::state::State;

/// The most causes of one kind that are listed one by one; more are counted.
const MAX_LISTED: usize = 5;

/// How good a condition is; the worst cause decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As desired.
    Ok,
    /// On its way, or waiting for something that is expected to happen.
    Waiting,
    /// It does not become as desired by itself, or has failed before.
    Problem,
}

impl Severity {
    /// As in documents: `problem`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Waiting => "waiting",
            Self::Problem => "problem",
        }
    }
}

/// A condition and what caused it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// How good it is.
    pub severity: Severity,
    /// Stable, in kebab-case: `image-pull-failed`.
    pub code: &'static str,
    /// What is, as a sentence without a full stop.
    pub sentence: String,
    /// Since when, if that is known.
    pub since: Option<Timestamp>,
    /// What was observed.
    pub evidence: Vec<String>,
    /// What a person can do.
    pub action: Option<String>,
    /// The task whose last lines of output may tell more.
    pub log_task: Option<TaskId>,
    /// What it follows from.
    pub causes: Vec<Cause>,
}

impl Cause {
    fn new(severity: Severity, code: &'static str, sentence: impl Into<String>) -> Self {
        Self {
            severity,
            code,
            sentence: sentence.into(),
            since: None,
            evidence: Vec::new(),
            action: None,
            log_task: None,
            causes: Vec::new(),
        }
    }

    fn ok(code: &'static str, sentence: impl Into<String>) -> Self {
        Self::new(Severity::Ok, code, sentence)
    }

    fn waiting(code: &'static str, sentence: impl Into<String>) -> Self {
        Self::new(Severity::Waiting, code, sentence)
    }

    fn problem(code: &'static str, sentence: impl Into<String>) -> Self {
        Self::new(Severity::Problem, code, sentence)
    }

    fn since(self, since: Timestamp) -> Self {
        Self { since: Some(since), ..self }
    }

    /// Adds evidence, unless it is empty.
    fn evidence(mut self, evidence: impl Into<String>) -> Self {
        let evidence = evidence.into();
        if !evidence.is_empty() {
            self.evidence.push(evidence);
        }
        self
    }

    fn action(self, action: impl Into<String>) -> Self {
        Self { action: Some(action.into()), ..self }
    }

    fn log_of(self, task: TaskId) -> Self {
        Self { log_task: Some(task), ..self }
    }

    fn because(mut self, cause: impl IntoIterator<Item = Cause>) -> Self {
        self.causes.extend(cause);
        self
    }

    /// The worst of itself and what it follows from.
    fn with_worst_severity(mut self) -> Self {
        let worst = self.causes.iter().map(|cause| cause.severity).max();
        self.severity = self.severity.max(worst.unwrap_or(Severity::Ok));
        self
    }
}

/// The answer about one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WhyAnswer {
    /// Its kind: `service`, `certificate`.
    pub noun: &'static str,
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// What is desired, as a sentence without a full stop.
    pub desired: String,
    /// What is, and why.
    pub cause: Cause,
}

/// A health check's last result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastCheck {
    /// When it ran.
    pub at: Timestamp,
    /// Whether it succeeded.
    pub is_ok: bool,
    /// Its output, cut.
    pub output: String,
}

/// What a machine reported of its certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateReport {
    /// When it was issued, and when it ends; `None` if the machine has not said so.
    pub validity: Option<Range<Timestamp>>,
    /// The error of its last renewal, if that fails again and again.
    pub renewal_error: Option<String>,
}

/// What nodes and managers reported that is not replicated.
#[derive(Debug, Clone, Default)]
pub struct Observations {
    /// Tasks with newer progress than the state has.
    pub tasks: BTreeMap<TaskId, Task>,
    /// The last results of health checks.
    pub checks: BTreeMap<TaskId, LastCheck>,
    /// The messages of nodes' conditions.
    pub conditions: BTreeMap<NodeId, Vec<String>>,
    /// The certificates of connected nodes.
    pub node_certificates: BTreeMap<NodeId, CertificateReport>,
    /// Of the manager whose certificate is asked about; without a validity if it did not answer.
    pub manager_certificates: BTreeMap<ManagerId, CertificateReport>,
}

/// The inputs of all causes.
pub(crate) struct Inquiry<'a> {
    state: &'a State,
    observations: &'a Observations,
    refusals: UnschedulableReasons,
    now: Timestamp,
}

/// Why the object is as it is at `now`. `None` if it does not exist.
pub fn why(
    state: &State,
    observations: &Observations,
    target: &WhyTarget,
    now: Timestamp,
) -> Option<WhyAnswer> {
    let refusals = schedule(state, now).refusals;
    let inquiry = Inquiry { state, observations, refusals, now };
    let (noun, id, name) = (target.noun(state)?, target.id(), target.name(state)?);
    let (desired, cause) = match target {
        WhyTarget::Service(id) => inquiry.service(state.service(id)?),
        WhyTarget::Task(id) => {
            let task = inquiry.task_of(id)?;
            (format!("its desired state is {}", task.desired.as_str()), inquiry.task(task))
        }
        WhyTarget::Node(id) => {
            let node = state.node(id)?;
            let desired = format!("its availability is {}", node.availability.as_str());
            (desired, inquiry.node(node))
        }
        WhyTarget::Volume(id) => inquiry.volume(state.volume(id)?),
        WhyTarget::Network(id) => inquiry.network(state.network(id)?),
        WhyTarget::SecretObject(id) => inquiry.secret_object(state.secret_object(id)?),
        WhyTarget::Certificate(holder) => inquiry.certificate(holder)?,
    };
    Some(WhyAnswer { noun, id, name, desired, cause })
}

impl<'a> Inquiry<'a> {
    /// The task with its newest progress.
    fn task_of(&self, id: &TaskId) -> Option<&'a Task> {
        self.observations.tasks.get(id).or_else(|| self.state.task(id).map(AsRef::as_ref))
    }

    fn service_name(&self, task: &Task) -> String {
        let service = self.state.service(&task.id.service);
        service.map_or_else(|| task.id.service.to_string(), |service| service.spec.name.to_string())
    }

    fn node_name(&self, id: Option<NodeId>) -> String {
        let node = id.and_then(|id| self.state.node(&id));
        node.map_or_else(|| "(removed)".to_owned(), |node| node.name.to_string())
    }

    /// Time since then for people: `45s`, `12m`.
    fn ago(&self, since: Timestamp) -> String {
        let seconds = self.now.saturating_since(since).as_secs();
        match seconds {
            0..120 => format!("{seconds}s"),
            120..7200 => format!("{}m", seconds / 60),
            _ => format!("{}h", seconds / 3600),
        }
    }
}

/// `1 task`, `3 tasks`.
fn count(number: impl Into<u64>, noun: &str) -> String {
    let number: u64 = number.into();
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// The first names, and how many follow: `web.1, web.2 and 8 more`.
fn listed(names: &[String]) -> String {
    let shown = names.iter().take(MAX_LISTED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MAX_LISTED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
