//! Clients that write the same few objects concurrently, through any manager, and check what the answers
//! show.
//!
//! The objects of other clients have one writer each, so an answer that shows a later write would look right
//! there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use warren_core::{Command, CommandResponse, Refusal, State};
use warren_replica::ProposeError;
use warren_types::{
    Id, SealedData, SecretObject, SecretObjectId, SecretObjectKind, Service, ServiceId, ServiceMode,
    ServiceSpec, TaskSpec, Timestamp,
};

use crate::event::{ManagerEvent, SimEvent};
use crate::manager::WriteOrigin;
use crate::random::SimRng;
use crate::simulation::{ClusterSimulation, PlantedDefect};

pub const WRITERS: usize = 3;
/// How long a writer waits for an answer. After that no manager proposes the write any more.
const ANSWER_TIMEOUT: u64 = 2_000;
/// The ids of the shared objects, which no other client creates.
const IDS: u128 = 0xff << 64;
const VALUE: &str = "value";

/// The shared objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SharedObject {
    Service,
    Config,
    /// Another config, which is sometimes removed and created again. Its numbers restart each time.
    ShortLivedConfig,
}

/// What the answer to a write shows of its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectAnswer {
    pub value: u64,
    pub version: u64,
    /// The value in a config's bytes.
    pub number: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteKind {
    Create,
    Write,
    /// Writes only if the object still has the version of the answer to the writer's own last write.
    Set {
        expected: u64,
    },
    Remove,
}

/// A write as it was called, also when it is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteCall {
    pub object: SharedObject,
    pub verb: WriteKind,
    /// Unique among all writes.
    pub value: u64,
    /// The newest version in any writer's answers when this write was called first.
    pub after: u64,
}

/// An answer to a writer.
#[derive(Debug, Clone)]
pub enum WriterReply {
    /// It was applied; the object as shown in the answer.
    Done(Option<ObjectAnswer>),
    Refused(Box<Refusal>),
    /// It was not proposed.
    NotProposed,
    /// It may still be applied.
    Indeterminate,
}

#[derive(Debug)]
pub struct SimWriter {
    number: u64,
    call: Option<WriteCall>,
    /// The newest attempt, and the deadline for its answer.
    sent: (u64, u64),
    written: u64,
    /// The versions in the answers to its own last writes.
    own_versions: BTreeMap<SharedObject, u64>,
    /// Objects that do not exist, as far as it knows.
    absent: BTreeSet<SharedObject>,
    /// The numbers of acknowledged writes, and of acknowledged and rejected compare-and-sets.
    pub counts: [u64; 3],
}

impl SharedObject {
    const ALL: [Self; 3] = [Self::Service, Self::Config, Self::ShortLivedConfig];

    fn secret_object_id(self) -> SecretObjectId {
        SecretObjectId(Id(IDS | self as u128))
    }

    fn spec(value: u64) -> ServiceSpec {
        ServiceSpec {
            labels: BTreeMap::from([(VALUE.to_owned(), value.to_string())]),
            mode: ServiceMode::Replicated { replicas: 0 },
            ..ServiceSpec::new(
                "shared".parse().expect("a valid name"),
                TaskSpec::new("web:1".parse().expect("a valid reference")),
            )
        }
    }

    /// The object in this state, which may include later writes.
    fn answer_in(self, state: &State) -> Option<ObjectAnswer> {
        match self {
            Self::Service => state.service(&ServiceId(Id(IDS))).map(|service| ObjectAnswer::from(&**service)),
            Self::Config | Self::ShortLivedConfig => {
                state.secret_object(&self.secret_object_id()).map(|content| ObjectAnswer::from(&**content))
            }
        }
    }
}

impl ObjectAnswer {
    /// The object in an answer.
    fn by(answer: &CommandResponse) -> Option<Self> {
        match answer {
            CommandResponse::Service(service) => Some(Self::from(&**service)),
            CommandResponse::SecretObject(content) => Some(Self::from(&**content)),
            _ => None,
        }
    }
}

impl From<&Service> for ObjectAnswer {
    fn from(service: &Service) -> Self {
        let value = service.spec.labels.get(VALUE).and_then(|value| value.parse().ok());
        Self { value: value.expect("a writer's service has its value"), version: service.version, number: 0 }
    }
}

impl From<&SecretObject> for ObjectAnswer {
    fn from(content: &SecretObject) -> Self {
        let newest = content.versions.values().next_back().expect("a config has bytes");
        let value = newest.fingerprint.first_chunk().map_or(0, |value| u64::from_be_bytes(*value));
        Self { value, version: content.version, number: content.current_version() }
    }
}

fn sealed(value: u64) -> SealedData {
    let mut fingerprint = [0; 32];
    fingerprint[..8].copy_from_slice(&value.to_be_bytes());
    SealedData { size: 1, fingerprint, sealed: vec![0; 29] }
}

impl WriteCall {
    fn command(&self, at: Timestamp) -> Command {
        let version = match self.verb {
            WriteKind::Set { expected } => Some(expected),
            WriteKind::Create | WriteKind::Write | WriteKind::Remove => None,
        };
        let (service, content) = (ServiceId(Id(IDS)), self.object.secret_object_id());
        match (self.object, self.verb) {
            (SharedObject::Service, WriteKind::Create) => {
                Command::CreateService { id: service, spec: SharedObject::spec(self.value), at }
            }
            (SharedObject::Service, WriteKind::Remove) => {
                Command::RemoveService { id: service, version, force: false, at }
            }
            (SharedObject::Service, _) => {
                let spec = SharedObject::spec(self.value);
                Command::UpdateService { id: service, version, spec, force: false, at }
            }
            (object, WriteKind::Create) => Command::CreateSecretObject {
                id: content,
                kind: SecretObjectKind::Config,
                name: format!("shared-{}", object as u8).parse().expect("a valid name"),
                labels: BTreeMap::new(),
                data: sealed(self.value),
                at,
            },
            (_, WriteKind::Remove) => Command::RemoveSecretObject { id: content, at },
            _ => Command::UpdateSecretObject { id: content, version, data: sealed(self.value), at },
        }
    }
}

impl SimWriter {
    pub fn new(number: usize) -> Self {
        let absent = SharedObject::ALL.into_iter().collect();
        let number = number as u64;
        Self {
            number,
            call: None,
            sent: (0, 0),
            written: 0,
            own_versions: BTreeMap::new(),
            absent,
            counts: [0; 3],
        }
    }

    /// The cluster may have lost acknowledged writes.
    pub fn forget(&mut self) {
        let (written, sent, counts) = (self.written, (self.sent.0 + 1, 0), self.counts);
        *self = Self { written, sent, counts, ..Self::new(usize::try_from(self.number).unwrap_or(0)) };
    }

    fn next_call(&mut self, object: SharedObject, after: u64, chance: &mut SimRng) -> WriteCall {
        self.written += 1;
        let value = self.written << 8 | self.number;
        let verb = match self.own_versions.get(&object) {
            _ if self.absent.contains(&object) => WriteKind::Create,
            _ if object != SharedObject::Config && chance.one_in(8) => WriteKind::Remove,
            Some(expected) if chance.one_in(2) => WriteKind::Set { expected: *expected },
            _ => WriteKind::Write,
        };
        WriteCall { object, verb, value, after }
    }

    /// An attempt was rejected: what the writer knows of the object is stale.
    fn refused(&mut self, call: WriteCall, refusal: &Refusal) {
        self.own_versions.remove(&call.object);
        match refusal {
            Refusal::NotFound { .. } | Refusal::ServiceRemoving { .. } => {
                self.absent.insert(call.object);
            }
            _ => {
                self.absent.remove(&call.object);
            }
        }
        self.counts[2] += u64::from(matches!(refusal, Refusal::VersionConflict { .. }));
    }
}

impl ClusterSimulation {
    /// All idle writers write one object, or repeat unanswered writes.
    pub(crate) fn run_writers(&mut self) {
        if !self.has_faults {
            return;
        }
        let pause = self.rng.between(300, 2_000);
        self.after(pause, SimEvent::RunWriters);
        let Some(object) = self.rng.pick(&SharedObject::ALL) else { return };
        for writer in 0..self.writers.len() {
            self.start_write(writer, object);
        }
    }

    fn start_write(&mut self, writer: usize, object: SharedObject) {
        let running: Vec<usize> =
            (0..self.managers.len()).filter(|host| self.managers[*host].run.is_some()).collect();
        let Some(host) = self.rng.pick(&running) else { return };
        let (now, repeats, after) = (self.now, self.rng.one_in(2), self.oracle.answers.newest(object));
        let me = &mut self.writers[writer];
        if me.call.is_some() && me.sent.1 >= now {
            return;
        }
        let call = match me.call.filter(|_| repeats) {
            Some(call) => call,
            None => me.next_call(object, after, &mut self.rng),
        };
        let (sending, deadline) = (me.sent.0 + 1, now + ANSWER_TIMEOUT);
        (me.call, me.sent) = (Some(call), (sending, deadline));
        let who = WriteOrigin::Writer { writer, sending, object: call.object };
        let sent = match (call.verb, self.defect) {
            (WriteKind::Set { .. }, Some(PlantedDefect::DropExpectedVersion)) => {
                WriteCall { verb: WriteKind::Write, ..call }
            }
            _ => call,
        };
        let command = Box::new(sent.command(self.wall_clock(0)));
        let delay = self.rng.between(1, 8);
        self.at_manager(host, delay, ManagerEvent::Request { who, command, deadline });
    }

    /// A manager answers a writer.
    pub(crate) fn answer_writer(
        &mut self,
        host: usize,
        (writer, sending, object): (usize, u64, SharedObject),
        answer: Result<CommandResponse, ProposeError>,
    ) {
        let reply = match answer {
            Ok(answer) => WriterReply::Done(self.answer_of(host, object, &answer)),
            Err(ProposeError::Rejected(refusal)) => WriterReply::Refused(Box::new(refusal)),
            Err(ProposeError::Indeterminate(_)) => WriterReply::Indeterminate,
            Err(_) => WriterReply::NotProposed,
        };
        let delay = self.rng.between(1, 5);
        self.after(delay, SimEvent::WriterReply { writer, sending, reply: Arc::new(reply) });
    }

    /// What a manager shows of an object in the answer to a write.
    fn answer_of(&self, host: usize, object: SharedObject, answer: &CommandResponse) -> Option<ObjectAnswer> {
        let own = ObjectAnswer::by(answer);
        let newest = self.process(host).and_then(|run| object.answer_in(run.state()));
        match self.defect {
            Some(PlantedDefect::AnswerFromNewestState) => newest,
            Some(PlantedDefect::AnswerWithNewestVersion) => {
                own.map(|own| ObjectAnswer { value: own.value, ..newest.unwrap_or(own) })
            }
            _ => own,
        }
    }

    pub(crate) fn handle_reply(&mut self, writer: usize, sending: u64, reply: &WriterReply) {
        let (me, now) = (&mut self.writers[writer], self.now);
        let Some(call) = me.call.filter(|_| me.sent.0 == sending) else { return };
        match reply {
            // Expired after its deadline; then it is repeated, or given up.
            WriterReply::Indeterminate => return,
            WriterReply::NotProposed => return me.sent.1 = now,
            WriterReply::Refused(refusal) => me.refused(call, refusal),
            WriterReply::Done(shown) if call.verb == WriteKind::Remove => {
                me.own_versions.remove(&call.object);
                me.absent.insert(call.object);
                let held = self.oracle.answers.record_removal(&call, *shown);
                self.check(held);
            }
            WriterReply::Done(shown) => {
                me.counts[0] += 1;
                me.counts[1] += u64::from(matches!(call.verb, WriteKind::Set { .. }));
                me.absent.remove(&call.object);
                me.own_versions.extend(shown.map(|shown| (call.object, shown.version)));
                let held = self.oracle.answers.record_write(&call, *shown);
                self.check(held);
            }
        }
        self.writers[writer].call = None;
    }
}
