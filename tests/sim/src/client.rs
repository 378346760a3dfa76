//! People who create, scale, update, roll back and remove services through any manager, make and renew the secrets and
//! volumes of these, drain and label nodes, repeat what was not answered, and remember what was.

mod contents;
mod request;
mod wishes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use warren_core::{Answer, Outcome, Refusal, State};
use warren_types::{ContentId, NodeId, ServiceId, ServiceSpec, VolumeId};

use self::contents::{Kept, Uses};
use self::request::Request;

use crate::event::{Answered, Event, OnClient, OnManager, Unanswered};
use crate::manager::Who;
use crate::world::{Defect, World};

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
    wanted: Vec<Wish>,
    /// The entry with which it became true.
    pub since: u64,
    /// The service's version then.
    version: u64,
}

impl Promise {
    /// What is wanted; `None` when the service goes, or is gone.
    pub fn wanted(&self) -> Option<&Arc<ServiceSpec>> {
        self.wanted.last().map(|wish| &wish.spec)
    }
}

/// What a revision is: the spec, and which version of each of the client's secrets it uses.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wish {
    spec: Arc<ServiceSpec>,
    uses: Uses,
}

/// One client's memory.
#[derive(Debug)]
pub struct Client {
    number: usize,
    pub promises: BTreeMap<ServiceId, Promise>,
    contents: BTreeMap<ContentId, Kept>,
    /// Those that it made and did not remove.
    volumes: BTreeSet<VolumeId>,
    /// Asked and not answered; it may have happened.
    pending: Option<Request>,
    /// The sending that is on its way, and until when it is waited for.
    sent: Option<(u64, u64)>,
    sendings: u64,
    created: u64,
    pub acknowledged: u64,
}

impl Client {
    pub fn new(number: usize) -> Self {
        Self {
            number,
            promises: BTreeMap::new(),
            contents: BTreeMap::new(),
            volumes: BTreeSet::new(),
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

    /// The cluster may have forgotten what it acknowledged, or be what it was before: the client takes for promised
    /// what it finds of its own, and drops what it asked for last.
    pub fn looks_again(&mut self, state: &State) {
        (self.pending, self.sent) = (None, None);
        let since = state.applied().index;
        self.contents_are(state, since);
        let own = |id: &ServiceId| usize::try_from((id.0.0 >> 64) as u64 & 0xff) == Ok(self.number);
        let found = state.services().map(|service| service.id).filter(own);
        let all: BTreeSet<ServiceId> = self.promises.keys().copied().chain(found).collect();
        for id in all {
            let service = state.service(&id).filter(|service| !service.removing);
            let wanted =
                service.map(|service| Wish { spec: service.spec.clone(), uses: self.uses(&service.spec) });
            let version = service.map_or(since, |service| service.version);
            let wanted = wanted.into_iter().collect();
            self.promises.insert(id, Promise { wanted, since, version });
        }
    }

    /// The answer to a sending shows what was asked for.
    fn is_shown(&self, sending: u64, answer: &Answered) -> Result<(), String> {
        let waits = self.sent.is_some_and(|(waited, _)| waited == sending);
        let (Some(request), Ok((_, outcome))) = (self.pending.as_ref().filter(|_| waits), answer) else {
            return Ok(());
        };
        match &**outcome {
            Outcome::Applied { answer, .. } | Outcome::Unchanged { answer }
                if !request.is_shown_by(answer) =>
            {
                Err(format!("answers show the caller's own write: {request:?} was answered with {answer:?}"))
            }
            _ => Ok(()),
        }
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
                Answer::Service(service) => service.version,
                // What was removed shows the version that it had.
                Answer::Content(content) if !matches!(request, Request::Forget(_)) => content.version,
                _ => since,
            },
            // An earlier sending removed it, and its answer was lost.
            (
                Request::Remove(..) | Request::Forget(_) | Request::Discard(..),
                Outcome::Rejected(Refusal::NotFound { .. }),
            ) => since,
            // So it is here: nobody else changes the service, and these count each time.
            (
                Request::Rollback(..) | Request::Update(_, _, _, true),
                Outcome::Rejected(Refusal::VersionConflict { found, .. }),
            ) => found,
            (_, Outcome::Rejected(_)) => return None,
        };
        self.acknowledged += 1;
        let Some(service) = request.service() else {
            self.stored(&request, version);
            return None;
        };
        let before = self.promises.remove(&service).map(|promise| promise.wanted).unwrap_or_default();
        let wanted = request.fulfilled(before, |spec| self.uses(spec));
        self.promises.insert(service, Promise { wanted, since, version });
        Some(service)
    }
}

impl World {
    pub(crate) fn client_event(&mut self, client: usize, what: OnClient) {
        match what {
            OnClient::Acts => self.client_acts(client),
            OnClient::Answer { sending, answer } => {
                if self.defect != Some(Defect::AnswersEarly) {
                    let held = self.clients[client].is_shown(sending, &answer);
                    self.demand(held);
                }
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
        let who = Who::Client { client, sending };
        self.at_manager(host, delay, OnManager::Request { who, command, deadline });
    }
}
