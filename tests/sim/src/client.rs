//! A person who creates, scales and removes services, repeats what was not answered, and remembers what was.

use std::collections::BTreeMap;

use warren_core::{Command, Outcome, Refusal};
use warren_types::{Id, Mode, Protocol, PublishMode, PublishedPort, ServiceId, ServiceSpec, TaskSpec};

use crate::chance::Chance;
use crate::manager::Waiting;
use crate::world::{Event, World};

/// What the client was promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// The service exists with so many replicas.
    Replicas(u32),
    /// It goes, or is gone.
    Removed,
}

/// One request.
#[derive(Debug, Clone)]
enum Request {
    Create(ServiceId, Box<ServiceSpec>),
    Scale(ServiceId, u32),
    Remove(ServiceId),
}

/// The client's memory.
#[derive(Default)]
pub struct Client {
    pub promises: BTreeMap<ServiceId, Promise>,
    /// Asked and not answered; it may have happened.
    pending: Option<Request>,
    /// Number of the sending that is on its way now; an answer to an earlier one is not waited for.
    sent: Option<u64>,
    sendings: u64,
    created: u64,
    pub acknowledged: u64,
}

impl Client {
    /// The service that a request under way is about; nothing is promised of it now.
    pub fn uncertain(&self) -> Option<ServiceId> {
        match self.pending.as_ref()? {
            Request::Create(id, _) | Request::Scale(id, _) | Request::Remove(id) => Some(*id),
        }
    }

    /// Whoever had the request is gone; it will be repeated.
    pub fn unanswered(&mut self) {
        self.sent = None;
    }

    /// A sending was applied, or refused.
    pub fn answered(&mut self, sending: u64, outcome: &Outcome) {
        if self.sent != Some(sending) {
            return;
        }
        self.sent = None;
        let Some(request) = self.pending.take() else { return };
        match (&request, outcome) {
            // An earlier sending removed it, and its answer was lost.
            (Request::Remove(_), Outcome::Rejected(Refusal::NotFound { .. })) => {}
            (_, Outcome::Rejected(_)) => return,
            _ => {}
        }
        self.acknowledged += 1;
        let (id, promise) = match request {
            Request::Create(id, spec) => (id, Promise::Replicas(spec.replicas())),
            Request::Scale(id, replicas) => (id, Promise::Replicas(replicas)),
            Request::Remove(id) => (id, Promise::Removed),
        };
        self.promises.insert(id, promise);
    }

    fn think(&mut self, chance: &mut Chance) -> Option<Request> {
        let held: Vec<ServiceId> =
            self.promises.iter().filter(|(_, p)| **p != Promise::Removed).map(|(id, _)| *id).collect();
        let replicas = u32::try_from(chance.between(0, 4)).unwrap_or(0);
        if held.len() < 3 && (held.is_empty() || chance.one_in(3)) {
            self.created += 1;
            let id = ServiceId(Id(u128::from(self.created) << 64 | u128::from(chance.next())));
            return Some(Request::Create(id, Box::new(spec(self.created, replicas, chance))));
        }
        let id = chance.pick(&held)?;
        if chance.one_in(4) { Some(Request::Remove(id)) } else { Some(Request::Scale(id, replicas)) }
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
    ServiceSpec {
        name: format!("service-{number}").parse().expect("a valid name"),
        labels: BTreeMap::new(),
        mode: Mode::Replicated { replicas },
        task: TaskSpec::new("web:1".parse().expect("a valid reference")),
        ports: if chance.one_in(2) { vec![port] } else { Vec::new() },
    }
}

impl World {
    /// Does something new, or repeats what was not answered. In peace nothing new is done.
    pub(crate) fn client_acts(&mut self) {
        let pause = self.chance.between(100, 3_000);
        self.after(pause, Event::Client);
        if self.client.pending.is_none() && self.faulty {
            self.client.pending = self.client.think(&mut self.chance);
        }
        let can_send = self.manager.run.as_ref().is_some_and(|run| run.may_plan);
        let Some(request) = self.client.pending.clone().filter(|_| can_send && self.client.sent.is_none())
        else {
            return;
        };
        self.client.sendings += 1;
        let sending = self.client.sendings;
        self.client.sent = Some(sending);
        let at = self.time();
        let command = match request {
            Request::Create(id, spec) => Command::CreateService { id, spec: *spec, at },
            Request::Scale(id, replicas) => Command::ScaleService { id, version: None, replicas, at },
            Request::Remove(id) => Command::RemoveService { id, version: None, at },
        };
        self.propose(command, Waiting::Client { sending });
    }
}
