//! One client: reads, writes and compares-and-sets registers, each call once, at one manager.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{sleep, timeout};
use tonic::Code;
use tonic::transport::Channel;
use warren_proto::Problem;
use warren_proto::v1;
use warren_proto::v1::services_client::ServicesClient;
use warren_test_history::{Acknowledgement, Conflict, Invoked, Outcome, Recorder, Version};
use warren_types::Id;

use crate::progress::Progress;
use crate::{Access, Plan};

/// A call that takes longer is given up; it may still take effect.
const CALL: Duration = Duration::from_millis(1500);
/// The label that holds the value.
const VALUE: &str = "value";
/// What the version conflict of a compare-and-set is called.
const CONFLICT: &str = "VERSION_CONFLICT";
/// How many calls in a row a client sends to one manager, on average.
const CALLS_AT_ONE: u32 = 50;
/// Between two tries to reach any manager at all.
const AGAIN: Duration = Duration::from_millis(20);

/// The client that made the registers.
const MAKER: u32 = u32::MAX;

type Parts = (Recorder, Arc<Progress>, Arc<AtomicBool>);

/// A write that was sent.
enum Asked {
    Write(Invoked<Acknowledgement>),
    Cas(Invoked<Result<Acknowledgement, Conflict>>),
}

impl Asked {
    /// It was acknowledged, with an answer that shows this. Whether that is right is for the checker.
    fn acknowledged(self, shown: Acknowledgement) {
        match self {
            Self::Write(invoked) => invoked.ended(Outcome::Ok(shown)),
            Self::Cas(invoked) => invoked.ended(Outcome::Ok(Ok(shown))),
        }
    }

    /// It did not take place, since the version was another, and which if that is known.
    fn refused(self, found: Option<Version>) {
        match self {
            Self::Write(invoked) => invoked.ended(Outcome::Failed),
            Self::Cas(invoked) => {
                invoked.ended(found.map_or(Outcome::Failed, |found| Outcome::Ok(Err(Conflict(found)))));
            }
        }
    }
}

pub struct Client {
    number: u32,
    access: Access,
    plan: Plan,
    recorder: Recorder,
    progress: Arc<Progress>,
    stop: Arc<AtomicBool>,
    chance: StdRng,
    /// Which of the managers is asked.
    turn: usize,
    services: Option<ServicesClient<Channel>>,
    /// The newest version of each register that it knows.
    versions: BTreeMap<usize, Version>,
    written: u64,
}

fn name(register: usize) -> String {
    format!("register-{register}")
}

/// A service that wants no task, whose label is the register's value.
fn spec(register: usize, value: u64) -> v1::ServiceSpec {
    v1::ServiceSpec {
        name: name(register),
        labels: BTreeMap::from([(VALUE.to_owned(), value.to_string())]),
        mode: Some(v1::service_spec::Mode::Replicated(v1::Replicated { replicas: 0 })),
        task: Some(v1::TaskSpec { image: "warren.local/nothing:1".into(), ..Default::default() }),
        ..Default::default()
    }
}

fn value_of(service: &v1::Service) -> u64 {
    let labels = service.spec.as_ref().map(|spec| &spec.labels);
    let value = labels.and_then(|labels| labels.get(VALUE));
    value.and_then(|value| value.parse().ok()).expect("a register has a number as its value")
}

fn shown_by(service: &v1::Service) -> Acknowledgement {
    Acknowledgement { value: value_of(service), version: service.version }
}

/// The version in the words of a conflict: `service register-1 is at version 7, not 5: ...`.
fn found_version(message: &str) -> Option<Version> {
    let (_, rest) = message.split_once(" is at version ")?;
    rest.split_once(',')?.0.parse().ok()
}

/// Makes all registers with the value 0, at whichever manager answers.
pub async fn make_registers(access: &Access, plan: &Plan, recorder: &Recorder, stop: &AtomicBool) {
    for register in 0..plan.registers {
        let id = Id(rand::rng().random()).to_string();
        let invoked = recorder.write(MAKER, &name(register), 0);
        let mut turns = (0..plan.managers.len()).cycle();
        let made = loop {
            let address = plan.managers[turns.next().expect("there are managers")];
            let request = v1::CreateServiceRequest { id: id.clone(), spec: Some(spec(register, 0)) };
            if let Ok(channel) = access.connect(address).await
                && let Ok(Ok(answer)) = timeout(CALL, ServicesClient::new(channel).create(request)).await
            {
                break Outcome::Ok(shown_by(answer.get_ref()));
            }
            if stop.load(Ordering::Relaxed) {
                break Outcome::Unknown;
            }
            // Not a wait for something: nobody answers for now, and is asked again.
            sleep(AGAIN).await;
        };
        invoked.ended(made);
    }
}

impl Client {
    pub fn new(number: u32, access: Access, plan: Plan, (recorder, progress, stop): Parts) -> Self {
        let chance = StdRng::seed_from_u64(plan.seed ^ u64::from(number) << 32);
        let turn = number as usize % plan.managers.len();
        let versions = BTreeMap::new();
        Self {
            number,
            access,
            plan,
            recorder,
            progress,
            stop,
            chance,
            turn,
            services: None,
            versions,
            written: 0,
        }
    }

    pub async fn run(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            match self.connected().await {
                Ok(services) => self.ask(services).await,
                Err((address, why)) => {
                    self.progress.fail(format!("{address}: {why}"));
                    self.turn += 1;
                    // Not a wait for something: nobody answers for now, and is asked again.
                    sleep(AGAIN).await;
                }
            }
            // Not a wait for something: a client that never rests would leave no CPU to the managers.
            sleep(self.plan.pause).await;
        }
    }

    async fn connected(&mut self) -> Result<ServicesClient<Channel>, (SocketAddr, String)> {
        if let Some(services) = &self.services {
            return Ok(services.clone());
        }
        let address = self.plan.managers[self.turn % self.plan.managers.len()];
        let channel = self.access.connect(address).await.map_err(|why| (address, why))?;
        Ok(self.services.insert(ServicesClient::new(channel)).clone())
    }

    async fn ask(&mut self, services: ServicesClient<Channel>) {
        if self.chance.random_ratio(1, CALLS_AT_ONE) {
            // So that those who fled from a manager come back to it.
            self.turn += 1;
            self.services = None;
        }
        let register = self.chance.random_range(0..self.plan.registers);
        match self.chance.random_range(0..10) {
            0..4 => self.read(services, register).await,
            4..7 => self.write(services, register, None).await,
            _ => {
                let version = self.versions.get(&register).copied();
                self.write(services, register, version).await;
            }
        }
    }

    async fn read(&mut self, mut services: ServicesClient<Channel>, register: usize) {
        let invoked = self.recorder.read(self.number, &name(register));
        let answer = timeout(CALL, services.get(v1::Reference { reference: name(register) })).await;
        let failed = match answer {
            Ok(Ok(answer)) => {
                let service = answer.into_inner();
                self.versions.insert(register, service.version);
                return invoked.ended(Outcome::Ok(Some((value_of(&service), service.version))));
            }
            Ok(Err(status)) => status.to_string(),
            Err(_) => "a read was not answered in time".into(),
        };
        invoked.ended(Outcome::Failed);
        self.elsewhere(failed);
    }

    /// Writes a value that nobody else writes; with a version only if the register still has it.
    async fn write(&mut self, mut services: ServicesClient<Channel>, register: usize, version: Option<u64>) {
        self.written += 1;
        let value = (u64::from(self.number) + 1) << 32 | self.written;
        let (sent, key) = (Instant::now(), name(register));
        let asked = match version {
            None => Asked::Write(self.recorder.write(self.number, &key, value)),
            Some(expected) => Asked::Cas(self.recorder.cas(self.number, &key, expected, value)),
        };
        let spec = Some(spec(register, value));
        let request = v1::UpdateServiceRequest { reference: key, version, spec, force: false };
        let failed = match timeout(CALL, services.update(request)).await {
            Ok(Ok(answer)) => {
                let shown = shown_by(answer.get_ref());
                self.versions.insert(register, shown.version);
                asked.acknowledged(shown);
                self.progress.acknowledge(sent, Instant::now());
                return;
            }
            Ok(Err(status))
                if status.code() == Code::Aborted && Problem::from(&status).reason == CONFLICT =>
            {
                asked.refused(found_version(status.message()));
                self.versions.remove(&register);
                return;
            }
            Ok(Err(status)) => status.to_string(),
            Err(_) => "a write was not answered in time".into(),
        };
        // What was asked is dropped: nobody knows what became of it.
        self.elsewhere(failed);
    }

    /// What this manager does not do, another one may.
    fn elsewhere(&mut self, why: String) {
        let address = self.plan.managers[self.turn % self.plan.managers.len()];
        self.progress.fail(format!("{address}: {why}"));
        self.turn += 1;
        self.services = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conflict_says_which_version_is_there() {
        let words = "service register-1 is at version 7, not 5: it changed meanwhile; look again and repeat";
        assert_eq!(found_version(words), Some(7));
        assert_eq!(found_version("something else"), None);
    }
}
