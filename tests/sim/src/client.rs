//! People who create, scale and remove services through any manager, repeat what was not answered, and
//! remember what was.

use std::collections::BTreeMap;

use warren_core::{Answer, Command, Outcome, Refusal};
use warren_types::{
    Id, Mode, Protocol, PublishMode, PublishedPort, ServiceId, ServiceSpec, TaskSpec, Timestamp,
};

use crate::chance::Chance;
use crate::event::{Answered, Event, OnClient, OnManager, Unanswered};
use crate::world::World;

/// How long a client waits for an answer. After that the request is void: no manager proposes it any more, so
/// that a repetition never overtakes it.
const PATIENCE: u64 = 2_000;
/// An image whose processes exit soon, as long as there are faults.
pub const CANNOT_LIVE: &str = "cannot-live:1";
/// So many services at once.
const SERVICES: usize = 3;

/// What a client was promised of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promise {
    /// How many replicas; `None` when it goes, or is gone.
    pub replicas: Option<u32>,
    /// The entry with which it became true.
    pub since: u64,
    /// The service's version then.
    version: u64,
}

/// One request.
#[derive(Debug, Clone)]
enum Request {
    Create(ServiceId, Box<ServiceSpec>),
    Scale(ServiceId, u64, u32),
    Remove(ServiceId, u64),
}

/// One client's memory.
#[derive(Debug)]
pub struct Client {
    number: usize,
    pub promises: BTreeMap<ServiceId, Promise>,
    /// Asked and not answered; it may have happened.
    pending: Option<Request>,
    /// The sending that is on its way, and until when it is waited for.
    sent: Option<(u64, u64)>,
    sendings: u64,
    created: u64,
    pub acknowledged: u64,
}

impl Request {
    fn service(&self) -> ServiceId {
        match self {
            Self::Create(id, _) | Self::Scale(id, _, _) | Self::Remove(id, _) => *id,
        }
    }

    fn command(&self, at: Timestamp) -> Command {
        match self.clone() {
            Self::Create(id, spec) => Command::CreateService { id, spec: *spec, at },
            Self::Scale(id, version, replicas) => {
                Command::ScaleService { id, version: Some(version), replicas, at }
            }
            Self::Remove(id, version) => Command::RemoveService { id, version: Some(version), at },
        }
    }
}

impl Client {
    pub fn new(number: usize) -> Self {
        Self {
            number,
            promises: BTreeMap::new(),
            pending: None,
            sent: None,
            sendings: 0,
            created: 0,
            acknowledged: 0,
        }
    }

    /// The service that a request under way is about; nothing is promised of it now.
    pub fn uncertain(&self) -> Option<ServiceId> {
        self.pending.as_ref().map(Request::service)
    }

    /// A sending was answered. Tells of which service something was promised.
    fn answered(&mut self, sending: u64, answer: Answered) -> Option<ServiceId> {
        if self.sent.is_none_or(|(waited, _)| waited != sending) {
            return None;
        }
        let (since, outcome) = match answer {
            Ok(applied) => applied,
            // It may have happened: wait until it no longer can, then ask again.
            Err(Unanswered::Unknown) => return None,
            Err(Unanswered::NotProposed) => {
                self.sent = None;
                return None;
            }
        };
        self.sent = None;
        let request = self.pending.take()?;
        let version = match (&request, *outcome) {
            (_, Outcome::Applied { answer, .. } | Outcome::Unchanged { answer }) => match answer {
                Answer::Service { version, .. } => version,
                _ => since,
            },
            // An earlier sending removed it, and its answer was lost.
            (Request::Remove(..), Outcome::Rejected(Refusal::NotFound { .. })) => since,
            (_, Outcome::Rejected(_)) => return None,
        };
        self.acknowledged += 1;
        let replicas = match &request {
            Request::Create(_, spec) => Some(spec.replicas()),
            Request::Scale(_, _, replicas) => Some(*replicas),
            Request::Remove(..) => None,
        };
        self.promises.insert(request.service(), Promise { replicas, since, version });
        Some(request.service())
    }

    fn think(&mut self, chance: &mut Chance) -> Option<Request> {
        let held: Vec<(ServiceId, u64)> = self
            .promises
            .iter()
            .filter(|(_, promise)| promise.replicas.is_some())
            .map(|(id, promise)| (*id, promise.version))
            .collect();
        let replicas = u32::try_from(chance.between(0, 4)).unwrap_or(0);
        if held.len() < SERVICES && (held.is_empty() || chance.one_in(3)) {
            self.created += 1;
            let number = self.created << 8 | self.number as u64;
            let id = ServiceId(Id(u128::from(number) << 64 | u128::from(chance.next())));
            return Some(Request::Create(id, Box::new(spec(number, replicas, chance))));
        }
        let (id, version) = chance.pick(&held)?;
        let removes = chance.one_in(4);
        Some(if removes { Request::Remove(id, version) } else { Request::Scale(id, version, replicas) })
    }
}

fn spec(number: u64, replicas: u32, chance: &mut Chance) -> ServiceSpec {
    let port = PublishedPort {
        host_ip: None,
        host_port: u16::try_from(chance.between(8000, 8003)).unwrap_or(8000),
        container_port: 80,
        protocol: Protocol::Tcp,
        mode: PublishMode::Host,
    };
    let image = if chance.one_in(4) { CANNOT_LIVE } else { "web:1" };
    ServiceSpec {
        name: format!("service-{number}").parse().expect("a valid name"),
        labels: BTreeMap::new(),
        mode: Mode::Replicated { replicas },
        task: TaskSpec::new(image.parse().expect("a valid reference")),
        ports: if chance.one_in(2) { vec![port] } else { Vec::new() },
    }
}

impl World {
    pub(crate) fn client_event(&mut self, client: usize, what: OnClient) {
        match what {
            OnClient::Acts => self.client_acts(client),
            OnClient::Answer { sending, answer } => {
                if let Some(service) = self.clients[client].answered(sending, answer) {
                    self.oracle_promised(client, service);
                }
            }
        }
    }

    /// Does something new, or repeats what was not answered. In peace nothing new is done.
    fn client_acts(&mut self, client: usize) {
        let pause = self.chance.between(20, 700);
        self.after(pause, Event::Client { client, what: OnClient::Acts });
        let (now, faulty) = (self.now, self.faulty);
        let me = &mut self.clients[client];
        me.sent.take_if(|(_, deadline)| *deadline < now);
        if me.pending.is_none() && faulty {
            me.pending = me.think(&mut self.chance);
        }
        let Some(request) = me.pending.clone().filter(|_| me.sent.is_none()) else { return };
        let running: Vec<usize> =
            (0..self.managers.len()).filter(|host| self.managers[*host].run.is_some()).collect();
        let Some(host) = self.chance.pick(&running) else { return };
        let me = &mut self.clients[client];
        me.sendings += 1;
        let (sending, deadline) = (me.sendings, now + PATIENCE);
        me.sent = Some((sending, deadline));
        let command = Box::new(request.command(self.wall(0)));
        let delay = self.chance.between(1, 5);
        self.at_manager(host, delay, OnManager::Request { client, sending, command, deadline });
    }
}
