//! What writes would do: each becomes the command that its own call would propose, on a copy of the newest state.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tonic::{Code, Status};
use warren_core::{Command, Forecast, Forecaster, Refusal, State};
use warren_proto::convert::check_secret_object_data;
use warren_proto::status::Problem;
use warren_proto::v1;
use warren_proto::v1::forecast_write::Write;
use warren_store::PublishedState;
use warren_store::problem::IntoProblem;
use warren_types::{ImageDigest, ServiceId, ServiceName, ServiceSpec, TaskSpec, Timestamp, UserRole};

use super::Api;
use super::admission_policy::check_admission;
use super::networks;
use super::nodes::{self, NodeUpdate};
use super::seccomp_profiles::check_profile_update;
use super::secret_objects::{SecretObjectRequest, parse_kind};
use super::services::{ServiceChange, admit_change, parse_updated_spec, started_tasks};
use super::volumes::VolumeRequest;

/// The most services whose images are checked at once.
const MAX_CONCURRENT_CHECKS: usize = 16;

impl Api {
    /// Applies the writes to a copy of the newest state, and follows what they lead to.
    ///
    /// # Errors
    /// As of a read. A write that would be refused is part of the response.
    pub(super) async fn forecast_writes(
        &self,
        role: UserRole,
        request: v1::ForecastRequest,
    ) -> Result<v1::ForecastResponse, Status> {
        let published = self.read_latest().await?;
        let refused = self.refused_images(&published, &request.writes).await;
        let (api, now) = (self.clone(), self.clock.now());
        // Planning a large update takes a while.
        let made = tokio::task::spawn_blocking(move || {
            api.forecast_from(role, &published.state, request, refused, now)
        });
        made.await.map_err(|error| {
            tracing::error!(%error, "a forecast failed");
            Problem::new(Code::Internal, "FORECAST_FAILED", "the forecast failed").into()
        })
    }

    /// Which writes start services whose images are not signed as the admission policy demands.
    async fn refused_images(
        &self,
        published: &Arc<PublishedState>,
        writes: &[v1::ForecastWrite],
    ) -> BTreeMap<usize, Problem> {
        let policy = published.state.cluster().map(|cluster| &cluster.settings.admission_policy);
        if policy.is_none_or(|policy| policy.signatures.is_empty()) {
            return BTreeMap::new();
        }
        let slots = Arc::new(Semaphore::new(MAX_CONCURRENT_CHECKS));
        let mut checks = JoinSet::new();
        for (number, write) in writes.iter().enumerate() {
            let Some((name, tasks)) = started_service(&published.state, write) else { continue };
            for (task, digest) in tasks {
                let (api, published, slots) = (self.clone(), published.clone(), slots.clone());
                let name = name.clone();
                checks.spawn(async move {
                    let _slot = slots.acquire().await.expect("it is never closed");
                    let checked = api.admit_image(&published.state, &name, &task, digest.as_ref()).await;
                    Some((number, checked.err()?))
                });
            }
        }
        checks.join_all().await.into_iter().flatten().collect()
    }

    /// `refused` are the writes that are refused for their images, by number.
    fn forecast_from(
        &self,
        role: UserRole,
        state: &State,
        request: v1::ForecastRequest,
        mut refused: BTreeMap<usize, Problem>,
        now: Timestamp,
    ) -> v1::ForecastResponse {
        let v1::ForecastRequest { writes, outcomes_only } = request;
        let mut forecaster = Forecaster::new(state, now);
        let outcomes = writes.into_iter().enumerate().map(|(number, write)| {
            let command = self.forecast_command(role, write, forecaster.state(), now);
            let command = command.and_then(|command| refused.remove(&number).map_or(Ok(command), Err));
            let outcome =
                command.and_then(|command| forecaster.write(&command).map_err(IntoProblem::into_problem));
            show_outcome(outcome)
        });
        let outcomes: Vec<_> = outcomes.collect();
        let is_refused = outcomes.iter().any(|outcome| !outcome.refusal.is_empty());
        match outcomes_only || is_refused {
            true => v1::ForecastResponse { outcomes, ..v1::ForecastResponse::default() },
            false => show(outcomes, forecaster.finish()),
        }
    }

    /// The command of a write, as its own call makes it.
    fn forecast_command(
        &self,
        role: UserRole,
        write: v1::ForecastWrite,
        state: &State,
        at: Timestamp,
    ) -> Result<Command, Problem> {
        let refused = Refusal::into_problem;
        let write = write
            .write
            .ok_or_else(|| Problem::new(Code::InvalidArgument, "INVALID_ARGUMENT", "a write is empty"))?;
        Ok(match write {
            Write::CreateService(_) | Write::UpdateService(_) | Write::RemoveService(_) => {
                let command = service_command(role, write, state, at)?;
                if let Command::CreateService { spec, .. } | Command::UpdateService { spec, .. } = &command {
                    self.check_seccomp_profile(state, spec)?;
                }
                return Ok(command);
            }
            Write::CreateNetwork(request) => {
                let (id, name) = networks::parse(&request)?;
                let v1::CreateNetworkRequest { labels, internal, .. } = request;
                Command::CreateNetwork { id, name, labels, internal, at }
            }
            Write::CreateVolume(request) => {
                let VolumeRequest { id, name, driver, options, labels, reuse } =
                    VolumeRequest::parse(&request)?;
                let node = match request.node.as_str() {
                    "" => None,
                    given => Some(state.find_node(given).map_err(refused)?.id),
                };
                Command::CreateVolume { id, name, driver, options, labels, node, reuse, at }
            }
            Write::CreateSecretObject(request) => {
                let SecretObjectRequest { id, kind, name, labels } = SecretObjectRequest::parse(&request)?;
                let data = self.secret_object_key.seal(id, &request.data);
                Command::CreateSecretObject { id, kind, name, labels, data, at }
            }
            Write::UpdateSecretObject(request) => {
                let v1::UpdateSecretObjectRequest { kind, reference, version, data } = request;
                let kind = parse_kind(kind)?;
                check_secret_object_data(Some(kind), &data).map_err(IntoProblem::into_problem)?;
                let object = state.find_secret_object(kind, &reference).map_err(refused)?;
                check_profile_update(role, state, object, &data)?;
                let id = object.id;
                let data = self.secret_object_key.seal(id, &data);
                Command::UpdateSecretObject { id, version, data, at }
            }
            Write::UpdateNode(request) => {
                let NodeUpdate { label_rm, availability, taint_add, taint_rm } = nodes::parse(&request)?;
                let id = state.find_node(&request.reference).map_err(refused)?.id;
                let (version, label_add) = (request.version, request.label_add);
                Command::UpdateNode {
                    id,
                    version,
                    label_add,
                    label_rm,
                    availability,
                    taint_add,
                    taint_rm,
                    at,
                }
            }
        })
    }
}

/// Tasks, and the digests that their images have already.
type StartedTasks = Vec<(TaskSpec, Option<ImageDigest>)>;

/// The service of which a write starts tasks, with these and the digests that their images have already. `None` for
/// other writes and invalid ones.
fn started_service(state: &State, write: &v1::ForecastWrite) -> Option<(ServiceName, StartedTasks)> {
    match write.write.as_ref()? {
        Write::CreateService(request) => {
            let (_, spec): (ServiceId, ServiceSpec) = request.clone().try_into().ok()?;
            Some((spec.name, vec![(spec.task, None)]))
        }
        Write::UpdateService(v1::UpdateServiceRequest { reference, spec, force, .. }) => {
            let spec = parse_updated_spec(spec.clone()).ok()?;
            let Ok(known) = state.find_service(reference) else {
                return Some((spec.name, vec![(spec.task, None)]));
            };
            let change = ServiceChange::Spec { spec: &spec, force: *force };
            let started = started_tasks(state, known, change).into_iter().flatten();
            let started = started.map(|(task, digest)| (task.clone(), digest.cloned())).collect();
            Some((spec.name.clone(), started))
        }
        _ => None,
    }
}

/// The command of a write of a service.
fn service_command(role: UserRole, write: Write, state: &State, at: Timestamp) -> Result<Command, Problem> {
    let refused = Refusal::into_problem;
    Ok(match write {
        Write::CreateService(request) => {
            let is_confirmed = request.allow_many_replicas;
            let (id, spec): (ServiceId, ServiceSpec) = request.try_into()?;
            check_admission(role, state, &spec)?;
            if !is_confirmed {
                state.check_replicas(spec.replicas(), None).map_err(refused)?;
            }
            Command::CreateService { id, spec, at }
        }
        Write::UpdateService(request) => {
            let v1::UpdateServiceRequest { reference, version, spec, force, allow_many_replicas } = request;
            let spec = parse_updated_spec(spec)?;
            let change = ServiceChange::Spec { spec: &spec, force };
            let service = admit_change(role, state, &reference, change, allow_many_replicas)?;
            let version = version.or(force.then_some(service.version));
            Command::UpdateService { id: service.id, version, spec, force, at }
        }
        Write::RemoveService(v1::RemoveServiceRequest { reference, version, force }) => {
            let id = admit_change(role, state, &reference, ServiceChange::None, true)?.id;
            Command::RemoveService { id, version, force, at }
        }
        _ => return Err(Problem::new(Code::InvalidArgument, "INVALID_ARGUMENT", "it is not of a service")),
    })
}

fn show_outcome(outcome: Result<bool, Problem>) -> v1::ForecastOutcome {
    match outcome {
        Ok(changed) => v1::ForecastOutcome { changed, ..v1::ForecastOutcome::default() },
        Err(problem) => v1::ForecastOutcome {
            changed: false,
            refusal: problem.message,
            refusal_reason: problem.reason,
            violations: problem.violations.0.iter().map(ToString::to_string).collect(),
        },
    }
}

fn show(outcomes: Vec<v1::ForecastOutcome>, forecast: Forecast) -> v1::ForecastResponse {
    let Forecast { slots, stops, uncreated, incomplete_reason } = forecast;
    let slots = slots.into_iter().map(|slot| v1::ForecastSlot {
        service_name: slot.service.to_string(),
        slot: slot.slot,
        node_name: slot.node.map(|node| node.to_string()).unwrap_or_default(),
        reason: slot.reason,
        new: slot.is_new,
    });
    let stops = stops.into_iter().map(|stop| v1::ForecastStop {
        service_name: stop.service.to_string(),
        slot: stop.slot,
        task_id: stop.task.to_string(),
        node_name: stop.node.map(|node| node.to_string()).unwrap_or_default(),
    });
    let shortages = uncreated
        .into_iter()
        .map(|(service, replicas)| v1::ForecastShortage { service_name: service.to_string(), replicas });
    v1::ForecastResponse {
        outcomes,
        slots: slots.collect(),
        stops: stops.collect(),
        shortages: shortages.collect(),
        incomplete_reason,
    }
}
