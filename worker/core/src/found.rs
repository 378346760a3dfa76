//! What is known of a task on this node, and how the result of each action changes it.

use std::collections::BTreeMap;
use std::time::Duration;

use warren_types::{Desired, Exit, Health, ImageDigest, TaskAssignment, Timestamp};

use crate::action::{Action, Verb};
use crate::ledger::{Ledger, Phase};

/// First delay after a transient failure; it doubles up to [`LONGEST_RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(250);
/// A failing action is tried at least this often.
pub(crate) const LONGEST_RETRY: Duration = Duration::from_secs(10);

/// Everything known of one task. The world's part (container, its ledger) is read back after the agent died;
/// the rest starts as unknown and is made known again by doing it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Whether `container` can be relied on.
    pub sight: Sight,
    /// The container as it was last seen.
    pub container: Container,
    /// The image that the container is made from.
    pub image: Image,
    /// What the container is made from, by its record: all that the agent after the one that made it knows of its
    /// image.
    pub made_from: Option<ImageDigest>,
    /// The task's network.
    pub network: Presence,
    /// The task's directory.
    pub files: Presence,
    /// The volumes that it mounts. Nobody counts on their being absent.
    pub volumes: Presence,
    /// The files of its secrets and configs.
    pub contents: Presence,
    /// What the checks of this agent say of the process that runs; `None` before the first of them is over.
    pub checked: Option<Checked>,
    /// The task's share in its service's published ports on this node.
    pub ports: Ports,
    /// The history of its attempts.
    pub ledger: Ledger,
    /// The stop signal, once it was sent.
    pub stop: Option<StopSent>,
    /// The actions that failed when they were last tried.
    pub troubles: BTreeMap<Verb, Trouble>,
    /// When this agent took the task on.
    pub accepted_at: Timestamp,
    /// For how long the node has been without any manager; `None` while it has one.
    pub alone_for: Option<Duration>,
}

/// How good the last look at the container is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// This agent has not looked yet: the ledger in the container's record is still to be read.
    Never,
    /// Something may have happened since.
    Stale,
    /// Nothing is known to have happened since.
    Fresh,
}

/// What checks say of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// Starting, healthy or unhealthy.
    pub health: Health,
    /// Why it is not healthy, in words; empty when it is.
    pub reason: String,
}

/// The container's record and process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// There is no record.
    Absent,
    /// A record without a process.
    Recorded,
    /// A process that is made and waits to be started.
    Created,
    /// A process that runs.
    Running {
        /// Since when, as well as it is known.
        since: Timestamp,
    },
    /// A process that ended and is not cleared yet.
    Stopped {
        /// How.
        exit: Exit,
        /// When.
        at: Timestamp,
    },
}

/// The image on this node. A container that is there already needs none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Image {
    /// Nobody has looked for it, or what was found then may be gone.
    Unknown,
    /// It is being pulled.
    Arriving {
        /// How far it has come, in words.
        said: String,
    },
    /// It is here, and this is what it is.
    Present(ImageDigest),
}

/// Whether something that belongs to the task is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Perhaps wholly, perhaps in part.
    Unknown,
    /// Wholly there.
    Present,
    /// Nothing of it is there.
    Absent,
}

/// The task's share in published ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ports {
    /// Perhaps held or served.
    Unknown,
    /// Held for this node, without traffic to the task.
    Held,
    /// The task gets its share of the traffic.
    Serving,
    /// Neither.
    Released,
}

/// The request to stop, as far as this agent sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopSent {
    /// When the stop signal went out.
    pub at: Timestamp,
    /// When the container was last killed.
    pub killed_at: Option<Timestamp>,
}

/// Whether trying again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// It can: something was not reachable, took too long, or failed without saying why.
    Transient,
    /// It cannot, as long as neither the spec nor the node changes.
    Permanent,
}

/// An action's failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// Whether trying again can help.
    pub severity: Severity,
    /// What went wrong and what to do, in words.
    pub reason: String,
    /// How often it failed in a row.
    pub failures: u32,
    /// When it failed last.
    pub at: Timestamp,
}

impl Trouble {
    /// Not tried again before this.
    pub(crate) fn retry_at(&self) -> Timestamp {
        let doublings = self.failures.saturating_sub(1).min(16);
        self.at + FIRST_RETRY.saturating_mul(1 << doublings).min(LONGEST_RETRY)
    }
}

impl Container {
    /// There is a process that runs.
    pub fn is_running(self) -> bool {
        matches!(self, Self::Running { .. })
    }
}

impl Found {
    /// Of a task that the agent hears of at `now` and has not looked at.
    pub fn new(now: Timestamp) -> Self {
        Self {
            sight: Sight::Never,
            container: Container::Absent,
            image: Image::Unknown,
            made_from: None,
            network: Presence::Unknown,
            files: Presence::Unknown,
            volumes: Presence::Unknown,
            contents: Presence::Unknown,
            checked: None,
            ports: Ports::Unknown,
            ledger: Ledger::first(),
            stop: None,
            troubles: BTreeMap::new(),
            accepted_at: now,
            alone_for: None,
        }
    }

    /// The container was looked at. `recorded` is the ledger in its record; it counts at the first look,
    /// after that this agent knows better.
    pub fn inspected(&mut self, container: Container, recorded: Option<Ledger>) {
        if let (Sight::Never, Some(ledger)) = (self.sight, recorded) {
            self.ledger = ledger;
        }
        self.sight = Sight::Fresh;
        self.troubles.remove(&Verb::Inspect);
        if std::mem::discriminant(&container) != std::mem::discriminant(&self.container) {
            // What failed may have taken effect after all.
            self.troubles.retain(|verb, trouble| {
                !verb.is_about_the_container() || trouble.severity == Severity::Permanent
            });
        }
        // The start that the agent itself saw is more exact than what a look can tell.
        let container = match (container, self.container, &self.ledger.phase) {
            (Container::Running { .. }, Container::Running { since }, _) => Container::Running { since },
            (Container::Running { .. }, _, Phase::Started { at, .. }) => Container::Running { since: *at },
            (seen, _, _) => seen,
        };
        self.is_now(container);
    }

    /// What the record of the container that was looked at says of its image.
    pub fn is_made_from(&mut self, digest: Option<ImageDigest>) {
        self.made_from = digest;
    }

    /// What was found of a process means nothing for the next one.
    fn is_now(&mut self, container: Container) {
        if !(self.container.is_running() && container.is_running()) {
            self.checked = None;
        }
        self.container = container;
    }

    /// A check of the process that runs is over. One of a process that has ended since changes nothing.
    pub fn checked(&mut self, checked: Checked) {
        if self.container.is_running() {
            self.checked = Some(checked);
        }
    }

    /// What the task's checks say: those of this agent, before them those of the agents before it.
    pub fn health(&self, wanted: Option<&TaskAssignment>) -> Health {
        let has_check =
            wanted.is_some_and(|task| task.spec.health.is_some() && task.desired <= Desired::Running);
        if !has_check || !self.container.is_running() {
            return Health::None;
        }
        match (&self.checked, &self.ledger.phase) {
            (Some(checked), _) => checked.health,
            (None, Phase::Started { health: Health::None, .. }) => Health::Starting,
            (None, Phase::Started { health, .. }) => *health,
            (None, _) => Health::Starting,
        }
    }

    /// What the next agent must know of the task's health, where the ledger does not say it yet.
    pub(crate) fn unrecorded_health(&self, wanted: Option<&TaskAssignment>) -> Option<Health> {
        let recorded = match self.ledger.phase {
            Phase::Started { health, .. } => health,
            _ => Health::None,
        };
        match self.health(wanted) {
            health @ (Health::Healthy | Health::Unhealthy) if health != recorded => Some(health),
            _ => None,
        }
    }

    /// [`Action::EnsureImage`] is under way; `said` is how far it has come, in words.
    pub fn arriving(&mut self, said: String) {
        self.image = Image::Arriving { said };
    }

    /// [`Action::EnsureImage`] was done: the image is here, and `digest` is what it is.
    pub fn obtained(&mut self, digest: ImageDigest) {
        self.image = Image::Present(digest);
        self.troubles.remove(&Verb::EnsureImage);
    }

    /// `action` was done; [`Action::Inspect`] is told by [`Found::inspected`] and [`Action::EnsureImage`] by
    /// [`Found::obtained`] instead.
    pub fn succeeded(&mut self, action: &Action, now: Timestamp) {
        match action {
            Action::Inspect | Action::EnsureImage => return,
            Action::EnsureNetwork => self.network = Presence::Present,
            Action::RemoveNetwork => self.network = Presence::Absent,
            Action::EnsureFiles => self.files = Presence::Present,
            Action::RemoveFiles => self.files = Presence::Absent,
            Action::EnsureVolumes => self.volumes = Presence::Present,
            Action::EnsureContents => self.contents = Presence::Present,
            Action::RemoveContents => self.contents = Presence::Absent,
            Action::HoldPorts => self.ports = Ports::Held,
            Action::Serve => self.ports = Ports::Serving,
            Action::ReleasePorts => self.ports = Ports::Released,
            Action::EnsureContainer => self.is_now(Container::Created),
            Action::Start => self.is_now(Container::Running { since: now }),
            Action::RecordLedger(ledger) => self.ledger = ledger.clone(),
            Action::SignalStop => self.stop = Some(StopSent { at: now, killed_at: None }),
            Action::Kill => {
                let at = self.stop.map_or(now, |stop| stop.at);
                self.stop = Some(StopSent { at, killed_at: Some(now) });
                // Nobody tells of the end of a process that had ended before.
                self.overtaken();
            }
            Action::DeleteProcess => self.is_now(Container::Recorded),
            Action::RemoveContainer => self.is_now(Container::Absent),
        }
        // The task got ahead: what failed before may work now.
        self.troubles.clear();
    }

    /// `action` failed, perhaps half-way: what it touches is unknown until it was looked at or done again.
    pub fn failed(&mut self, action: &Action, severity: Severity, reason: String, now: Timestamp) {
        let verb = action.verb();
        match verb {
            Verb::EnsureImage => self.image = Image::Unknown,
            Verb::EnsureNetwork | Verb::RemoveNetwork => self.network = Presence::Unknown,
            Verb::EnsureFiles | Verb::RemoveFiles => self.files = Presence::Unknown,
            Verb::EnsureVolumes => {
                self.volumes = Presence::Unknown;
                // Perhaps because the image that fills them went meanwhile.
                self.image = Image::Unknown;
            }
            Verb::EnsureContents | Verb::RemoveContents => self.contents = Presence::Unknown,
            Verb::HoldPorts | Verb::Serve | Verb::ReleasePorts => self.ports = Ports::Unknown,
            verb if verb.is_about_the_container() => self.overtaken(),
            _ => (),
        }
        if verb == Verb::EnsureContainer {
            // Perhaps because the image went meanwhile, or what it mounts.
            self.image = Image::Unknown;
            self.volumes = Presence::Unknown;
            self.contents = Presence::Unknown;
        }
        let before = self.troubles.get(&verb).map_or(0, |trouble| trouble.failures);
        let failures = before.saturating_add(1);
        self.troubles.insert(verb, Trouble { severity, reason, failures, at: now });
    }

    /// Something may have happened to the container: look before the next action.
    pub fn overtaken(&mut self) {
        if self.sight == Sight::Fresh {
            self.sight = Sight::Stale;
        }
    }

    /// What the agent made for the task may have been damaged: make it again. Harmless where nothing was.
    pub fn distrust_surroundings(&mut self) {
        let doubt = |presence: &mut Presence| {
            if *presence == Presence::Present {
                *presence = Presence::Unknown;
            }
        };
        doubt(&mut self.network);
        doubt(&mut self.files);
        doubt(&mut self.volumes);
        doubt(&mut self.contents);
    }

    /// The causes of transient failures may be gone: try again at once.
    pub fn forget_delays(&mut self) {
        self.troubles.retain(|_, trouble| trouble.severity == Severity::Permanent);
    }

    /// Why the task can never run here, unless its process runs already.
    pub(crate) fn rejection(&self) -> Option<(Verb, &Trouble)> {
        let hopeless =
            |(verb, trouble): &(&Verb, &Trouble)| trouble.severity == Severity::Permanent && verb.brings_up();
        let (verb, trouble) = self.troubles.iter().find(hopeless)?;
        (!self.container.is_running()).then_some((*verb, trouble))
    }
}
