//! Clients that create, scale, update, roll back and remove services through any manager, write the secrets
//! and volumes of these, drain, label and taint nodes, repeat unanswered requests, and record what was acknowledged.

mod generator;
mod request;
mod secrets;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use warren_core::{CommandResponse, Refusal, State};
use warren_replica::ProposeError;
use warren_types::{NodeId, SecretObjectId, ServiceId, ServiceSpec, VolumeId};

pub use self::generator::has_final_settings;
use self::request::ClientRequest;
use self::secrets::{ExpectedSecret, SecretVersions};

use crate::event::{ClientEvent, ManagerEvent, SimEvent, WriteAnswer};
use crate::manager::WriteOrigin;
use crate::simulation::{ClusterSimulation, PlantedDefect};

/// How long a client waits for an answer. After that the request has expired: no manager proposes it any
/// more, so a repetition never races with it.
const ANSWER_TIMEOUT: u64 = 2_000;
/// An image whose processes exit soon while faults are on.
pub const UNHEALTHY_IMAGE: &str = "cannot-live:1";
/// Services of a client at the same time.
const SERVICES: usize = 3;

/// What was acknowledged to a client about a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedService {
    /// The acknowledged revisions, oldest first; the last is the desired one. Empty when the service is
    /// removing or removed.
    revisions: Vec<ExpectedRevision>,
    /// The index at which it became true.
    pub since: u64,
    /// The version of the service at that index.
    version: u64,
}

impl ExpectedService {
    /// The desired spec; `None` when the service is removing or removed.
    pub fn desired_spec(&self) -> Option<&Arc<ServiceSpec>> {
        self.revisions.last().map(|request| &request.spec)
    }
}

/// A revision: the spec, and the version of each of the client's secrets it uses.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ExpectedRevision {
    spec: Arc<ServiceSpec>,
    uses: SecretVersions,
}

/// The state of one client.
#[derive(Debug)]
pub struct SimClient {
    number: usize,
    pub expected: BTreeMap<ServiceId, ExpectedService>,
    secrets: BTreeMap<SecretObjectId, ExpectedSecret>,
    /// Services that it created and did not remove.
    volumes: BTreeSet<VolumeId>,
    /// Requested and not answered; it may have been applied.
    pending: Option<ClientRequest>,
    /// The attempt in flight, and its deadline.
    sent: Option<(u64, u64)>,
    send_count: u64,
    created: u64,
    pub acknowledged: u64,
    /// Some of its services get far more replicas than there is room for.
    pub is_crowding: bool,
}

impl SimClient {
    pub fn new(number: usize) -> Self {
        Self {
            number,
            expected: BTreeMap::new(),
            secrets: BTreeMap::new(),
            volumes: BTreeSet::new(),
            pending: None,
            sent: None,
            send_count: 0,
            created: 0,
            acknowledged: 0,
            is_crowding: false,
        }
    }

    /// A request is in flight.
    pub fn is_waiting(&self) -> bool {
        self.pending.is_some()
    }

    /// The service of the request in flight; nothing is guaranteed about it now.
    pub fn pending_service(&self) -> Option<ServiceId> {
        self.pending.as_ref().and_then(ClientRequest::service)
    }

    /// The cluster may have lost acknowledged writes: the client takes its own objects as they are now for
    /// acknowledged, and drops its last request.
    pub fn resync(&mut self, state: &State) {
        (self.pending, self.sent) = (None, None);
        let since = state.applied().index;
        self.resync_secrets(state, since);
        let own = |id: &ServiceId| usize::try_from((id.0.0 >> 64) as u64 & 0xff) == Ok(self.number);
        let found = state.services().map(|service| service.id).filter(own);
        let all: BTreeSet<ServiceId> = self.expected.keys().copied().chain(found).collect();
        for id in all {
            let service = state.service(&id).filter(|service| !service.removing);
            let desired = service.map(|service| ExpectedRevision {
                spec: service.spec.clone(),
                uses: self.secret_versions(&service.spec),
            });
            let version = service.map_or(since, |service| service.version);
            let desired = desired.into_iter().collect();
            self.expected.insert(id, ExpectedService { revisions: desired, since, version });
        }
    }

    /// Managers rolled back a failed update of the service. A request in flight either was applied before, or is
    /// refused, since the service has another version now.
    pub fn resync_rolled_back(&mut self, state: &State, id: ServiceId) {
        let (Some(service), Some(expected)) = (state.service(&id), self.expected.get_mut(&id)) else {
            return;
        };
        if self.pending.as_ref().and_then(ClientRequest::service) == Some(id) {
            (self.pending, self.sent) = (None, None);
        }
        let uses =
            service.revision.secret_objects.iter().map(|used| (used.name.clone(), used.number)).collect();
        let desired = ExpectedRevision { spec: service.spec.clone(), uses };
        let (since, version) = (state.applied().index, service.version);
        *expected = ExpectedService { revisions: vec![desired], since, version };
    }

    /// Whether the answer to an attempt shows the request.
    fn check_answer(&self, sending: u64, answer: &WriteAnswer) -> Result<(), String> {
        let waits = self.sent.is_some_and(|(waited, _)| waited == sending);
        match (self.pending.as_ref().filter(|_| waits), &answer.result) {
            (Some(request), Ok(answer)) if !request.matches_answer(answer) => {
                Err(format!("answers show the caller's own write: {request:?} was answered with {answer:?}"))
            }
            _ => Ok(()),
        }
    }

    /// An attempt was answered. Returns the service whose acknowledged state changed.
    fn handle_answer(&mut self, sending: u64, answer: WriteAnswer) -> Option<ServiceId> {
        if self.sent.is_none_or(|(waited, _)| waited != sending) {
            return None;
        }
        let WriteAnswer { index: since, result } = answer;
        let outcome = match result {
            Ok(answer) => Ok(answer),
            Err(ProposeError::Rejected(refusal)) => Err(refusal),
            // It may have been applied: wait until it no longer can be, then repeat.
            Err(ProposeError::Indeterminate(_)) => return None,
            Err(_) => {
                self.sent = None;
                return None;
            }
        };
        self.sent = None;
        let request = self.pending.take()?;
        let version = match (&request, outcome) {
            (_, Ok(CommandResponse::Service(service))) => service.version,
            // The answer to a removal shows the version before it.
            (_, Ok(CommandResponse::SecretObject(content)))
                if !matches!(request, ClientRequest::RemoveSecret(_)) =>
            {
                content.version
            }
            (_, Ok(_)) => since,
            // An earlier attempt removed it, and its answer was lost.
            (
                ClientRequest::Remove(..) | ClientRequest::RemoveSecret(_) | ClientRequest::RemoveVolume(..),
                Err(Refusal::NotFound { .. }),
            ) => since,
            // The service is in this state: no other client changes it, and each of these writes increases
            // the version.
            (
                ClientRequest::Rollback(..) | ClientRequest::Update(_, _, _, true),
                Err(Refusal::VersionConflict { found, .. }),
            ) => found,
            (_, Err(_)) => return None,
        };
        self.acknowledged += 1;
        let Some(service) = request.service() else {
            self.record_stored(&request, version);
            return None;
        };
        let before = self.expected.remove(&service).map(|promise| promise.revisions).unwrap_or_default();
        let desired = request.expected_after(before, |spec| self.secret_versions(spec));
        self.expected.insert(service, ExpectedService { revisions: desired, since, version });
        Some(service)
    }
}

impl ClusterSimulation {
    pub(crate) fn client_event(&mut self, client: usize, what: ClientEvent) {
        match what {
            ClientEvent::Run => self.run_client(client),
            ClientEvent::Answer { sending, answer } => {
                if self.defect != Some(PlantedDefect::AnswerBeforeDurable) {
                    let held = self.clients[client].check_answer(sending, &answer);
                    self.check(held);
                }
                if let Some(service) = self.clients[client].handle_answer(sending, *answer) {
                    self.oracle_acknowledged(client, service);
                }
            }
        }
    }

    /// Sends a new request, or repeats an unanswered one. After the faults, the only new requests restore the
    /// nodes to their original state.
    fn run_client(&mut self, client: usize) {
        let pause = self.rng.between(20, 700);
        self.after(pause, SimEvent::Client { client, what: ClientEvent::Run });
        let (now, faulty) = (self.now, self.has_faults);
        let nodes: Vec<NodeId> = self.workers.iter().map(|worker| worker.id).collect();
        let me = &mut self.clients[client];
        me.sent.take_if(|(_, deadline)| *deadline < now);
        if me.pending.is_none() {
            me.pending = match faulty {
                true => me.next_request(&mut self.rng, &nodes),
                false => me.cleanup_request(&self.oracle.newest),
            };
        }
        let Some(request) = me.pending.clone().filter(|_| me.sent.is_none()) else { return };
        let running: Vec<usize> =
            (0..self.managers.len()).filter(|host| self.managers[*host].run.is_some()).collect();
        let Some(host) = self.rng.pick(&running) else { return };
        let me = &mut self.clients[client];
        me.send_count += 1;
        let (sending, deadline) = (me.send_count, now + ANSWER_TIMEOUT);
        me.sent = Some((sending, deadline));
        let command = Box::new(request.command(self.wall_clock(0)));
        let delay = self.rng.between(1, 5);
        let who = WriteOrigin::Client { client, sending };
        self.at_manager(host, delay, ManagerEvent::Request { who, command, deadline });
    }
}
