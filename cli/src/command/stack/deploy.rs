//! `warren deploy`.

use std::collections::{BTreeMap, BTreeSet};

use warren_client::{Client, Error, NewNetwork, NewSecretObject, NewVolume, TaskFilter};
use warren_compose::stack::{
    DependencyCondition, StackDependency, StackNetwork, StackSecretObject, StackVolume,
};
use warren_proto::convert::task_state;
use warren_proto::v1;
use warren_types::{
    Id, NetworkId, RestartCondition, SecretObjectId, ServiceId, ServiceSpec, TaskState, VolumeId,
};

use super::data::{self, SecretObjectData};
use super::files::{LoadedStack, load_stack};
use super::members::{self, service_name};
use super::plan::{DeployPlan, DeployScope, DeployStep, plan, restarted_after};
use super::{build, forecast, local_paths};
use crate::args::{GlobalArgs, OutputFormat, StackDeployArgs};
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind, from_client};
use crate::output;
use crate::view::stack::StackStepView;
use crate::wait::{ServiceGoal, WaitGoal, wait_all};

pub async fn run(global: &GlobalArgs, args: &StackDeployArgs) -> Result<(), CommandError> {
    let LoadedStack { project, name, mut objects } =
        load_stack(&args.files, args.name.as_ref(), "the stack was not deployed")?;
    let what = format!("stack {name} was not deployed");
    let client = connect(global, &what).await?;
    let existing = members::fetch(&client, &what).await?;
    let missing = local_paths::pin(&client, &mut objects, &what).await?;
    build::keep_built(&mut objects, &existing, args.build, &what)?;
    let checked_plan = |objects: &_| {
        let prunable = if args.prune { existing.of(name.as_str()).services } else { Vec::new() };
        without_conflicts(plan(DeployScope::Stack(name.as_str()), objects, &existing, prunable), &what)
    };
    let mut plan = checked_plan(&objects)?;
    for warning in &plan.warnings {
        eprintln!("warning: {warning}");
    }
    // Read and built before anything is changed.
    let mut data = data::read(&objects.secret_objects, &project, &what)?;
    if args.dry_run {
        let forecast = forecast::fetch(&client, &plan.steps, &data, false, &what).await?;
        let refusals = forecast.refusals(&plan.steps).into_iter().map(|(_, why)| why);
        without_conflicts(DeployPlan { conflicts: refusals.collect(), ..DeployPlan::default() }, &what)?;
        let builds = build::images(&objects).filter(|_| args.build).map(|image| StackStepView {
            action: "build",
            kind: "image".to_owned(),
            name: image.to_owned(),
        });
        return forecast.print(global.output, builds.collect(), &plan.steps);
    }
    local_paths::create(&missing, &what)?;
    if args.build && build::run(global, &client, &mut objects, &what).await? {
        plan = checked_plan(&objects)?;
    }
    let mut deployment = Deployment::new(global, &client, DeployReport::Stack(name.as_str()));
    for step in plan.steps {
        deployment.execute(step, &mut data).await?;
    }
    if !args.detach {
        deployment.wait().await?;
    }
    output::print(&format!("{name}\n"))
}

/// The plan, unless something prevents it.
fn without_conflicts(plan: DeployPlan, what: &str) -> Result<DeployPlan, CommandError> {
    if plan.conflicts.is_empty() {
        return Ok(plan);
    }
    let hint = "correct what is listed and try again";
    Err(CommandError::new(ExitKind::Conflict, what, plan.conflicts.join("\n"), hint))
}

/// Where a deployment tells what it did.
#[derive(Debug)]
pub enum DeployReport<'a> {
    /// Lines on standard error, for the stack with this name.
    Stack(&'a str),
    /// Lines on standard output, unless the format is one for programs; all steps are kept for that.
    Documents {
        format: OutputFormat,
        /// `applied` or `removed`, for failures.
        verb: &'static str,
        done: Vec<StackStepView>,
    },
}

/// Executes steps one after the other.
pub struct Deployment<'a> {
    global: &'a GlobalArgs,
    client: &'a Client,
    report: DeployReport<'a>,
    /// What changed services have not reached yet, by their names.
    goals: BTreeMap<String, ServiceGoal>,
    /// Unchanged services that nothing has waited for yet.
    kept: BTreeMap<String, (Box<ServiceSpec>, v1::Service)>,
    /// What services were waited for and have reached.
    ready: BTreeMap<String, ServiceGoal>,
    /// Services that use a secret or config with a new version, which made a new revision of each.
    with_new_data: BTreeSet<String>,
    /// Services that existed and have a new revision.
    changed: BTreeSet<String>,
}

impl<'a> Deployment<'a> {
    pub fn new(global: &'a GlobalArgs, client: &'a Client, report: DeployReport<'a>) -> Self {
        Self {
            global,
            client,
            report,
            goals: BTreeMap::new(),
            kept: BTreeMap::new(),
            ready: BTreeMap::new(),
            with_new_data: BTreeSet::new(),
            changed: BTreeSet::new(),
        }
    }

    /// What documents changed or kept so far.
    pub fn into_done(self) -> Vec<StackStepView> {
        match self.report {
            DeployReport::Stack(_) => Vec::new(),
            DeployReport::Documents { done, .. } => done,
        }
    }

    /// Waits until the services are ready, also unchanged ones that were not, and the removed ones gone.
    pub async fn wait(&mut self) -> Result<(), CommandError> {
        let kept = self.goals_of_kept().await?;
        self.goals.extend(kept);
        self.wait_for_changed().await
    }

    /// Waits until the changed services are ready, and the removed ones gone.
    async fn wait_for_changed(&mut self) -> Result<(), CommandError> {
        let goals: Vec<ServiceGoal> = std::mem::take(&mut self.goals).into_values().collect();
        wait_all(self.client, &goals, self.global.timeout).await
    }

    /// Tells that a step is done; `detail` follows the action.
    fn done(
        &mut self,
        action: &'static str,
        kind: &str,
        name: &str,
        detail: &str,
    ) -> Result<(), CommandError> {
        let line = match action {
            "unchanged" => format!("{kind} {name} is unchanged"),
            action => format!("{kind} {name} {action}{detail}"),
        };
        match &mut self.report {
            DeployReport::Stack(_) => eprintln!("{line}"),
            DeployReport::Documents { format, done, .. } => {
                done.push(StackStepView { action, kind: kind.to_owned(), name: name.to_owned() });
                if matches!(format, OutputFormat::Table | OutputFormat::Wide) {
                    return output::print(&format!("{line}\n"));
                }
            }
        }
        Ok(())
    }

    pub async fn execute(
        &mut self,
        step: DeployStep,
        data: &mut SecretObjectData,
    ) -> Result<(), CommandError> {
        match step {
            DeployStep::UpdateNode { change, found } => {
                let updated = self.client.nodes().update(&found.id, &change).await;
                updated.map_err(|error| self.incomplete(&format!("node {}", found.name), error))?;
                self.done("updated", "node", &found.name, "")
            }
            DeployStep::CreateNetwork(network) => {
                let StackNetwork { defined: _, name, labels, internal } = network;
                let new =
                    NewNetwork { id: NetworkId(Id(rand::random())), name: name.clone(), labels, internal };
                let created = self.client.networks().create(new).await;
                created.map_err(|error| self.incomplete(&format!("network {name}"), error))?;
                self.done("created", "network", name.as_str(), "")
            }
            DeployStep::CreateVolume(volume) => {
                let StackVolume { defined: _, name, labels, driver, options, node } = volume;
                let (id, driver) = (VolumeId(Id(rand::random())), driver.as_str().to_owned());
                let node = node.map(|node| node.to_string()).unwrap_or_default();
                let new = NewVolume { id, name: name.clone(), driver, options, labels, node, reuse: false };
                let created = self.client.volumes().create(new).await;
                created.map_err(|error| self.incomplete(&format!("volume {name}"), error))?;
                self.done("created", "volume", name.as_str(), "")
            }
            DeployStep::CreateSecretObject(object) => {
                let StackSecretObject { kind, name, labels, .. } = object;
                let data = data.remove(&(kind.as_str(), name.clone())).unwrap_or_default();
                let new = NewSecretObject {
                    id: SecretObjectId(Id(rand::random())),
                    name: name.clone(),
                    labels,
                    data,
                };
                let created = self.client.secret_objects(kind).create(new).await;
                created.map_err(|error| self.incomplete(&format!("{kind} {name}"), error))?;
                self.done("created", kind.as_str(), name.as_str(), "")
            }
            DeployStep::UpdateSecretObject { object, found } => {
                let StackSecretObject { kind, name, .. } = object;
                let data = data.remove(&(kind.as_str(), name.clone())).unwrap_or_default();
                let after =
                    self.client.secret_objects(kind).update(&found.id, data, Some(found.version)).await;
                let after = after.map_err(|error| self.incomplete(&format!("{kind} {name}"), error))?;
                if after.version_number != found.version_number {
                    let detail = format!(": version {}", after.version_number);
                    self.with_new_data.extend(after.services);
                    return self.done("updated", kind.as_str(), name.as_str(), &detail);
                }
                match self.report {
                    DeployReport::Stack(_) => Ok(()),
                    DeployReport::Documents { .. } => {
                        self.done("unchanged", kind.as_str(), name.as_str(), "")
                    }
                }
            }
            DeployStep::Keep { kind, name } => self.done("unchanged", kind, &name, ""),
            step @ (DeployStep::CreateService { .. }
            | DeployStep::UpdateService { .. }
            | DeployStep::KeepService { .. }
            | DeployStep::RemoveService { .. }) => self.execute_service(step).await,
            DeployStep::RemoveSecretObject { .. }
            | DeployStep::RemoveVolume { .. }
            | DeployStep::RemoveNetwork { .. } => self.remove_resource(step).await,
        }
    }

    /// Removes what no service uses any more, once the services are gone.
    async fn remove_resource(&mut self, step: DeployStep) -> Result<(), CommandError> {
        self.wait_for_changed().await?;
        let (kind, name, removed) = match step {
            DeployStep::RemoveSecretObject { kind, found } => {
                let removed = self.client.secret_objects(kind).remove(&found.id).await;
                (kind.as_str(), found.name, removed.map(drop))
            }
            DeployStep::RemoveVolume { found } => {
                let removed = self.client.volumes().remove(&found.id, false).await;
                ("volume", found.name, removed.map(drop))
            }
            DeployStep::RemoveNetwork { found } => {
                let removed = self.client.networks().remove(&found.id).await;
                ("network", found.name, removed.map(drop))
            }
            _ => return Ok(()),
        };
        match removed {
            // Removed by another client, or by an earlier attempt of this request.
            Err(error) if !error.is_not_found() => Err(self.incomplete(&format!("{kind} {name}"), error)),
            _ if kind == "volume" => {
                self.done("removed", kind, &name, "; its data stays until `warren volume purge`")
            }
            _ => self.done("removed", kind, &name, ""),
        }
    }

    async fn execute_service(&mut self, step: DeployStep) -> Result<(), CommandError> {
        match step {
            DeployStep::CreateService { spec, after } => {
                self.wait_for(&after).await?;
                let what = format!("service {}", spec.name);
                let created = self.client.services().create(ServiceId(Id(rand::random())), &spec).await;
                let created = created.map_err(|error| self.incomplete(&what, error))?;
                self.goals.insert(spec.name.to_string(), ServiceGoal::new(&created, WaitGoal::Running));
                self.done("created", "service", spec.name.as_str(), "")
            }
            DeployStep::UpdateService { spec, after, found } => {
                self.wait_for(&after).await?;
                let force = restarted_after(&after, &self.changed).is_some();
                self.update(&spec, &found, force).await
            }
            DeployStep::KeepService { spec, after, found } => {
                let name = service_name(&found).to_owned();
                if let Some(dependency) = restarted_after(&after, &self.changed) {
                    eprintln!("service {name} is restarted after {dependency}");
                    self.wait_for(&after).await?;
                    return self.update(&spec, &found, true).await;
                }
                let has_new_data = self.with_new_data.contains(&name);
                let current = if has_new_data { self.current(&found).await? } else { (*found).clone() };
                if current.revision == found.revision {
                    self.kept.insert(name.clone(), (spec, *found));
                    return self.done("unchanged", "service", &name, "");
                }
                let goal = ServiceGoal::of_existing(self.client, &current, WaitGoal::Updated).await;
                let goal = goal.map_err(|error| self.incomplete(&format!("service {name}"), error))?;
                self.changed.insert(name.clone());
                self.goals.insert(name.clone(), goal);
                self.done("gets the new data", "service", &name, &format!(": revision {}", current.revision))
            }
            DeployStep::RemoveService { found } => {
                let name = service_name(&found).to_owned();
                let goal = ServiceGoal::new(&found, WaitGoal::Gone);
                let removed = self.client.services().remove(&found.id, None, false).await;
                self.goals.insert(name.clone(), goal);
                match removed {
                    // Removed by another client, or by an earlier attempt of this request.
                    Err(error) if error.is_not_found() => Ok(()),
                    Err(error) => Err(self.incomplete(&format!("service {name}"), error)),
                    Ok(_) => self.done("removed", "service", &name, ""),
                }
            }
            _ => Ok(()),
        }
    }

    /// Sends the spec of a service that exists; `force` replaces its tasks in any case.
    async fn update(
        &mut self,
        spec: &ServiceSpec,
        found: &v1::Service,
        force: bool,
    ) -> Result<(), CommandError> {
        let what = format!("service {}", spec.name);
        let current = self.current(found).await?;
        let goal = ServiceGoal::of_existing(self.client, &current, WaitGoal::Updated).await;
        let goal = goal.map_err(|error| self.incomplete(&what, error))?;
        let version = Some(current.version);
        let updated = self.client.services().update(&found.id, spec, version, force).await;
        let updated = updated.map_err(|error| self.incomplete(&what, error))?;
        self.changed.insert(spec.name.to_string());
        self.goals.insert(spec.name.to_string(), goal.after_write(&updated));
        self.done("updated", "service", spec.name.as_str(), &format!(": revision {}", updated.revision))
    }

    /// The service as it is now; new data of its secrets and configs made new versions of it.
    async fn current(&self, found: &v1::Service) -> Result<v1::Service, CommandError> {
        let what = format!("service {}", service_name(found));
        let current = self.client.services().get(&found.id).await;
        let current = current.map_err(|error| self.incomplete(&what, error))?;
        if current.spec == found.spec {
            return Ok(current);
        }
        let why = "another client has changed it since this command began";
        Err(CommandError::new(
            ExitKind::Conflict,
            self.incomplete_summary(&what),
            why,
            "run the command again",
        ))
    }

    fn incomplete(&self, object: &str, error: Error) -> CommandError {
        from_client(self.incomplete_summary(object), error)
    }

    fn incomplete_summary(&self, object: &str) -> String {
        match &self.report {
            DeployReport::Stack(stack) => format!("stack {stack} is incomplete: {object} was not deployed"),
            DeployReport::Documents { verb, done, .. } => {
                let changed = done.iter().filter(|step| step.action != "unchanged");
                let changed: Vec<String> =
                    changed.map(|step| format!("{} {}", step.kind, step.name)).collect();
                match changed.as_slice() {
                    [] => format!("{object} was not {verb}; nothing was changed"),
                    changed => format!("{object} was not {verb}; changed before it: {}", changed.join(", ")),
                }
            }
        }
    }

    /// Waits until these services have reached what their dependents need.
    async fn wait_for(&mut self, dependencies: &[StackDependency]) -> Result<(), CommandError> {
        for StackDependency { service, condition, .. } in dependencies {
            let completes = match condition {
                DependencyCondition::Created => continue,
                DependencyCondition::Ready => false,
                DependencyCondition::Completed => true,
            };
            if completes && let Some((spec, kept)) = self.kept.get(service.as_str()).cloned() {
                self.run_again_if_failed(&spec, &kept).await?;
            }
            let known = self.goals.remove(service.as_str());
            let goal = match (known, self.kept.remove(service.as_str()), self.ready.get(service.as_str())) {
                (Some(goal), _, _) => goal,
                (None, Some((_, kept)), _) => {
                    let goal = ServiceGoal::of_existing(self.client, &kept, WaitGoal::Scaled).await;
                    goal.map_err(|error| self.incomplete(&format!("service {service}"), error))?
                }
                // It was ready when another service waited for it.
                (None, None, Some(goal)) if completes && goal.goal != WaitGoal::Completed => goal.clone(),
                (None, None, _) => continue,
            };
            let goal = if completes { goal.completed() } else { goal };
            wait_all(self.client, std::slice::from_ref(&goal), self.global.timeout).await?;
            self.ready.insert(service.to_string(), goal);
        }
        Ok(())
    }

    /// The newest task of each slot.
    async fn current_tasks(&self, service: &v1::Service) -> Result<Vec<v1::Task>, CommandError> {
        let filter = TaskFilter { service: service.id.clone(), current: true, ..TaskFilter::default() };
        let tasks = self.client.tasks().list(filter).await;
        tasks.map_err(|error| self.incomplete(&format!("service {}", service_name(service)), error))
    }

    /// What unchanged services must reach that were not ready when the deployment began.
    async fn goals_of_kept(&self) -> Result<Vec<(String, ServiceGoal)>, CommandError> {
        let mut goals = Vec::new();
        for (spec, kept) in self.kept.values().filter(|(_, kept)| kept.running < kept.desired_tasks) {
            let goal = ServiceGoal::of_existing(self.client, kept, WaitGoal::Scaled).await;
            let mut goal = goal.map_err(|error| self.incomplete(&format!("service {}", spec.name), error))?;
            if spec.task.restart.condition == RestartCondition::None {
                // Nothing starts them again if they have failed.
                for task in self.current_tasks(kept).await? {
                    goal.finished_before.remove(&task.id);
                }
            }
            goals.push((spec.name.to_string(), goal));
        }
        Ok(goals)
    }

    /// A task that has ended with an error is not started again without a change: this deployment tries it again.
    async fn run_again_if_failed(
        &mut self,
        spec: &ServiceSpec,
        kept: &v1::Service,
    ) -> Result<(), CommandError> {
        let tasks = self.current_tasks(kept).await?;
        let has_failed =
            |task: &v1::Task| matches!(task_state(task.state), Ok(TaskState::Failed | TaskState::Rejected));
        if tasks.iter().any(has_failed) {
            self.kept.remove(spec.name.as_str());
            self.update(spec, kept, true).await?;
        }
        Ok(())
    }
}
