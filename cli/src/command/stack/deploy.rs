//! `warren deploy`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use warren_client::{Client, Error, NewNetwork, NewSecretObject, NewVolume, TaskFilter};
use warren_compose::stack::{
    DependencyCondition, SecretObjectSource, StackDependency, StackNetwork, StackSecretObject, StackVolume,
};
use warren_compose::{Project, Variables};
use warren_proto::convert::task_state;
use warren_proto::v1;
use warren_types::secret_object::MAX_SECRET_OBJECT_SIZE;
use warren_types::{
    Id, NetworkId, RestartCondition, SecretObjectId, SecretObjectName, ServiceId, ServiceSpec, TaskState,
    VolumeId,
};
use zeroize::Zeroizing;

use super::files::{LoadedStack, load_stack};
use super::members::{self, StackMembers, service_name};
use super::plan::{DeployPlan, DeployStep, plan};
use super::{build, local_paths};
use crate::args::{GlobalArgs, StackDeployArgs};
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind, from_client};
use crate::input;
use crate::output;
use crate::view::now;
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
    let checked_plan = |objects: &_, existing: &StackMembers| {
        without_conflicts(plan(name.as_str(), objects, existing, args.prune), &what)
    };
    let mut plan = checked_plan(&objects, &existing)?;
    if args.dry_run {
        let builds = build::images(&objects).filter(|_| args.build);
        let view = |image: &str| StackStepView { action: "build", kind: "image".into(), name: image.into() };
        let steps = builds.map(view).chain(plan.steps.iter().map(shown));
        return output::print_list(global.output, &steps.collect::<Vec<_>>(), now());
    }
    // Read and built before anything is changed.
    let mut data = read_data(&objects.secret_objects, &project, &what)?;
    local_paths::create(&missing, &what)?;
    if args.build && build::run(global, &client, &mut objects, &what).await? {
        plan = checked_plan(&objects, &existing)?;
    }
    for warning in &plan.warnings {
        eprintln!("warning: {warning}");
    }
    let mut deployment = Deployment {
        global,
        client: &client,
        stack: name.as_str(),
        goals: BTreeMap::new(),
        kept: BTreeMap::new(),
        ready: BTreeMap::new(),
        with_new_data: BTreeSet::new(),
        changed: BTreeSet::new(),
    };
    for step in plan.steps {
        deployment.execute(step, &mut data).await?;
    }
    if !args.detach {
        let goals = deployment.remaining_goals().await?;
        wait_all(&client, &goals, global.timeout).await?;
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

/// The step as a line of a dry run.
fn shown(step: &DeployStep) -> StackStepView {
    let view = |action, kind: &str, name: &str| StackStepView {
        action,
        kind: kind.to_owned(),
        name: name.to_owned(),
    };
    match step {
        DeployStep::CreateNetwork(network) => view("create", "network", network.name.as_str()),
        DeployStep::CreateVolume(volume) => view("create", "volume", volume.name.as_str()),
        DeployStep::CreateSecretObject(object) => view("create", object.kind.as_str(), object.name.as_str()),
        DeployStep::UpdateSecretObject(object) => {
            view("update if its data differs", object.kind.as_str(), object.name.as_str())
        }
        DeployStep::CreateService { spec, .. } => view("create", "service", spec.name.as_str()),
        DeployStep::UpdateService { spec, .. } => view("update", "service", spec.name.as_str()),
        DeployStep::KeepService { found, .. } => view("keep", "service", service_name(found)),
        DeployStep::RemoveService { found } => view("remove", "service", service_name(found)),
    }
}

/// The data of secrets and configs, by their names.
type SecretObjectData = BTreeMap<(&'static str, SecretObjectName), Zeroizing<Vec<u8>>>;

fn read_data(
    objects: &[StackSecretObject],
    project: &Project,
    what: &str,
) -> Result<SecretObjectData, CommandError> {
    let mut data = SecretObjectData::new();
    for object in objects {
        let bytes = match &object.source {
            SecretObjectSource::File(path) => {
                let read = input::read_secret_object(object.kind, Path::new(path), what);
                read.map_err(|error| CommandError {
                    why: object.defined.problem(&error.why).to_string(),
                    ..error
                })?
            }
            SecretObjectSource::Content(text) => Zeroizing::new(text.clone().into_bytes()),
            SecretObjectSource::Variable(name) => variable(&project.variables, name, object, what)?,
        };
        if bytes.is_empty() || bytes.len() > MAX_SECRET_OBJECT_SIZE {
            let why = object.defined.problem(format!("has {} bytes", bytes.len())).to_string();
            let hint = format!("give 1 to {MAX_SECRET_OBJECT_SIZE} bytes");
            return Err(CommandError::new(ExitKind::Usage, what, why, hint));
        }
        data.insert((object.kind.as_str(), object.name.clone()), bytes);
    }
    Ok(data)
}

fn variable(
    variables: &Variables,
    name: &str,
    object: &StackSecretObject,
    what: &str,
) -> Result<Zeroizing<Vec<u8>>, CommandError> {
    let value = variables.get(name).ok_or_else(|| {
        let why = object.defined.problem(format!("the variable {name} is not set")).to_string();
        CommandError::new(ExitKind::Usage, what, why, "set it in the environment or in the env file")
    })?;
    Ok(Zeroizing::new(value.clone().into_bytes()))
}

/// Executes steps one after the other.
struct Deployment<'a> {
    global: &'a GlobalArgs,
    client: &'a Client,
    stack: &'a str,
    /// What changed services have not reached yet, by their names.
    goals: BTreeMap<String, ServiceGoal>,
    /// Unchanged services, for which only services wait that depend on them.
    kept: BTreeMap<String, (Box<ServiceSpec>, v1::Service)>,
    /// What services were waited for and have reached.
    ready: BTreeMap<String, ServiceGoal>,
    /// Services that use a secret or config with a new version, which made a new revision of each.
    with_new_data: BTreeSet<String>,
    /// Services that existed and have a new revision.
    changed: BTreeSet<String>,
}

impl Deployment<'_> {
    async fn execute(&mut self, step: DeployStep, data: &mut SecretObjectData) -> Result<(), CommandError> {
        match step {
            DeployStep::CreateNetwork(network) => {
                let StackNetwork { defined: _, name, labels, internal } = network;
                let new = NewNetwork { id: NetworkId(Id(rand::random())), name, labels, internal };
                let what = format!("network {}", new.name);
                let created = self.client.networks().create(new).await;
                created.map_err(|error| self.incomplete(&what, error))?;
                eprintln!("{what} created");
            }
            DeployStep::CreateVolume(volume) => {
                let StackVolume { defined: _, name, labels, driver, options } = volume;
                let (id, driver) = (VolumeId(Id(rand::random())), driver.as_str().to_owned());
                let new = NewVolume { id, name, driver, options, labels, node: String::new(), reuse: false };
                let what = format!("volume {}", new.name);
                let created = self.client.volumes().create(new).await;
                created.map_err(|error| self.incomplete(&what, error))?;
                eprintln!("{what} created");
            }
            DeployStep::CreateSecretObject(object) => {
                let what = format!("{} {}", object.kind, object.name);
                let data = data.remove(&(object.kind.as_str(), object.name.clone())).unwrap_or_default();
                let id = SecretObjectId(Id(rand::random()));
                let new = NewSecretObject { id, name: object.name, labels: object.labels, data };
                let created = self.client.secret_objects(object.kind).create(new).await;
                created.map_err(|error| self.incomplete(&what, error))?;
                eprintln!("{what} created");
            }
            DeployStep::UpdateSecretObject(object) => {
                let what = format!("{} {}", object.kind, object.name);
                let data = data.remove(&(object.kind.as_str(), object.name.clone())).unwrap_or_default();
                let objects = self.client.secret_objects(object.kind);
                let failed = |error| self.incomplete(&what, error);
                let before = objects.get(object.name.as_str()).await.map_err(failed)?;
                let after = objects.update(&before.id, data, None).await.map_err(failed)?;
                if after.version_number != before.version_number {
                    eprintln!("{what} updated: version {}", after.version_number);
                    self.with_new_data.extend(after.services);
                }
            }
            step => self.execute_service(step).await?,
        }
        Ok(())
    }

    async fn execute_service(&mut self, step: DeployStep) -> Result<(), CommandError> {
        match step {
            DeployStep::CreateService { spec, after } => {
                self.wait_for(&after).await?;
                let what = format!("service {}", spec.name);
                let created = self.client.services().create(ServiceId(Id(rand::random())), &spec).await;
                let created = created.map_err(|error| self.incomplete(&what, error))?;
                eprintln!("{what} created");
                self.goals.insert(spec.name.to_string(), ServiceGoal::new(&created, WaitGoal::Running));
            }
            DeployStep::UpdateService { spec, after, found } => {
                self.wait_for(&after).await?;
                let force = after.iter().any(|one| one.restart && self.has_changed(one));
                self.update(&spec, &found, force).await?;
            }
            DeployStep::KeepService { spec, after, found } => {
                let name = service_name(&found).to_owned();
                let restarted = after.iter().find(|one| one.restart && self.has_changed(one));
                if let Some(dependency) = restarted {
                    eprintln!("service {name} is restarted after {}", dependency.service);
                    self.wait_for(&after).await?;
                    return self.update(&spec, &found, true).await;
                }
                let has_new_data = self.with_new_data.contains(&name);
                let current = if has_new_data { self.current(&found).await? } else { (*found).clone() };
                if current.revision == found.revision {
                    eprintln!("service {name} is unchanged");
                    self.kept.insert(name, (spec, *found));
                } else {
                    let goal = ServiceGoal::of_existing(self.client, &current, WaitGoal::Updated).await;
                    let goal = goal.map_err(|error| self.incomplete(&format!("service {name}"), error))?;
                    eprintln!("service {name} gets the new data: revision {}", current.revision);
                    self.changed.insert(name.clone());
                    self.goals.insert(name, goal);
                }
            }
            DeployStep::RemoveService { found } => {
                let what = format!("service {}", service_name(&found));
                match self.client.services().remove(&found.id, None, false).await {
                    // Removed by another client, or by an earlier attempt of this request.
                    Err(error) if error.is_not_found() => {}
                    Err(error) => return Err(self.incomplete(&what, error)),
                    Ok(_) => eprintln!("{what} removed"),
                }
                let goal = ServiceGoal::new(&found, WaitGoal::Gone);
                self.goals.insert(service_name(&found).to_owned(), goal);
            }
            DeployStep::CreateNetwork(_)
            | DeployStep::CreateVolume(_)
            | DeployStep::CreateSecretObject(_)
            | DeployStep::UpdateSecretObject(_) => {}
        }
        Ok(())
    }

    fn has_changed(&self, dependency: &StackDependency) -> bool {
        self.changed.contains(dependency.service.as_str())
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
        eprintln!("{what} updated: revision {}", updated.revision);
        self.changed.insert(spec.name.to_string());
        self.goals.insert(spec.name.to_string(), goal.after_write(&updated));
        Ok(())
    }

    /// The service as it is now; new data of its secrets and configs made new versions of it.
    async fn current(&self, found: &v1::Service) -> Result<v1::Service, CommandError> {
        let what = format!("service {}", service_name(found));
        let current = self.client.services().get(&found.id).await;
        let current = current.map_err(|error| self.incomplete(&what, error))?;
        if current.spec == found.spec {
            return Ok(current);
        }
        let summary = format!("stack {} is incomplete: {what} was not deployed", self.stack);
        let why = "another client has changed it since this command began";
        Err(CommandError::new(ExitKind::Conflict, summary, why, "run the command again"))
    }

    fn incomplete(&self, object: &str, error: Error) -> CommandError {
        from_client(format!("stack {} is incomplete: {object} was not deployed", self.stack), error)
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

    /// What changed services must reach, and unchanged ones that were not ready when the deployment began.
    async fn remaining_goals(self) -> Result<Vec<ServiceGoal>, CommandError> {
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
            goals.push(goal);
        }
        goals.extend(self.goals.into_values());
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
