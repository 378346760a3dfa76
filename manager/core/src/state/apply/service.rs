//! Commands on services.

use std::sync::Arc;

use warren_types::spec::MAX_REPLICAS;
use warren_types::{
    Mode, PublishedPort, Revision, Service, ServiceId, ServiceSpec, Timestamp, Violation, Violations,
};

use super::{Entry, revision};
use crate::state::{Answer, Change, Kind, Refusal, State, digest};

pub(super) fn create(
    state: &mut State,
    entry: &mut Entry,
    id: ServiceId,
    spec: &ServiceSpec,
) -> Result<Answer, Refusal> {
    let mut wrong = Violations::default();
    wrong.nest("spec", spec.validate());
    let taken = |name: String| Err(Refusal::AlreadyExists { kind: Kind::Service, name });
    if let Some(same) = state.services.get(&id) {
        return repeat(same, spec);
    }
    let contents = state.resolve(&spec.task).unwrap_or_else(|missing| {
        wrong.nest("spec.task", missing);
        Vec::new()
    });
    wrong.into_result(()).map_err(Refusal::Invalid)?;
    if state.index.service_names.contains_key(&spec.name) {
        return taken(spec.name.to_string());
    }
    ports_are_free(state, id, &spec.ports)?;
    let revision = Revision {
        number: 1,
        created_at: entry.now,
        task: spec.task.clone(),
        ports: spec.ports.clone(),
        placement: spec.placement.clone(),
        forced: 0,
        contents,
        labels: spec.template_labels(),
    };
    state.volumes_stay(&revision)?;
    let service = Service {
        id,
        version: entry.index,
        created_at: entry.now,
        updated_at: entry.now,
        spec: Arc::new(spec.clone()),
        pins: revision::own_pin(&spec.task).map(|pin| (revision.number, pin)).into_iter().collect(),
        revision: Arc::new(revision),
        history: Vec::new(),
        removing: false,
        next_task: 1,
    };
    state.index.add_service(&service);
    state.sum.add(digest::service(&service));
    let service = Arc::new(service);
    state.services.insert(id, service.clone());
    entry.changes.push(Change::Service(id));
    Ok(Answer::Service(service))
}

/// A create with the id of a service that is there. What people made of it since is their write, also if that is what
/// the request asks for.
fn repeat(known: &Arc<Service>, spec: &ServiceSpec) -> Result<Answer, Refusal> {
    let name = known.spec.name.clone();
    if name != spec.name {
        return Err(Refusal::AlreadyExists { kind: Kind::Service, name: name.to_string() });
    }
    if known.removing {
        return Err(Refusal::Removing { service: name });
    }
    // A new version of a content gives the service a revision without anybody having changed it.
    let is_changed_by_people = known.updated_at > known.created_at;
    match *known.spec == *spec {
        _ if is_changed_by_people => Err(Refusal::ChangedSinceCreated {
            kind: Kind::Service,
            name: name.to_string(),
            found: known.version,
        }),
        true => Ok(Answer::Service(known.clone())),
        false => Err(Refusal::AlreadyExists { kind: Kind::Service, name: name.to_string() }),
    }
}

pub(super) fn scale(
    state: &mut State,
    entry: &mut Entry,
    id: ServiceId,
    version: Option<u64>,
    replicas: u32,
) -> Result<Answer, Refusal> {
    let service = find_staying(state, id)?;
    let Some(current) = service.spec.replicas() else {
        let message = format!("{} is a global service: it has one task per node", service.spec.name);
        return Err(Refusal::Invalid(Violation::new("replicas", message).into()));
    };
    if current == replicas {
        return Ok(Answer::Service(service.clone()));
    }
    if replicas > MAX_REPLICAS {
        let message = format!("{replicas} is more than {MAX_REPLICAS}");
        return Err(Refusal::Invalid(Violation::new("replicas", message).into()));
    }
    has_version(service, version)?;
    update(state, entry, id, |service| {
        Arc::make_mut(&mut service.spec).mode = Mode::Replicated { replicas };
    })
}

pub(super) fn remove(
    state: &mut State,
    entry: &mut Entry,
    id: ServiceId,
    version: Option<u64>,
) -> Result<Answer, Refusal> {
    let service = find(state, id)?;
    if service.removing {
        return Ok(Answer::Service(service.clone()));
    }
    has_version(service, version)?;
    let revision = service.revision.clone();
    state.index.unuse_by(id, &revision);
    update(state, entry, id, |service| service.removing = true)
}

pub(super) fn delete(state: &mut State, entry: &mut Entry, id: ServiceId) -> Result<Answer, Refusal> {
    let Some(service) = state.services.get(&id) else { return Ok(Answer::Done) };
    let tasks = state.counts(&id).tasks;
    if !service.removing || tasks > 0 {
        return Err(Refusal::InUse { service: service.spec.name.clone(), tasks });
    }
    state.index.remove_service(service);
    state.sum.remove(digest::service(service));
    state.services.remove(&id);
    entry.changes.push(Change::Service(id));
    Ok(Answer::Done)
}

fn find(state: &State, id: ServiceId) -> Result<&Arc<Service>, Refusal> {
    state.services.get(&id).ok_or_else(|| Refusal::not_found(Kind::Service, id))
}

/// A service that people may still change.
pub(super) fn find_staying(state: &State, id: ServiceId) -> Result<&Arc<Service>, Refusal> {
    let service = find(state, id)?;
    match service.removing {
        true => Err(Refusal::Removing { service: service.spec.name.clone() }),
        false => Ok(service),
    }
}

/// No other service publishes one of the ports.
pub(super) fn ports_are_free(state: &State, id: ServiceId, ports: &[PublishedPort]) -> Result<(), Refusal> {
    for port in ports {
        let owner = state.index.other_publisher(port, id).and_then(|id| state.services.get(&id));
        if let Some(owner) = owner {
            return Err(Refusal::PortTaken { port: *port, owner: owner.spec.name.clone() });
        }
    }
    Ok(())
}

pub(super) fn has_version(service: &Service, wanted: Option<u64>) -> Result<(), Refusal> {
    match wanted {
        Some(wanted) if wanted != service.version => Err(Refusal::VersionConflict {
            kind: Kind::Service,
            name: service.spec.name.to_string(),
            wanted,
            found: service.version,
        }),
        _ => Ok(()),
    }
}

/// Makes a person's change to a service.
pub(super) fn update(
    state: &mut State,
    entry: &mut Entry,
    id: ServiceId,
    change: impl FnOnce(&mut Service),
) -> Result<Answer, Refusal> {
    let now = entry.now;
    self::change(state, entry, id, |service| {
        change(service);
        mark_updated(service, now);
    })
}

/// A person changes the service. The time rises with each change, also where the clock does not, so that a service that
/// people changed differs from one that they only created.
pub(super) fn mark_updated(service: &mut Service, now: Timestamp) {
    service.updated_at = now.max(Timestamp(service.updated_at.0.saturating_add(1)));
}

/// Makes a change to a service, with a version of its own.
pub(super) fn change(
    state: &mut State,
    entry: &mut Entry,
    id: ServiceId,
    change: impl FnOnce(&mut Service),
) -> Result<Answer, Refusal> {
    let shared = state.services.get_mut(&id).ok_or_else(|| Refusal::not_found(Kind::Service, id))?;
    state.sum.remove(digest::service(shared));
    let service = Arc::make_mut(shared);
    change(service);
    service.version = entry.index;
    state.sum.add(digest::service(service));
    entry.changes.push(Change::Service(id));
    Ok(Answer::Service(shared.clone()))
}
