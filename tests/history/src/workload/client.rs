//! One client: reads, writes and compares-and-sets registers, each call once, at one manager.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::{
    Acknowledgement, Conflict, HistoryRecorder, OperationOutcome, PendingOperation, RegisterVersion,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{sleep, timeout};
use tonic::Code;
use tonic::transport::Channel;
use warren_proto::Problem;
use warren_proto::v1;
use warren_proto::v1::services_client::ServicesClient;
use warren_types::Id;

use super::progress::WriteProgress;
use super::{AdminAccess, RegisterWorkloadConfig};

/// A call that takes longer is given up; it may still take effect.
const CALL_TIMEOUT: Duration = Duration::from_millis(1500);
/// The label that holds the value.
const VALUE: &str = "value";
/// The reason code of a version conflict.
const CONFLICT: &str = "VERSION_CONFLICT";
/// The average number of consecutive calls of a client to one manager.
const CALLS_AT_ONE: u32 = 50;
/// The delay between two attempts when no manager answers.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The client that created the registers.
const SETUP_CLIENT: u32 = u32::MAX;

type ClientParts = (HistoryRecorder, Arc<WriteProgress>, Arc<AtomicBool>);

/// A write that was sent.
enum SentWrite {
    Write(PendingOperation<Acknowledgement>),
    Cas(PendingOperation<Result<Acknowledgement, Conflict>>),
}

impl SentWrite {
    /// It was acknowledged with this answer. Whether that is right is for the checker.
    fn acknowledged(self, shown: Acknowledgement) {
        match self {
            Self::Write(invoked) => invoked.finish(OperationOutcome::Ok(shown)),
            Self::Cas(invoked) => invoked.finish(OperationOutcome::Ok(Ok(shown))),
        }
    }

    /// It did not take effect because of another version, given if known.
    fn refused(self, found: Option<RegisterVersion>) {
        match self {
            Self::Write(invoked) => invoked.finish(OperationOutcome::Failed),
            Self::Cas(invoked) => {
                invoked
                    .finish(found.map_or(OperationOutcome::Failed, |found| {
                        OperationOutcome::Ok(Err(Conflict(found)))
                    }));
            }
        }
    }
}

pub struct RegisterClient {
    number: u32,
    access: AdminAccess,
    plan: RegisterWorkloadConfig,
    recorder: HistoryRecorder,
    progress: Arc<WriteProgress>,
    stop: Arc<AtomicBool>,
    rng: StdRng,
    /// The index of the manager in use.
    manager_index: usize,
    services: Option<ServicesClient<Channel>>,
    /// The newest version of each register that it knows.
    versions: BTreeMap<usize, RegisterVersion>,
    written: u64,
}

fn name(register: usize) -> String {
    format!("register-{register}")
}

/// A service without tasks, whose label is the register's value.
fn spec(register: usize, value: u64) -> v1::ServiceSpec {
    v1::ServiceSpec {
        name: name(register),
        labels: BTreeMap::from([(VALUE.to_owned(), value.to_string())]),
        mode: Some(v1::service_spec::Mode::Replicated(v1::Replicated { replicas: 0 })),
        task: Some(v1::TaskSpec {
            image: "warren.local/nothing:1".into(),
            resolve_image: v1::ImageResolver::Worker.into(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn value_of(service: &v1::Service) -> u64 {
    let labels = service.spec.as_ref().map(|spec| &spec.labels);
    let value = labels.and_then(|labels| labels.get(VALUE));
    value.and_then(|value| value.parse().ok()).expect("a register has a number as its value")
}

fn acknowledgement_of(service: &v1::Service) -> Acknowledgement {
    Acknowledgement { value: value_of(service), version: service.version }
}

/// The version in the message of a conflict: `service register-1 is at version 7, not 5: ...`.
fn found_version(message: &str) -> Option<RegisterVersion> {
    let (_, rest) = message.split_once(" is at version ")?;
    rest.split_once(',')?.0.parse().ok()
}

/// Creates all registers with the value 0, at any manager that answers.
pub async fn make_registers(
    access: &AdminAccess,
    plan: &RegisterWorkloadConfig,
    recorder: &HistoryRecorder,
    stop: &AtomicBool,
) {
    for register in 0..plan.registers {
        let id = Id(rand::rng().random()).to_string();
        let invoked = recorder.write(SETUP_CLIENT, &name(register), 0);
        let mut turns = (0..plan.managers.len()).cycle();
        let made = loop {
            let address = plan.managers[turns.next().expect("there are managers")];
            let request = v1::CreateServiceRequest {
                id: id.clone(),
                spec: Some(spec(register, 0)),
                ..Default::default()
            };
            if let Ok(channel) = access.connect(address).await
                && let Ok(Ok(answer)) =
                    timeout(CALL_TIMEOUT, ServicesClient::new(channel).create(request)).await
            {
                break OperationOutcome::Ok(acknowledgement_of(answer.get_ref()));
            }
            if stop.load(Ordering::Relaxed) {
                break OperationOutcome::Unknown;
            }
            // Not a wait for a condition: no manager answers now, and the next attempt follows.
            sleep(RETRY_PAUSE).await;
        };
        invoked.finish(made);
    }
}

impl RegisterClient {
    pub fn new(
        number: u32,
        access: AdminAccess,
        plan: RegisterWorkloadConfig,
        (recorder, progress, stop): ClientParts,
    ) -> Self {
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
            rng: chance,
            manager_index: turn,
            services: None,
            versions,
            written: 0,
        }
    }

    pub async fn run(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            match self.connected().await {
                Ok(services) => self.run_operation(services).await,
                Err((address, why)) => {
                    self.progress.fail(format!("{address}: {why}"));
                    self.manager_index += 1;
                    // Not a wait for a condition: no manager answers now, and the next attempt follows.
                    sleep(RETRY_PAUSE).await;
                }
            }
            // Not a wait for a condition: a client without a pause would leave no CPU to the managers.
            sleep(self.plan.pause).await;
        }
    }

    async fn connected(&mut self) -> Result<ServicesClient<Channel>, (SocketAddr, String)> {
        if let Some(services) = &self.services {
            return Ok(services.clone());
        }
        let address = self.plan.managers[self.manager_index % self.plan.managers.len()];
        let channel = self.access.connect(address).await.map_err(|why| (address, why))?;
        Ok(self.services.insert(ServicesClient::new(channel)).clone())
    }

    async fn run_operation(&mut self, services: ServicesClient<Channel>) {
        if self.rng.random_ratio(1, CALLS_AT_ONE) {
            // So that clients that left a manager return to it.
            self.manager_index += 1;
            self.services = None;
        }
        let register = self.rng.random_range(0..self.plan.registers);
        match self.rng.random_range(0..10) {
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
        let answer = timeout(CALL_TIMEOUT, services.get(v1::Reference { reference: name(register) })).await;
        let failed = match answer {
            Ok(Ok(answer)) => {
                let service = answer.into_inner();
                self.versions.insert(register, service.version);
                return invoked.finish(OperationOutcome::Ok(Some((value_of(&service), service.version))));
            }
            Ok(Err(status)) => status.to_string(),
            Err(_) => "a read was not answered in time".into(),
        };
        invoked.finish(OperationOutcome::Failed);
        self.switch_manager(failed);
    }

    /// Writes a unique value; with a version only if the register still has it.
    async fn write(&mut self, mut services: ServicesClient<Channel>, register: usize, version: Option<u64>) {
        self.written += 1;
        let value = (u64::from(self.number) + 1) << 32 | self.written;
        let (sent, key) = (Instant::now(), name(register));
        let asked = match version {
            None => SentWrite::Write(self.recorder.write(self.number, &key, value)),
            Some(expected) => SentWrite::Cas(self.recorder.cas(self.number, &key, expected, value)),
        };
        let spec = Some(spec(register, value));
        let request =
            v1::UpdateServiceRequest { reference: key, version, spec, force: false, ..Default::default() };
        let failed = match timeout(CALL_TIMEOUT, services.update(request)).await {
            Ok(Ok(answer)) => {
                let shown = acknowledgement_of(answer.get_ref());
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
        // The call is dropped: its outcome is unknown.
        self.switch_manager(failed);
    }

    /// Errors of one manager for which another one may do better.
    fn switch_manager(&mut self, why: String) {
        let address = self.plan.managers[self.manager_index % self.plan.managers.len()];
        self.progress.fail(format!("{address}: {why}"));
        self.manager_index += 1;
        self.services = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflict_has_current_version() {
        let words =
            "service register-1 is at version 7, not 5: it changed meanwhile; read it again and retry";
        assert_eq!(found_version(words), Some(7));
        assert_eq!(found_version("something else"), None);
    }
}
