//! Services: create, get, list, scale, update, roll back, resume, remove.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use warren_core::state::{ObjectKind, kept_pin};
use warren_core::{Command, Refusal, State, awaits_managers};
use warren_proto::convert::replicas;
use warren_proto::status::Problem;
use warren_proto::v1::{self, services_server};
use warren_store::problem::{IntoProblem, status_of};
use warren_types::{
    ImageDigest, ImageResolver, Revision, Service, ServiceId, ServiceMode, ServiceName, ServiceSpec,
    TaskSpec, TaskState, UserRole, Violation, Violations,
};

use super::Api;
use super::admission_policy::{
    check_admission, check_rollback, check_service_admission, rollback_target, user_role,
};
use super::audited_call::AuditedCall;
use super::paging::Page;

/// The spec of an update; the paths of violations start at the request.
pub(super) fn parse_updated_spec(spec: Option<v1::ServiceSpec>) -> Result<ServiceSpec, Violations> {
    let spec = spec.ok_or_else(|| Violation::new("spec", "is missing"))?;
    ServiceSpec::try_from(spec).map_err(|inner| {
        let mut wrong = Violations::default();
        wrong.nest("spec", inner);
        wrong
    })
}

/// What a write changes of a service.
#[derive(Clone, Copy)]
pub(super) enum ServiceChange<'a> {
    /// Nothing of its spec.
    None,
    Replicas(u32),
    Spec {
        spec: &'a ServiceSpec,
        force: bool,
    },
    /// To an earlier revision, by number or the previous one.
    Rollback(Option<u64>),
    /// The current revision goes on replacing tasks.
    Resume,
}

/// A task that a write starts, and the digest that its image has already.
pub(super) type StartedTask<'a> = (&'a TaskSpec, Option<&'a ImageDigest>);

fn parse_content(number: i32) -> Result<v1::ServiceListContent, Violation> {
    v1::ServiceListContent::try_from(number).map_err(|_| {
        let why = format!("value {number} is not known to this version; give whole, summaries or names");
        Violation::new("content", why)
    })
}

fn show_revision(state: &State, service: &Service, revision: &Revision) -> v1::Revision {
    let runs = |state: TaskState| state == TaskState::Running;
    let tasks = state.tasks_of(&service.id).filter(|task| task.revision.number == revision.number);
    let running = tasks.filter(|task| task.holds_resources() && runs(task.observed.state)).count();
    v1::Revision {
        number: revision.number,
        created_at: revision.created_at.0,
        task: Some((&revision.task).into()),
        ports: revision.ports.iter().map(Into::into).collect(),
        placement: Some((&revision.placement).into()),
        digest: service.pins.get(&revision.number).map(ToString::to_string).unwrap_or_default(),
        current: revision.number == service.revision.number,
        running: u32::try_from(running).unwrap_or(u32::MAX),
        secret_objects: revision.secret_objects.iter().map(Into::into).collect(),
    }
}

impl Api {
    /// Proposes a write and returns the service as the write left it.
    async fn write_service(&self, caller: &AuditedCall, command: Command) -> Result<v1::Service, Status> {
        let service: Arc<Service> = self.write(command).await?;
        caller.identified(ObjectKind::Service, service.id, &service.spec.name, service.version);
        Ok(self.show_service(&self.store.read().state, &service))
    }

    /// Id and version of the service of a write, as of [`admit_change`]. The images that it starts are signed as the
    /// admission policy demands.
    async fn resolve_service(
        &self,
        role: UserRole,
        reference: &str,
        change: ServiceChange<'_>,
        allow_many_replicas: bool,
    ) -> Result<(ServiceId, u64), Status> {
        let published = self.read_latest().await?;
        let state = &published.state;
        let service = admit_change(role, state, reference, change, allow_many_replicas)?;
        if let ServiceChange::Spec { spec, .. } = change {
            self.check_seccomp_profile(state, spec)?;
        }
        let [next, held] = started_tasks(state, service, change);
        let name = &service.spec.name;
        tokio::try_join!(self.admit_started(state, name, next), self.admit_started(state, name, held))?;
        Ok((service.id, service.version))
    }

    /// Refuses the task if its image lacks a signature; a write that starts none is admitted.
    async fn admit_started(
        &self,
        state: &State,
        service: &ServiceName,
        started: Option<StartedTask<'_>>,
    ) -> Result<(), Problem> {
        match started {
            Some((task, digest)) => self.admit_image(state, service, task, digest).await,
            None => Ok(()),
        }
    }
}

/// The tasks that a write starts, or starts more of: of the revision that is the current one then, and of the one that
/// new tasks have while managers do not know its image.
pub(super) fn started_tasks<'a>(
    state: &State,
    service: &'a Service,
    change: ServiceChange<'a>,
) -> [Option<StartedTask<'a>>; 2] {
    let of_revision = |revision: &'a Revision| (&revision.task, service.pins.get(&revision.number));
    match change {
        ServiceChange::None => [None, None],
        ServiceChange::Replicas(replicas) if is_more(service, replicas) => {
            let held = awaits_managers(service).then(|| state.usable_revision(service)).flatten();
            [Some(of_revision(&service.revision)), held.map(|revision| of_revision(revision))]
        }
        ServiceChange::Replicas(_) => [None, None],
        ServiceChange::Spec { spec, force } => {
            let pin = kept_pin(service, &spec.task, force);
            let grows = match spec.replicas() {
                Some(replicas) => is_more(service, replicas),
                // On other nodes.
                None => spec.placement != service.spec.placement,
            };
            if !force && !grows && changes_no_task(service, spec) {
                return [None, None];
            }
            let awaits = pin.is_none() && awaits_digest(&spec.task);
            let held = (grows && awaits).then(|| state.usable_revision(service)).flatten();
            [Some((&spec.task, pin)), held.map(|revision| of_revision(revision))]
        }
        ServiceChange::Rollback(revision) => {
            [rollback_target(service, revision).map(|target| of_revision(target)), None]
        }
        ServiceChange::Resume => [Some(of_revision(&service.revision)), None],
    }
}

/// Whether an update to the spec leaves the tasks of the service as they are, with the digest that they have.
fn changes_no_task(service: &Service, spec: &ServiceSpec) -> bool {
    let Revision { number, task, ports, placement, labels, .. } = &*service.revision;
    (task, ports, placement, labels) == (&spec.task, &spec.ports, &spec.placement, &spec.template_labels())
        && kept_pin(service, &spec.task, false) == service.pins.get(number)
}

/// Whether managers have to ask for the digest of the image.
fn awaits_digest(task: &TaskSpec) -> bool {
    task.image_resolver() == ImageResolver::Manager && task.image.digest().is_none()
}

fn is_more(service: &Service, replicas: u32) -> bool {
    service.spec.replicas().is_none_or(|known| replicas > known)
}

/// The service of a write, which accepts that many replicas. The caller may change it, and run what it becomes.
///
/// # Errors
/// There is no such service, or the change is refused.
pub(super) fn admit_change<'s>(
    role: UserRole,
    state: &'s State,
    reference: &str,
    change: ServiceChange<'_>,
    allow_many_replicas: bool,
) -> Result<&'s Arc<Service>, Problem> {
    let service = state.find_service(reference).map_err(Refusal::into_problem)?;
    check_service_admission(role, state, &service.id)?;
    let replicas = match change {
        ServiceChange::None | ServiceChange::Resume => None,
        ServiceChange::Replicas(replicas) => {
            // Fewer tasks are always admitted.
            if is_more(service, replicas) {
                let mode = ServiceMode::Replicated { replicas };
                check_admission(role, state, &ServiceSpec { mode, ..(*service.spec).clone() })?;
            }
            Some(replicas)
        }
        ServiceChange::Spec { spec, .. } => {
            check_admission(role, state, spec)?;
            spec.replicas()
        }
        ServiceChange::Rollback(revision) => {
            check_rollback(role, state, service, revision)?;
            None
        }
    };
    if !allow_many_replicas {
        state.check_replicas(replicas, service.spec.replicas()).map_err(Refusal::into_problem)?;
    }
    Ok(service)
}

#[tonic::async_trait]
impl services_server::Services for Api {
    async fn create(
        &self,
        request: Request<v1::CreateServiceRequest>,
    ) -> Result<Response<v1::Service>, Status> {
        let (caller, role) = (AuditedCall::of(&request), user_role(&request));
        let request = request.into_inner();
        let is_confirmed = request.allow_many_replicas;
        let (id, spec): (ServiceId, ServiceSpec) = request.try_into().map_err(status_of)?;
        // A policy is effective once it is set; administrators may lift it. So is a new version of a profile.
        let needs_latest = role != UserRole::Admin || spec.task.seccomp.config().is_some();
        let published = if needs_latest { self.read_latest().await? } else { self.store.read() };
        check_admission(role, &published.state, &spec)?;
        self.check_seccomp_profile(&published.state, &spec)?;
        self.admit_image(&published.state, &spec.name, &spec.task, None).await?;
        if !is_confirmed {
            published.state.check_replicas(spec.replicas(), None).map_err(status_of)?;
        }
        let name = spec.name.clone();
        caller.named(ObjectKind::Service, name.as_str());
        let command = Command::CreateService { id, spec, at: self.clock.now() };
        let created = self.write_service(&caller, command).await?;
        tracing::info!(%caller, service = %id, %name, "service created");
        Ok(Response::new(created))
    }

    async fn get(&self, request: Request<v1::Reference>) -> Result<Response<v1::Service>, Status> {
        let published = self.read(&request).await?;
        let service = published.state.find_service(&request.get_ref().reference).map_err(status_of)?;
        Ok(Response::new(self.show_service(&published.state, service)))
    }

    async fn list(
        &self,
        request: Request<v1::ListServicesRequest>,
    ) -> Result<Response<v1::ListServicesResponse>, Status> {
        let v1::ListServicesRequest { page_size, page_token, name_prefix, content } = request.get_ref();
        let content = parse_content(*content).map_err(status_of)?;
        let page = Page::parse(*page_size, page_token)?;
        let published = self.read(&request).await?;
        let state = &published.state;
        let is_named = |service: &&Arc<Service>| service.spec.name.as_str().starts_with(name_prefix.as_str());
        let all = state.services_after(page.after.as_ref()).filter(is_named);
        let (found, next_page_token) = page.cut(all, |service| service.spec.name.clone());
        let found = found.into_iter();
        let mut response = v1::ListServicesResponse { next_page_token, ..Default::default() };
        match content {
            v1::ServiceListContent::Whole => {
                response.services = found.map(|service| self.show_service(state, service)).collect();
            }
            v1::ServiceListContent::Summaries => {
                response.summaries = found.map(|service| self.summarize_service(state, service)).collect();
            }
            v1::ServiceListContent::Names => {
                response.names = found.map(|service| service.spec.name.to_string()).collect();
            }
        }
        Ok(Response::new(response))
    }

    async fn scale(
        &self,
        request: Request<v1::ScaleServiceRequest>,
    ) -> Result<Response<v1::Service>, Status> {
        let (caller, role) = (AuditedCall::of(&request), user_role(&request));
        let request = request.into_inner();
        caller.named(ObjectKind::Service, &request.reference);
        let replicas = replicas(request.replicas).map_err(status_of)?;
        let change = ServiceChange::Replicas(replicas);
        let (id, _) =
            self.resolve_service(role, &request.reference, change, request.allow_many_replicas).await?;
        let command = Command::ScaleService { id, version: request.version, replicas, at: self.clock.now() };
        let scaled = self.write_service(&caller, command).await?;
        tracing::info!(%caller, service = %id, replicas, "service scaled");
        Ok(Response::new(scaled))
    }

    async fn update(
        &self,
        request: Request<v1::UpdateServiceRequest>,
    ) -> Result<Response<v1::Service>, Status> {
        let (caller, role) = (AuditedCall::of(&request), user_role(&request));
        let v1::UpdateServiceRequest { reference, version, spec, force, allow_many_replicas } =
            request.into_inner();
        caller.named(ObjectKind::Service, &reference);
        let spec = parse_updated_spec(spec).map_err(status_of)?;
        let change = ServiceChange::Spec { spec: &spec, force };
        let (id, current) = self.resolve_service(role, &reference, change, allow_many_replicas).await?;
        // A forced update is not idempotent, so it applies only to the version that was read.
        let version = version.or(force.then_some(current));
        let command = Command::UpdateService { id, version, spec, force, at: self.clock.now() };
        let updated = self.write_service(&caller, command).await?;
        tracing::info!(%caller, service = %id, force, "service updated");
        Ok(Response::new(updated))
    }

    async fn rollback(
        &self,
        request: Request<v1::RollbackServiceRequest>,
    ) -> Result<Response<v1::Service>, Status> {
        let (caller, role) = (AuditedCall::of(&request), user_role(&request));
        let v1::RollbackServiceRequest { reference, version, revision } = request.into_inner();
        caller.named(ObjectKind::Service, &reference);
        let change = ServiceChange::Rollback(revision);
        let (id, current) = self.resolve_service(role, &reference, change, true).await?;
        // "The previous revision" is relative to the version that was read.
        let version = version.or(revision.is_none().then_some(current));
        let command = Command::RollbackService { id, version, revision, at: self.clock.now() };
        let rolled_back = self.write_service(&caller, command).await?;
        tracing::info!(%caller, service = %id, ?revision, "service rolled back");
        Ok(Response::new(rolled_back))
    }

    async fn resume(
        &self,
        request: Request<v1::ResumeServiceRequest>,
    ) -> Result<Response<v1::Service>, Status> {
        let (caller, role) = (AuditedCall::of(&request), user_role(&request));
        let v1::ResumeServiceRequest { reference, version } = request.into_inner();
        caller.named(ObjectKind::Service, &reference);
        let (id, _) = self.resolve_service(role, &reference, ServiceChange::Resume, true).await?;
        let command = Command::ResumeRollout { id, version, at: self.clock.now() };
        let resumed = self.write_service(&caller, command).await?;
        tracing::info!(%caller, service = %id, "rollout resumed");
        Ok(Response::new(resumed))
    }

    async fn list_revisions(
        &self,
        request: Request<v1::Reference>,
    ) -> Result<Response<v1::ListRevisionsResponse>, Status> {
        let published = self.read(&request).await?;
        let state = &published.state;
        let service = state.find_service(&request.get_ref().reference).map_err(status_of)?;
        let newest_first = std::iter::once(&service.revision).chain(service.history.iter().rev());
        let revisions = newest_first.map(|revision| show_revision(state, service, revision)).collect();
        Ok(Response::new(v1::ListRevisionsResponse { revisions }))
    }

    async fn forecast(
        &self,
        request: Request<v1::ForecastRequest>,
    ) -> Result<Response<v1::ForecastResponse>, Status> {
        let role = user_role(&request);
        self.forecast_writes(role, request.into_inner()).await.map(Response::new)
    }

    async fn remove(
        &self,
        request: Request<v1::RemoveServiceRequest>,
    ) -> Result<Response<v1::Service>, Status> {
        let (caller, role) = (AuditedCall::of(&request), user_role(&request));
        let v1::RemoveServiceRequest { reference, version, force } = request.into_inner();
        caller.named(ObjectKind::Service, &reference);
        let (id, _) = self.resolve_service(role, &reference, ServiceChange::None, true).await?;
        let command = Command::RemoveService { id, version, force, at: self.clock.now() };
        let removed = self.write_service(&caller, command).await?;
        let name = removed.spec.as_ref().map_or("", |spec| &spec.name);
        tracing::info!(%caller, service = %id, name, "service removed");
        Ok(Response::new(removed))
    }
}
