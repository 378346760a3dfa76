//! Commands on services.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_types::spec::MAX_REPLICAS;
use warren_types::{
    Revision, RolloutRecord, Service, ServiceId, ServiceMode, ServiceSpec, Timestamp, Violation, Violations,
};

use super::{ApplyContext, network, ports, task_defaults};
use crate::state::{CommandResponse, ObjectKind, Refusal, State, StateChange, digest};

pub(super) fn create(
    state: &mut State,
    entry: &mut ApplyContext,
    id: ServiceId,
    spec: &ServiceSpec,
) -> Result<CommandResponse, Refusal> {
    let mut violations = Violations::default();
    violations.nest("spec", spec.validate());
    let taken = |name: String| Err(Refusal::AlreadyExists { kind: ObjectKind::Service, name });
    let spec = &*ports::choose_automatic(state, id, spec)?;
    if let Some(same) = state.services.get(&id) {
        return check_repeat(same, spec);
    }
    let secret_objects = state.resolve_secret_objects(&spec.task).unwrap_or_else(|missing| {
        violations.nest("spec.task", missing);
        Vec::new()
    });
    network::check(state, id, spec, &mut violations);
    let defaults = task_defaults::choose(state, &spec.task, &mut violations);
    violations.into_result(()).map_err(Refusal::Invalid)?;
    if state.index.service_names.contains_key(&spec.name) {
        return taken(spec.name.to_string());
    }
    ports::check(state, id, &spec.ports)?;
    let revision = Revision {
        number: 1,
        created_at: entry.now,
        task: spec.task.clone(),
        ports: spec.ports.clone(),
        placement: spec.placement.clone(),
        force_count: 0,
        secret_objects,
        labels: spec.template_labels(),
        user_namespace: defaults.user_namespace,
        default_no_new_privileges: defaults.no_new_privileges,
    };
    state.check_volumes_usable(&revision)?;
    let networks = network::virtual_networks(state, spec.endpoint_mode, [&spec.task].into_iter());
    let virtual_addresses = network::plan_virtual_addresses(state, &spec.name, &BTreeMap::new(), networks)?;
    let service = Service {
        id,
        version: entry.index,
        created_at: entry.now,
        updated_at: entry.now,
        spec: Arc::new(spec.clone()),
        pins: spec.task.image.digest().map(|pin| (revision.number, pin)).into_iter().collect(),
        revision: Arc::new(revision),
        history: Vec::new(),
        removing: false,
        next_task_number: 1,
        rollout: RolloutRecord::default(),
        virtual_addresses,
    };
    state.index.add_service(&service);
    state.digest_sum.add(digest::service(&service));
    let service = Arc::new(service);
    state.services.insert(id, service.clone());
    entry.changes.push(StateChange::Service(id));
    Ok(CommandResponse::Service(service))
}

/// A create with the id of an existing service. If users changed it since, that was their write, even if it
/// equals the request.
fn check_repeat(known: &Arc<Service>, spec: &ServiceSpec) -> Result<CommandResponse, Refusal> {
    let name = known.spec.name.clone();
    if name != spec.name {
        return Err(Refusal::AlreadyExists { kind: ObjectKind::Service, name: name.to_string() });
    }
    if known.removing {
        return Err(Refusal::ServiceRemoving { service: name });
    }
    // A new version of a secret object gives the service a revision without a change by a user.
    let is_changed_by_people = known.updated_at > known.created_at;
    match *known.spec == *spec {
        _ if is_changed_by_people => Err(Refusal::ChangedSinceCreated {
            kind: ObjectKind::Service,
            name: name.to_string(),
            found: known.version,
        }),
        true => Ok(CommandResponse::Service(known.clone())),
        false => Err(Refusal::AlreadyExists { kind: ObjectKind::Service, name: name.to_string() }),
    }
}

pub(super) fn scale(
    state: &mut State,
    entry: &mut ApplyContext,
    id: ServiceId,
    version: Option<u64>,
    replicas: u32,
) -> Result<CommandResponse, Refusal> {
    let service = find_not_removing(state, id)?;
    let Some(current) = service.spec.replicas() else {
        let per = service.spec.per.as_ref().map_or("node".to_owned(), |label| format!("value of {label}"));
        let message = format!("{} is a global service: it has one task per {per}", service.spec.name);
        return Err(Refusal::Invalid(Violation::new("replicas", message).into()));
    };
    if current == replicas {
        return Ok(CommandResponse::Service(service.clone()));
    }
    if replicas > MAX_REPLICAS {
        let message = format!("{replicas} is more than {MAX_REPLICAS}");
        return Err(Refusal::Invalid(Violation::new("replicas", message).into()));
    }
    check_version(service, version)?;
    let answer = update(state, entry, id, |service| {
        Arc::make_mut(&mut service.spec).mode = ServiceMode::Replicated { replicas };
    })?;
    state.mark_surplus_tasks(entry, &id);
    Ok(answer)
}

pub(super) fn remove(
    state: &mut State,
    entry: &mut ApplyContext,
    id: ServiceId,
    version: Option<u64>,
    force: bool,
) -> Result<CommandResponse, Refusal> {
    let service = find(state, id)?;
    if service.removing {
        return Ok(CommandResponse::Service(service.clone()));
    }
    if service.spec.bootstrap && !force {
        return Err(Refusal::BootstrapService { service: service.spec.name.clone() });
    }
    check_version(service, version)?;
    let revision = service.revision.clone();
    state.index.remove_user(id, &revision);
    let answer = update(state, entry, id, |service| service.removing = true)?;
    state.bump_log_nodes(entry, &id);
    Ok(answer)
}

pub(super) fn delete(
    state: &mut State,
    entry: &mut ApplyContext,
    id: ServiceId,
) -> Result<CommandResponse, Refusal> {
    let Some(service) = state.services.get(&id) else { return Ok(CommandResponse::Done) };
    let tasks = state.task_counts(&id).tasks;
    if !service.removing || tasks > 0 {
        return Err(Refusal::ServiceInUse { service: service.spec.name.clone(), tasks });
    }
    network::set_virtual_addresses(state, entry, id, BTreeMap::new());
    let Some(service) = state.services.remove(&id) else { return Ok(CommandResponse::Done) };
    state.index.remove_service(&service);
    state.digest_sum.remove(digest::service(&service));
    entry.changes.push(StateChange::Service(id));
    Ok(CommandResponse::Done)
}

fn find(state: &State, id: ServiceId) -> Result<&Arc<Service>, Refusal> {
    state.services.get(&id).ok_or_else(|| Refusal::not_found(ObjectKind::Service, id))
}

/// A service that is not being removed.
pub(super) fn find_not_removing(state: &State, id: ServiceId) -> Result<&Arc<Service>, Refusal> {
    let service = find(state, id)?;
    match service.removing {
        true => Err(Refusal::ServiceRemoving { service: service.spec.name.clone() }),
        false => Ok(service),
    }
}

pub(super) fn check_version(service: &Service, desired: Option<u64>) -> Result<(), Refusal> {
    match desired {
        Some(required) if required != service.version => Err(Refusal::VersionConflict {
            kind: ObjectKind::Service,
            name: service.spec.name.to_string(),
            expected: required,
            found: service.version,
        }),
        _ => Ok(()),
    }
}

/// Applies a user's change to a service.
pub(super) fn update(
    state: &mut State,
    entry: &mut ApplyContext,
    id: ServiceId,
    change: impl FnOnce(&mut Service),
) -> Result<CommandResponse, Refusal> {
    let now = entry.now;
    self::change(state, entry, id, |service| {
        change(service);
        mark_updated(service, now);
    })
}

/// A user changes the service. The time rises with each change, also if the clock does not, so that a changed
/// service differs from one that was only created.
pub(super) fn mark_updated(service: &mut Service, now: Timestamp) {
    service.updated_at = now.max(Timestamp(service.updated_at.0.saturating_add(1)));
}

/// Changes a service and sets its version.
pub(super) fn change(
    state: &mut State,
    entry: &mut ApplyContext,
    id: ServiceId,
    change: impl FnOnce(&mut Service),
) -> Result<CommandResponse, Refusal> {
    let shared = state.services.get_mut(&id).ok_or_else(|| Refusal::not_found(ObjectKind::Service, id))?;
    state.digest_sum.remove(digest::service(shared));
    let service = Arc::make_mut(shared);
    change(service);
    service.version = entry.index;
    state.digest_sum.add(digest::service(service));
    entry.changes.push(StateChange::Service(id));
    Ok(CommandResponse::Service(shared.clone()))
}
