//! Services. An update to the image `fails` stops after its first task; one to `slow` never ends.

use tonic::{Code, Request, Response, Status};
use warren_proto::v1::watch_event::Change;
use warren_proto::{Problem, v1};
use warren_types::{ServiceId, ServiceSpec};

use super::{FakeApi, FakeState, replicas};

impl FakeState {
    /// Makes tasks for slots that have none, and lets go of those that are too many.
    fn settle(&mut self, service: &v1::Service) {
        let (id, expected) = (&service.id, u32::try_from(replicas(service)).unwrap());
        let spec = service.spec.clone().unwrap();
        let extra = self.tasks.values().filter(|task| task.service_id == *id && task.slot > expected);
        let extra: Vec<String> = extra.map(|task| task.id.clone()).collect();
        for task in extra {
            self.tasks.remove(&task);
            self.notify(Change::RemovedTask(task));
        }
        for slot in 1..=expected {
            if self.tasks.values().any(|task| task.service_id == *id && task.slot == slot) {
                continue;
            }
            self.next_task += 1;
            let task = v1::Task {
                id: format!("{id}-{}", self.next_task),
                service_id: id.clone(),
                service_name: spec.name.clone(),
                slot,
                revision: service.revision,
                spec: spec.task.clone(),
                ports: spec.ports.clone(),
                desired: v1::DesiredTaskState::Running.into(),
                state: v1::TaskState::Pending.into(),
                reason: "0 of 1 nodes fit: 1 lacks memory".into(),
                ..Default::default()
            };
            self.put_task(task.clone());
            self.run_task(task, &spec.task.as_ref().unwrap().image);
        }
    }

    /// What the worker does.
    fn run_task(&mut self, mut task: v1::Task, image: &str) {
        if image == "pending" {
            return;
        }
        task.node_id = format!("n{}", (task.slot - 1) % 3 + 1);
        task.node_name = self.nodes[&task.node_id].name.clone();
        (task.address, task.attempt) = ("10.210.1.2".into(), 1);
        task.state = v1::TaskState::Starting.into();
        task.reason = String::new();
        self.put_task(task.clone());
        if image == "rejected" {
            task.state = v1::TaskState::Rejected.into();
            task.reason = "image rejected is not on this node".into();
        } else {
            task.state = v1::TaskState::Running.into();
            task.ready = true;
            // The more replicas the busier.
            let cpu_milli = u64::from(task.slot) * 100;
            task.usage =
                Some(v1::TaskUsage { cpu_milli, memory_bytes: 12 << 20, pids: 7, ..Default::default() });
        }
        if image == "unhealthy" || image == "unsure" {
            let output = "connection refused on port 80".to_owned();
            let failed = v1::CheckResult { at: 1000, duration_us: 300, ok: false, output };
            task.ready = false;
            task.checks = vec![failed.clone(), failed];
            task.health = v1::Health::Starting.into();
        }
        if image == "unhealthy" {
            task.health = v1::Health::Unhealthy.into();
            task.reason = "unhealthy: connection refused on port 80 (3 consecutive failures)".into();
        }
        task.secret_objects = self.secret_versions(&task);
        self.put_task(task);
    }

    /// The newest version of each secret that the task names.
    fn secret_versions(&self, task: &v1::Task) -> Vec<v1::SecretObjectVersion> {
        let spec = task.spec.as_ref().unwrap();
        let named = |source: &str| self.contents.iter().find(|held| held.object.name == source);
        let held = spec.secrets.iter().filter_map(|mount| named(&mount.source));
        held.map(|held| {
            let v1::SecretObject { kind, name, id, version_number: number, .. } = held.object.clone();
            v1::SecretObjectVersion { kind, name, id, version_number: number }
        })
        .collect()
    }

    /// Remembers the revision that the service has now.
    fn record_revision(&mut self, service: &v1::Service) {
        let spec = service.spec.clone().unwrap();
        let history = self.history.entry(service.id.clone()).or_default();
        for earlier in history.iter_mut() {
            (earlier.current, earlier.running) = (false, 0);
        }
        let revision = v1::Revision {
            number: service.revision,
            task: spec.task,
            ports: spec.ports,
            placement: spec.placement,
            current: true,
            running: 1,
            ..Default::default()
        };
        history.insert(0, revision);
    }

    /// Gives the service another spec under a new revision.
    fn replace(&mut self, mut service: v1::Service, spec: v1::ServiceSpec) -> v1::Service {
        let image = spec.task.as_ref().unwrap().image.clone();
        service.spec = Some(spec);
        service.revision += 1;
        let total = u32::try_from(replicas(&service)).unwrap();
        let rollout = |updated, state: v1::RolloutState, stopped: &str, waiting: &str| {
            let (stop_reason, waiting_reason, state) = (stopped.to_owned(), waiting.to_owned(), state.into());
            Some(v1::Rollout { updated, total, stop_reason, waiting_reason, state, ..Default::default() })
        };
        let why = "web.1 failed: exited with 1; go back with `warren service rollback web`";
        service.rollout = match image.as_str() {
            "fails" => rollout(0, v1::RolloutState::Paused, why, ""),
            "slow" => rollout(0, v1::RolloutState::Updating, "", "web.1 pulls slow"),
            _ => rollout(total, v1::RolloutState::Completed, "", ""),
        };
        self.record_revision(&service);
        self.put_service(&mut service);
        if image != "fails" && image != "slow" {
            self.tasks.retain(|_, task| task.service_id != service.id);
            self.settle(&service);
        }
        service
    }

    fn check_replicas(&self, replicas: i64, is_confirmed: bool) -> Result<(), Status> {
        if is_confirmed || replicas <= self.settings.max_replicas_per_service.into() {
            return Ok(());
        }
        let message = format!("{replicas} replicas are more than the limit");
        Err(Problem::new(Code::FailedPrecondition, "TOO_MANY_REPLICAS", message).into())
    }

    /// Refuses who saw another version.
    fn compare(service: &v1::Service, version: Option<u64>) -> Result<(), Status> {
        match version.filter(|version| *version != service.version) {
            None => Ok(()),
            Some(seen) => {
                let message = format!("it was changed: version {} is not {seen} any more", service.version);
                Err(Problem::new(Code::Aborted, "VERSION", message).into())
            }
        }
    }
}

#[tonic::async_trait]
impl v1::services_server::Services for FakeApi {
    async fn create(
        &self,
        request: Request<v1::CreateServiceRequest>,
    ) -> Result<Response<v1::Service>, Status> {
        let request = request.into_inner();
        let is_confirmed = request.allow_many_replicas;
        let (id, spec): (ServiceId, ServiceSpec) = request.try_into().map_err(Problem::from)?;
        let mut state = self.0.lock().unwrap();
        state.check_replicas(spec.replicas().unwrap_or(0).into(), is_confirmed)?;
        if state.find(spec.name.as_str()).is_ok() {
            let message = format!("there is a service {} already", spec.name);
            return Err(Problem::new(Code::AlreadyExists, "ALREADY_EXISTS", message).into());
        }
        let mut service =
            v1::Service { id: id.to_string(), revision: 1, spec: Some((&spec).into()), ..Default::default() };
        service.desired_tasks = u32::try_from(replicas(&service)).unwrap();
        state.record_revision(&service);
        state.put_service(&mut service);
        state.settle(&service);
        Ok(Response::new(service))
    }

    /// Somebody else always changes the service `contested` right after it was looked at.
    async fn get(&self, request: Request<v1::Reference>) -> Result<Response<v1::Service>, Status> {
        let mut state = self.0.lock().unwrap();
        let found = state.find(&request.into_inner().reference)?;
        if found.spec.as_ref().unwrap().name == "contested" {
            state.put_service(&mut found.clone());
        }
        Ok(Response::new(found))
    }

    async fn list(
        &self,
        request: Request<v1::ListServicesRequest>,
    ) -> Result<Response<v1::ListServicesResponse>, Status> {
        let request = request.into_inner();
        let name = |service: &v1::Service| service.spec.as_ref().unwrap().name.clone();
        let mut services: Vec<v1::Service> = self.0.lock().unwrap().services.values().cloned().collect();
        services.retain(|service| name(service).starts_with(&request.name_prefix));
        let mut response = v1::ListServicesResponse::default();
        match request.content() {
            v1::ServiceListContent::Whole => response.services = services,
            v1::ServiceListContent::Summaries => {
                response.summaries = services.iter().map(Into::into).collect();
            }
            v1::ServiceListContent::Names => response.names = services.iter().map(name).collect(),
        }
        Ok(Response::new(response))
    }

    async fn scale(
        &self,
        request: Request<v1::ScaleServiceRequest>,
    ) -> Result<Response<v1::Service>, Status> {
        let request = request.into_inner();
        let mut state = self.0.lock().unwrap();
        state.check_replicas(request.replicas, request.allow_many_replicas)?;
        let mut service = state.find(&request.reference)?;
        let expected = v1::Replicated { replicas: request.replicas };
        service.spec.as_mut().unwrap().mode = Some(v1::service_spec::Mode::Replicated(expected));
        state.put_service(&mut service);
        state.settle(&service);
        Ok(Response::new(service))
    }

    async fn remove(
        &self,
        request: Request<v1::RemoveServiceRequest>,
    ) -> Result<Response<v1::Service>, Status> {
        let mut state = self.0.lock().unwrap();
        let service = state.find(&request.into_inner().reference)?;
        state.services.remove(&service.id);
        state.tasks.retain(|_, task| task.service_id != service.id);
        state.notify(Change::RemovedService(service.id.clone()));
        Ok(Response::new(v1::Service { removing: true, ..service }))
    }

    async fn update(
        &self,
        request: Request<v1::UpdateServiceRequest>,
    ) -> Result<Response<v1::Service>, Status> {
        let v1::UpdateServiceRequest { reference, version, spec, force: _, .. } = request.into_inner();
        let spec = ServiceSpec::try_from(spec.unwrap()).map_err(Problem::from)?;
        let mut state = self.0.lock().unwrap();
        let service = state.find(&reference)?;
        FakeState::compare(&service, version)?;
        Ok(Response::new(state.replace(service, (&spec).into())))
    }

    async fn rollback(
        &self,
        request: Request<v1::RollbackServiceRequest>,
    ) -> Result<Response<v1::Service>, Status> {
        let v1::RollbackServiceRequest { reference, version, revision } = request.into_inner();
        let mut state = self.0.lock().unwrap();
        let service = state.find(&reference)?;
        FakeState::compare(&service, version)?;
        let expected = revision.unwrap_or(service.revision - 1);
        let found = state.history[&service.id].iter().find(|earlier| earlier.number == expected).cloned();
        let earlier = found.ok_or_else(|| missing_revision(expected))?;
        let v1::Revision { task, ports, placement, .. } = earlier;
        let spec = v1::ServiceSpec { task, ports, placement, ..service.spec.clone().unwrap() };
        Ok(Response::new(state.replace(service, spec)))
    }

    async fn resume(
        &self,
        request: Request<v1::ResumeServiceRequest>,
    ) -> Result<Response<v1::Service>, Status> {
        let v1::ResumeServiceRequest { reference, version } = request.into_inner();
        let mut state = self.0.lock().unwrap();
        let mut service = state.find(&reference)?;
        FakeState::compare(&service, version)?;
        let total = service.desired_tasks;
        let completed = v1::RolloutState::Completed.into();
        service.rollout = Some(v1::Rollout { updated: total, total, state: completed, ..Default::default() });
        state.put_service(&mut service);
        state.tasks.retain(|_, task| task.service_id != service.id);
        state.settle(&service);
        Ok(Response::new(service))
    }

    async fn forecast(
        &self,
        request: Request<v1::ForecastRequest>,
    ) -> Result<Response<v1::ForecastResponse>, Status> {
        Ok(Response::new(self.0.lock().unwrap().forecast(request.into_inner())))
    }

    async fn list_revisions(
        &self,
        request: Request<v1::Reference>,
    ) -> Result<Response<v1::ListRevisionsResponse>, Status> {
        let state = self.0.lock().unwrap();
        let service = state.find(&request.into_inner().reference)?;
        Ok(Response::new(v1::ListRevisionsResponse { revisions: state.history[&service.id].clone() }))
    }
}

fn missing_revision(number: u64) -> Status {
    super::missing("revision", &number.to_string())
}
