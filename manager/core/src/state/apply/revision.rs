//! Commands that change what a service's tasks run: update and rollback.

use std::collections::BTreeSet;
use std::mem::discriminant;
use std::sync::Arc;

use warren_types::{
    FailureOutcome, ImageDigest, NodeId, PullPolicy, Revision, RolloutFailure, RolloutKind, RolloutRecord,
    SecretObjectId, SecretObjectVersion, Service, ServiceId, ServiceSpec, TaskId, TaskSpec, Violation,
    Violations,
};

use super::task_defaults::{self, TaskDefaults};
use super::{ApplyContext, network, ports, service};
use crate::state::{CommandResponse, Refusal, State};

/// How many earlier revisions of a service are kept for rollbacks. Those that tasks still have are kept
/// beyond that.
pub const REVISION_HISTORY_LIMIT: usize = 10;

pub(super) fn update(
    state: &mut State,
    entry: &mut ApplyContext,
    id: ServiceId,
    version: Option<u64>,
    spec: &ServiceSpec,
    force: bool,
) -> Result<CommandResponse, Refusal> {
    let known = service::find_not_removing(state, id)?;
    let spec = &*ports::choose_automatic(state, id, spec)?;
    let secret_objects = state.resolve_secret_objects(&spec.task);
    // After a rollback to earlier secret object versions, the same spec means the current ones again.
    if *known.spec == *spec && secret_objects.as_ref() == Ok(&known.revision.secret_objects) && !force {
        return Ok(CommandResponse::Service(known.clone()));
    }
    let mut violations = Violations::default();
    violations.nest("spec", spec.validate());
    let secret_objects = secret_objects.unwrap_or_else(|missing| {
        violations.nest("spec.task", missing);
        Vec::new()
    });
    if known.spec.name != spec.name {
        violations
            .add("spec.name", format!("the service is called {}; a name cannot be changed", known.spec.name));
    }
    if discriminant(&known.spec.mode) != discriminant(&spec.mode) {
        violations.add(
            "spec.mode",
            "a replicated service stays replicated and a global one global; create a new service",
        );
    }
    if known.spec.per != spec.per {
        let message = match &known.spec.per {
            Some(label) => format!("the service has a task per value of {label}; that cannot be changed"),
            None => "the service has no tasks per value of a label; that cannot be changed".to_owned(),
        };
        violations.add("spec.per", format!("{message}; create a new service"));
    }
    network::check(state, id, spec, &mut violations);
    // A changed default must not replace the tasks of a service of which something else is changed.
    let defaults = match known.spec.task == spec.task && !force {
        true => TaskDefaults {
            user_namespace: known.revision.user_namespace,
            no_new_privileges: known.revision.default_no_new_privileges,
        },
        false => task_defaults::choose(state, &spec.task, &mut violations),
    };
    if force && version.is_none() {
        violations.0.push(version_required());
    }
    violations.into_result(()).map_err(Refusal::Invalid)?;
    service::check_version(known, version)?;
    let current = &known.revision;
    let next = Revision {
        number: current.number.saturating_add(1),
        created_at: entry.now,
        task: spec.task.clone(),
        ports: spec.ports.clone(),
        placement: spec.placement.clone(),
        force_count: if force { max_force_count(known).saturating_add(1) } else { current.force_count },
        secret_objects,
        labels: spec.template_labels(),
        user_namespace: defaults.user_namespace,
        default_no_new_privileges: defaults.no_new_privileges,
    };
    state.check_volumes_usable(&next)?;
    let kind = RolloutKind::Update;
    let next = (!is_identical(&next, current)).then_some(next);
    let next = next.map(|revision| {
        let pin = kept_pin(known, &revision.task, force).cloned();
        NextRevision { revision, pin, kind, failure: None }
    });
    let is_bootstrap_changed = known.spec.bootstrap != spec.bootstrap;
    let response = change(state, entry, id, spec.clone(), next)?;
    if is_bootstrap_changed {
        // The nodes of its tasks learn which of them start first.
        let nodes: BTreeSet<NodeId> =
            state.tasks_of(&id).filter(|task| task.holds_resources()).filter_map(|task| task.node).collect();
        nodes.into_iter().for_each(|node| state.bump_assignment(entry, node));
    }
    Ok(response)
}

pub(super) fn rollback(
    state: &mut State,
    entry: &mut ApplyContext,
    id: ServiceId,
    version: Option<u64>,
    desired: Option<u64>,
) -> Result<CommandResponse, Refusal> {
    let known = service::find_not_removing(state, id)?;
    let name = &known.spec.name;
    if desired.is_none() && version.is_none() {
        return Err(Refusal::Invalid(version_required().into()));
    }
    service::check_version(known, version)?;
    let target = match desired {
        Some(number) if number == known.revision.number => {
            return Ok(CommandResponse::Service(known.clone()));
        }
        Some(number) => {
            let found = known.history.iter().find(|revision| revision.number == number);
            found.ok_or_else(|| Refusal::RevisionNotFound { service: name.clone(), wanted: number })?
        }
        None => {
            let earlier = previous_revision(known);
            earlier.ok_or_else(|| Refusal::NoEarlierRevision { service: name.clone() })?
        }
    };
    let pin = known.pins.get(&target.number);
    if is_identical(target, &known.revision) && pin == known.pins.get(&known.revision.number) {
        state.check_restorable(known, target)?;
        return Ok(CommandResponse::Service(known.clone()));
    }
    let number = target.number;
    restore(state, entry, id, number, None)
}

/// The revision to which a rollback without a number goes: the one before the current one; if that is the rollback of a
/// failed update, the one before the restored one.
pub fn previous_revision(service: &Service) -> Option<&Arc<Revision>> {
    let restored = service.rollout.failures.iter().find_map(|failure| match failure.outcome {
        FailureOutcome::RolledBack { to } => Some(to),
        FailureOutcome::Paused(_) => None,
    });
    let mut newest_first = service.history.iter().rev();
    newest_first.find(|earlier| restored.is_none_or(|restored| earlier.number < restored))
}

/// Makes the tasks of an earlier revision the current ones again. `failure` is why, if no user requested it.
pub(super) fn restore(
    state: &mut State,
    entry: &mut ApplyContext,
    id: ServiceId,
    earlier: u64,
    failure: Option<RolloutFailure>,
) -> Result<CommandResponse, Refusal> {
    let known = service::find_not_removing(state, id)?;
    let target = known.history.iter().find(|revision| revision.number == earlier);
    let missing = || Refusal::RevisionNotFound { service: known.spec.name.clone(), wanted: earlier };
    let target = target.ok_or_else(missing)?;
    state.check_restorable(known, target)?;
    // It has the same `force_count`, so that tasks of the earlier revision that still run are not replaced.
    let number = known.revision.number.saturating_add(1);
    let revision = Revision { number, created_at: entry.now, ..(**target).clone() };
    let Revision { task, ports, placement, .. } = revision.clone();
    let spec = ServiceSpec { task, ports, placement, ..(*known.spec).clone() };
    let pin = known.pins.get(&earlier).cloned();
    change(state, entry, id, spec, Some(NextRevision { revision, pin, kind: RolloutKind::Rollback, failure }))
}

/// Gives a service whose current revision uses an earlier version of the secret object a revision with the
/// current one. Its image stays pinned: no user requested another, and no user changed the service.
pub(super) fn adopt_secret_object_version(
    state: &mut State,
    entry: &mut ApplyContext,
    id: ServiceId,
    content: SecretObjectId,
    number: u64,
) -> Result<(), Refusal> {
    let Some(known) = state.services.get(&id).filter(|service| !service.removing) else { return Ok(()) };
    let old = |used: &SecretObjectVersion| used.id == content && used.number < number;
    let Some(place) = known.revision.secret_objects.iter().position(old) else { return Ok(()) };
    let mut revision = Revision::clone(&known.revision);
    revision.secret_objects[place].number = number;
    (revision.number, revision.created_at) = (revision.number.saturating_add(1), entry.now);
    let pin = known.pins.get(&known.revision.number).cloned();
    let next = NextRevision { revision, pin, kind: RolloutKind::Update, failure: None };
    set_revision(state, entry, id, Some(next), |_| ()).map(drop)
}

/// The digest that the service keeps when it is updated to this task, without asking the registry again.
pub fn kept_pin<'s>(service: &'s Service, next: &TaskSpec, force: bool) -> Option<&'s ImageDigest> {
    let Revision { number, task, .. } = &*service.revision;
    let is_kept = !force
        && (&task.image, task.image_resolver()) == (&next.image, next.image_resolver())
        && next.pull != PullPolicy::Always;
    service.pins.get(number).filter(|_| is_kept)
}

/// They differ only in their numbers.
fn is_identical(one: &Revision, other: &Revision) -> bool {
    let Revision {
        number: _,
        created_at: _,
        task,
        ports,
        placement,
        force_count: forced,
        secret_objects,
        labels,
        user_namespace,
        default_no_new_privileges,
    } = one;
    (task, ports, placement, forced) == (&other.task, &other.ports, &other.placement, &other.force_count)
        && (secret_objects, labels) == (&other.secret_objects, &other.labels)
        && (user_namespace, default_no_new_privileges)
            == (&other.user_namespace, &other.default_no_new_privileges)
}

/// A request that would have an effect again if repeated needs the version of the service.
fn version_required() -> Violation {
    Violation::new("version", "is missing; it is required for requests that are not idempotent")
}

/// Of all revisions of the service: a forced one must differ from each of them.
fn max_force_count(service: &Service) -> u64 {
    let revisions = service.history.iter().chain([&service.revision]);
    revisions.map(|revision| revision.force_count).max().unwrap_or(0)
}

/// The revision that becomes the current one.
struct NextRevision {
    revision: Revision,
    /// Its image, if that is known.
    pin: Option<ImageDigest>,
    /// Which policy its rollout follows.
    kind: RolloutKind,
    /// The failure of the current revision, which is rolled back.
    failure: Option<RolloutFailure>,
}

/// Gives the service the spec and, if there is one, the revision.
fn change(
    state: &mut State,
    entry: &mut ApplyContext,
    id: ServiceId,
    spec: ServiceSpec,
    next: Option<NextRevision>,
) -> Result<CommandResponse, Refusal> {
    ports::check(state, id, &spec.ports)?;
    let addresses = state.services.get(&id).map(|known| {
        let revisions = known.history.iter().chain([&known.revision]).map(|earlier| &earlier.task);
        let networks = network::virtual_networks(state, spec.endpoint_mode, revisions.chain([&spec.task]));
        network::plan_virtual_addresses(state, &spec.name, &known.virtual_addresses, networks)
    });
    let addresses = addresses.transpose()?;
    let before = state.services.get(&id).map(|service| service.spec.clone());
    state.index.publish(id, &spec.ports);
    before.into_iter().for_each(|before| state.index.unpublish(&before.ports));
    let now = entry.now;
    let answer = set_revision(state, entry, id, next, |service| {
        service.spec = Arc::new(spec);
        service::mark_updated(service, now);
    })?;
    if let Some(addresses) = addresses {
        network::set_virtual_addresses(state, entry, id, addresses);
    }
    state.mark_surplus_tasks(entry, &id);
    Ok(answer)
}

/// Makes the change, and the revision, if there is one, the current one.
fn set_revision(
    state: &mut State,
    entry: &mut ApplyContext,
    id: ServiceId,
    next: Option<NextRevision>,
    change: impl FnOnce(&mut Service),
) -> Result<CommandResponse, Refusal> {
    if let (Some(next), Some(service)) = (&next, state.services.get(&id)) {
        state.index.add_user(id, &next.revision);
        state.index.remove_user(id, &service.revision);
    }
    let users = state.revisions_in_use(id);
    let is_ready = state.has_ready_task(id);
    service::change(state, entry, id, |service| {
        change(service);
        let Some(NextRevision { revision, pin, kind, failure }) = next else { return };
        if let Some(pin) = pin.or_else(|| revision.task.image.digest()) {
            service.pins.insert(revision.number, pin);
        }
        let before = std::mem::replace(&mut service.revision, Arc::new(revision));
        // If no revision was complete yet, one that serves is better than none.
        let good_revision = match service.rollout.good_revision {
            0 if is_ready => before.number,
            good => good,
        };
        let failures = failure.into_iter().collect();
        service.rollout = RolloutRecord { good_revision, kind, failures, ..RolloutRecord::default() };
        service.history.push(before);
        prune(service, &users);
    })
}

/// Deletes earlier revisions that no task has and that are not among the newest, and their pinned digests. The
/// one to which a failed update goes back stays. `users` are the numbers of the revisions that tasks have.
fn prune(service: &mut Service, users: &BTreeSet<u64>) {
    let mut beyond = service.history.len().saturating_sub(REVISION_HISTORY_LIMIT);
    let good = service.rollout.good_revision;
    service.history.retain(|revision| {
        let old = beyond > 0;
        beyond = beyond.saturating_sub(1);
        !old || users.contains(&revision.number) || revision.number == good
    });
    let Service { history, pins, revision, .. } = service;
    let known = |number: &u64| *number == revision.number || history.iter().any(|old| old.number == *number);
    pins.retain(|number, _| known(number));
}

impl State {
    /// Whether the earlier revision can become the current one again: everything that it uses still exists.
    pub(crate) fn check_restorable(&self, service: &Service, earlier: &Revision) -> Result<(), Refusal> {
        self.check_kept_versions(&service.spec.name, earlier)?;
        self.check_volumes_usable(earlier)?;
        self.check_networks_exist(&service.spec.name, earlier)?;
        ports::check(self, service.id, &earlier.ports)
    }

    /// Whether a task of the service's current revision receives traffic.
    fn has_ready_task(&self, id: ServiceId) -> bool {
        let Some(service) = self.services.get(&id) else { return false };
        let mut numbers = self.index.live_tasks_of_revision(id, service.revision.number);
        let task = |number| self.tasks.get(&TaskId { service: id, number });
        numbers.any(|number| task(number).is_some_and(|task| task.observed.ready))
    }

    /// The numbers of the revisions that tasks of the service have, records of terminal ones included.
    pub(super) fn revisions_in_use(&self, id: ServiceId) -> BTreeSet<u64> {
        let revisions = self.index.revision_users.range((id, 0)..=(id, u64::MAX));
        revisions.map(|((_, number), _)| *number).collect()
    }

    /// Deletes the revisions of a service that are not needed any more.
    pub(super) fn prune_revisions(&mut self, entry: &mut ApplyContext, id: ServiceId) {
        let users = self.revisions_in_use(id);
        let beyond = self
            .services
            .get(&id)
            .map_or(0, |service| service.history.len().saturating_sub(REVISION_HISTORY_LIMIT));
        let unused = |service: &Arc<Service>| {
            let good = service.rollout.good_revision;
            let is_needed = |number| number == good || users.contains(&number);
            service.history[..beyond].iter().any(|revision| !is_needed(revision.number))
        };
        if self.services.get(&id).is_some_and(unused) {
            self.update_service_status(entry, id, |service| prune(service, &users));
        }
    }
}
