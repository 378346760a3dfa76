//! Clients that write the same few objects at the same time, through any manager, and look at what the answers show.
//!
//! Nobody else changes what the other clients have, so an answer that shows a later write would look right to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use warren_core::{Answer, Command, Outcome, Refusal, State};
use warren_types::{
    Content, ContentId, ContentKind, Id, Mode, Placement, SealedContent, Service, ServiceId, ServiceSpec,
    TaskSpec, Timestamp,
};

use crate::chance::Chance;
use crate::event::{Answered, Event, OnManager, Unanswered};
use crate::manager::Who;
use crate::world::{Defect, World};

pub const WRITERS: usize = 3;
/// How long a writer waits for an answer. After that no manager proposes the write any more.
const PATIENCE: u64 = 2_000;
/// Their ids, which no other client makes.
const IDS: u128 = 0xff << 64;
const VALUE: &str = "value";

/// What they write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Object {
    Service,
    Config,
    /// Another config, which is removed and created again at times. Its numbers begin anew each time.
    ShortLivedConfig,
}

/// What the answer to a write shows of its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown {
    pub value: u64,
    pub version: u64,
    /// Of a config's bytes.
    pub number: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Create,
    Write,
    /// Writes only if the object still has the version with which the writer's own last write was answered.
    Set {
        expected: u64,
    },
    Remove,
}

/// A write as it was called, also if it is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    pub object: Object,
    pub verb: Verb,
    /// No other write has it.
    pub value: u64,
    /// The newest version that some writer had been answered with when this one was called first.
    pub after: u64,
}

/// What a writer is told.
#[derive(Debug, Clone)]
pub enum Reply {
    /// It was applied; the object as the answer shows it.
    Done(Option<Shown>),
    Refused(Box<Refusal>),
    Unanswered(Unanswered),
}

#[derive(Debug)]
pub struct Writer {
    number: u64,
    call: Option<Call>,
    /// The newest sending, and until when its answer is waited for.
    sent: (u64, u64),
    written: u64,
    /// The versions with which its own last writes were answered.
    own: BTreeMap<Object, u64>,
    /// What is not there, as far as it knows.
    absent: BTreeSet<Object>,
    /// How many writes were acknowledged, and of its compare-and-sets how many and how many refused.
    pub counts: [u64; 3],
}

impl Object {
    const ALL: [Self; 3] = [Self::Service, Self::Config, Self::ShortLivedConfig];

    fn content(self) -> ContentId {
        ContentId(Id(IDS | self as u128))
    }

    fn spec(value: u64) -> ServiceSpec {
        ServiceSpec {
            name: "shared".parse().expect("a valid name"),
            labels: BTreeMap::from([(VALUE.to_owned(), value.to_string())]),
            mode: Mode::Replicated { replicas: 0 },
            task: TaskSpec::new("web:1".parse().expect("a valid reference")),
            ports: Vec::new(),
            placement: Placement::default(),
            replace_after: std::time::Duration::ZERO,
        }
    }

    /// As this state has it, which may know later writes.
    fn shown_in(self, state: &State) -> Option<Shown> {
        match self {
            Self::Service => state.service(&ServiceId(Id(IDS))).map(|service| Shown::from(&**service)),
            Self::Config | Self::ShortLivedConfig => {
                state.content(&self.content()).map(|content| Shown::from(&**content))
            }
        }
    }
}

impl Shown {
    /// The object that an answer carries.
    fn by(answer: &Answer) -> Option<Self> {
        match answer {
            Answer::Service(service) => Some(Self::from(&**service)),
            Answer::Content(content) => Some(Self::from(&**content)),
            _ => None,
        }
    }
}

impl From<&Service> for Shown {
    fn from(service: &Service) -> Self {
        let value = service.spec.labels.get(VALUE).and_then(|value| value.parse().ok());
        Self { value: value.expect("a writer's service has its value"), version: service.version, number: 0 }
    }
}

impl From<&Content> for Shown {
    fn from(content: &Content) -> Self {
        let newest = content.versions.values().next_back().expect("a config has bytes");
        let value = newest.fingerprint.first_chunk().map_or(0, |value| u64::from_be_bytes(*value));
        Self { value, version: content.version, number: content.number() }
    }
}

fn sealed(value: u64) -> SealedContent {
    let mut fingerprint = [0; 32];
    fingerprint[..8].copy_from_slice(&value.to_be_bytes());
    SealedContent { size: 1, fingerprint, sealed: vec![0; 29] }
}

impl Call {
    fn command(&self, at: Timestamp) -> Command {
        let version = match self.verb {
            Verb::Set { expected } => Some(expected),
            Verb::Create | Verb::Write | Verb::Remove => None,
        };
        let (service, content) = (ServiceId(Id(IDS)), self.object.content());
        match (self.object, self.verb) {
            (Object::Service, Verb::Create) => {
                Command::CreateService { id: service, spec: Object::spec(self.value), at }
            }
            (Object::Service, Verb::Remove) => Command::RemoveService { id: service, version, at },
            (Object::Service, _) => {
                let spec = Object::spec(self.value);
                Command::UpdateService { id: service, version, spec, force: false, at }
            }
            (object, Verb::Create) => Command::CreateContent {
                id: content,
                kind: ContentKind::Config,
                name: format!("shared-{}", object as u8).parse().expect("a valid name"),
                labels: BTreeMap::new(),
                content: sealed(self.value),
                at,
            },
            (_, Verb::Remove) => Command::RemoveContent { id: content, at },
            _ => Command::UpdateContent { id: content, version, content: sealed(self.value), at },
        }
    }
}

impl Writer {
    pub fn new(number: usize) -> Self {
        let absent = Object::ALL.into_iter().collect();
        let number = number as u64;
        Self { number, call: None, sent: (0, 0), written: 0, own: BTreeMap::new(), absent, counts: [0; 3] }
    }

    /// The cluster may have forgotten what it acknowledged.
    pub fn forget(&mut self) {
        let (written, sent, counts) = (self.written, (self.sent.0 + 1, 0), self.counts);
        *self = Self { written, sent, counts, ..Self::new(usize::try_from(self.number).unwrap_or(0)) };
    }

    fn next_call(&mut self, object: Object, after: u64, chance: &mut Chance) -> Call {
        self.written += 1;
        let value = self.written << 8 | self.number;
        let verb = match self.own.get(&object) {
            _ if self.absent.contains(&object) => Verb::Create,
            _ if object != Object::Config && chance.one_in(8) => Verb::Remove,
            Some(expected) if chance.one_in(2) => Verb::Set { expected: *expected },
            _ => Verb::Write,
        };
        Call { object, verb, value, after }
    }

    /// A sending was refused: what it knows of the object is over.
    fn refused(&mut self, call: Call, refusal: &Refusal) {
        self.own.remove(&call.object);
        match refusal {
            Refusal::NotFound { .. } | Refusal::Removing { .. } => drop(self.absent.insert(call.object)),
            _ => drop(self.absent.remove(&call.object)),
        }
        self.counts[2] += u64::from(matches!(refusal, Refusal::VersionConflict { .. }));
    }
}

impl World {
    /// All writers that do not wait for an answer write one object, or repeat what was not answered.
    pub(crate) fn writers_act(&mut self) {
        if !self.faulty {
            return;
        }
        let pause = self.chance.between(300, 2_000);
        self.after(pause, Event::WritersAct);
        let Some(object) = self.chance.pick(&Object::ALL) else { return };
        for writer in 0..self.writers.len() {
            self.writer_calls(writer, object);
        }
    }

    fn writer_calls(&mut self, writer: usize, object: Object) {
        let running: Vec<usize> =
            (0..self.managers.len()).filter(|host| self.managers[*host].run.is_some()).collect();
        let Some(host) = self.chance.pick(&running) else { return };
        let (now, repeats, after) = (self.now, self.chance.one_in(2), self.oracle.answers.newest(object));
        let me = &mut self.writers[writer];
        if me.call.is_some() && me.sent.1 >= now {
            return;
        }
        let call = match me.call.filter(|_| repeats) {
            Some(call) => call,
            None => me.next_call(object, after, &mut self.chance),
        };
        let (sending, deadline) = (me.sent.0 + 1, now + PATIENCE);
        (me.call, me.sent) = (Some(call), (sending, deadline));
        let who = Who::Writer { writer, sending, object: call.object };
        let sent = match (call.verb, self.defect) {
            (Verb::Set { .. }, Some(Defect::ForgetsExpectedVersions)) => Call { verb: Verb::Write, ..call },
            _ => call,
        };
        let command = Box::new(sent.command(self.wall(0)));
        let delay = self.chance.between(1, 8);
        self.at_manager(host, delay, OnManager::Request { who, command, deadline });
    }

    /// A manager answers a writer.
    pub(crate) fn answer_writer(
        &mut self,
        host: usize,
        (writer, sending, object): (usize, u64, Object),
        answer: Answered,
    ) {
        let reply = match answer.map(|(_, outcome)| *outcome) {
            Err(why) => Reply::Unanswered(why),
            Ok(Outcome::Rejected(refusal)) => Reply::Refused(Box::new(refusal)),
            Ok(Outcome::Applied { answer, .. } | Outcome::Unchanged { answer }) => {
                Reply::Done(self.shown(host, object, &answer))
            }
        };
        let delay = self.chance.between(1, 5);
        self.after(delay, Event::Writer { writer, sending, reply: Arc::new(reply) });
    }

    /// What a manager shows of an object in the answer to a write.
    fn shown(&self, host: usize, object: Object, answer: &Answer) -> Option<Shown> {
        let own = Shown::by(answer);
        let newest = self.life(host).and_then(|run| object.shown_in(&run.state));
        match self.defect {
            Some(Defect::AnswersFromNewestState) => newest,
            Some(Defect::AnswersWithNewestVersion) => {
                own.map(|own| Shown { value: own.value, ..newest.unwrap_or(own) })
            }
            _ => own,
        }
    }

    pub(crate) fn writer_answered(&mut self, writer: usize, sending: u64, reply: &Reply) {
        let (me, now) = (&mut self.writers[writer], self.now);
        let Some(call) = me.call.filter(|_| me.sent.0 == sending) else { return };
        match reply {
            // Void after its deadline; then it is repeated, or given up.
            Reply::Unanswered(Unanswered::Unknown) => return,
            Reply::Unanswered(Unanswered::NotProposed) => return me.sent.1 = now,
            Reply::Refused(refusal) => me.refused(call, refusal),
            Reply::Done(shown) if call.verb == Verb::Remove => {
                me.own.remove(&call.object);
                me.absent.insert(call.object);
                let held = self.oracle.answers.removed(&call, *shown);
                self.demand(held);
            }
            Reply::Done(shown) => {
                me.counts[0] += 1;
                me.counts[1] += u64::from(matches!(call.verb, Verb::Set { .. }));
                me.absent.remove(&call.object);
                me.own.extend(shown.map(|shown| (call.object, shown.version)));
                let held = self.oracle.answers.acknowledged(&call, *shown);
                self.demand(held);
            }
        }
        self.writers[writer].call = None;
    }
}
