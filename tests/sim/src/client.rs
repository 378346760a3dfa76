//! People who create, scale, update, roll back and remove services through any manager, drain and label nodes,
//! repeat what was not answered, and remember what was.

mod wishes;

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_core::{Answer, Command, Outcome, Refusal};
use warren_types::{Availability, Mode, NodeId, ServiceId, ServiceSpec, Timestamp};

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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promise {
    /// What was wanted, oldest first, as often as it made a revision; the last is wanted now. Nothing when the service
    /// goes, or is gone.
    wanted: Vec<Arc<ServiceSpec>>,
    /// The entry with which it became true.
    pub since: u64,
    /// The service's version then.
    version: u64,
}

impl Promise {
    /// What is wanted; `None` when the service goes, or is gone.
    pub fn wanted(&self) -> Option<&Arc<ServiceSpec>> {
        self.wanted.last()
    }
}

/// One request. Those that are about a service are refused if it changed since the client's last request.
#[derive(Debug, Clone)]
enum Request {
    Create(ServiceId, Arc<ServiceSpec>),
    Scale(ServiceId, u64, u32),
    Update(ServiceId, u64, Arc<ServiceSpec>, bool),
    Rollback(ServiceId, u64),
    Remove(ServiceId, u64),
    Availability(NodeId, Availability),
    /// The zone that a person says; `None` leaves it to the machine.
    Zone(NodeId, Option<&'static str>),
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
    fn service(&self) -> Option<ServiceId> {
        match self {
            Self::Create(id, _)
            | Self::Scale(id, ..)
            | Self::Update(id, ..)
            | Self::Rollback(id, _)
            | Self::Remove(id, _) => Some(*id),
            Self::Availability(..) | Self::Zone(..) => None,
        }
    }

    fn command(&self, at: Timestamp) -> Command {
        let node = |id, zone: Option<Option<&str>>, availability| {
            let label = "zone".to_string();
            let add = zone.flatten().map(|zone| (label.clone(), zone.to_string()));
            let label_rm = zone.filter(Option::is_none).map(|_| label.clone()).into_iter().collect();
            let label_add = add.into_iter().collect();
            Command::UpdateNode { id, version: None, label_add, label_rm, availability, at }
        };
        match self.clone() {
            Self::Create(id, spec) => Command::CreateService { id, spec: (*spec).clone(), at },
            Self::Scale(id, version, replicas) => {
                Command::ScaleService { id, version: Some(version), replicas, at }
            }
            Self::Update(id, version, spec, force) => {
                Command::UpdateService { id, version: Some(version), spec: (*spec).clone(), force, at }
            }
            Self::Rollback(id, version) => {
                Command::RollbackService { id, version: Some(version), revision: None, at }
            }
            Self::Remove(id, version) => Command::RemoveService { id, version: Some(version), at },
            Self::Availability(id, availability) => node(id, None, Some(availability)),
            Self::Zone(id, zone) => node(id, Some(zone), None),
        }
    }

    /// What is promised of the service now, given what was.
    fn fulfilled(&self, before: Vec<Arc<ServiceSpec>>) -> Vec<Arc<ServiceSpec>> {
        let mut wanted = before;
        let Some(current) = wanted.last().cloned() else {
            return match self {
                Self::Create(_, spec) => vec![spec.clone()],
                _ => wanted,
            };
        };
        let shape = |spec: &ServiceSpec| (spec.task.clone(), spec.ports.clone(), spec.placement.clone());
        match self {
            Self::Create(_, spec) => return vec![spec.clone()],
            Self::Remove(..) => wanted.clear(),
            Self::Scale(_, _, replicas) => {
                let scaled =
                    ServiceSpec { mode: Mode::Replicated { replicas: *replicas }, ..(*current).clone() };
                wanted.pop();
                wanted.push(Arc::new(scaled));
            }
            Self::Update(_, _, spec, force) => {
                if !*force && shape(spec) == shape(&current) {
                    wanted.pop();
                }
                wanted.push(spec.clone());
            }
            Self::Rollback(..) => {
                let (task, ports, placement) = shape(&wanted[wanted.len().saturating_sub(2)]);
                wanted.push(Arc::new(ServiceSpec { task, ports, placement, ..(*current).clone() }));
            }
            Self::Availability(..) | Self::Zone(..) => {}
        }
        wanted
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

    /// A request is under way.
    pub fn is_waiting(&self) -> bool {
        self.pending.is_some()
    }

    /// The service that a request under way is about; nothing is promised of it now.
    pub fn uncertain(&self) -> Option<ServiceId> {
        self.pending.as_ref().and_then(Request::service)
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
            // So it is here: nobody else changes the service, and these count each time.
            (
                Request::Rollback(..) | Request::Update(_, _, _, true),
                Outcome::Rejected(Refusal::VersionConflict { found, .. }),
            ) => found,
            (_, Outcome::Rejected(_)) => return None,
        };
        self.acknowledged += 1;
        let service = request.service()?;
        let before = self.promises.remove(&service).map(|promise| promise.wanted).unwrap_or_default();
        let wanted = request.fulfilled(before);
        self.promises.insert(service, Promise { wanted, since, version });
        Some(service)
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

    /// Does something new, or repeats what was not answered. In peace nothing new is done but that nodes become
    /// again what they were.
    fn client_acts(&mut self, client: usize) {
        let pause = self.chance.between(20, 700);
        self.after(pause, Event::Client { client, what: OnClient::Acts });
        let (now, faulty) = (self.now, self.faulty);
        let nodes: Vec<NodeId> = self.workers.iter().map(|worker| worker.id).collect();
        let me = &mut self.clients[client];
        me.sent.take_if(|(_, deadline)| *deadline < now);
        if me.pending.is_none() {
            me.pending = match faulty {
                true => me.think(&mut self.chance, &nodes),
                false => me.tidy(&self.oracle.newest),
            };
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
