//! Commands that change what a service's tasks run: update and rollback.

use std::collections::BTreeSet;
use std::mem::discriminant;
use std::sync::Arc;

use warren_types::{
    ContentId, ContentUse, ImageDigest, Revision, Service, ServiceId, ServiceSpec, TaskSpec, Violation,
    Violations,
};

use super::{Entry, service};
use crate::state::{Answer, Refusal, State};

/// How many earlier revisions of a service can be returned to. Those that tasks still have are kept beyond that.
pub const HISTORY: usize = 10;

pub(super) fn update(
    state: &mut State,
    entry: &mut Entry,
    id: ServiceId,
    version: Option<u64>,
    spec: &ServiceSpec,
    force: bool,
) -> Result<Answer, Refusal> {
    let known = service::find_staying(state, id)?;
    let contents = state.resolve(&spec.task);
    // After a rollback to earlier contents, the same spec means the current ones again.
    if *known.spec == *spec && contents.as_ref() == Ok(&known.revision.contents) && !force {
        return Ok(Answer::Service(known.clone()));
    }
    let mut wrong = Violations::default();
    wrong.nest("spec", spec.validate());
    let contents = contents.unwrap_or_else(|missing| {
        wrong.nest("spec.task", missing);
        Vec::new()
    });
    if known.spec.name != spec.name {
        wrong
            .add("spec.name", format!("the service is called {}; a name cannot be changed", known.spec.name));
    }
    if discriminant(&known.spec.mode) != discriminant(&spec.mode) {
        wrong.add(
            "spec.mode",
            "a replicated service stays replicated and a global one global; make a new one",
        );
    }
    if force && version.is_none() {
        wrong.0.push(once_per_version());
    }
    wrong.into_result(()).map_err(Refusal::Invalid)?;
    service::has_version(known, version)?;
    let current = &known.revision;
    let next = Revision {
        number: current.number.saturating_add(1),
        created_at: entry.now,
        task: spec.task.clone(),
        ports: spec.ports.clone(),
        placement: spec.placement.clone(),
        forced: if force { most_forced(known).saturating_add(1) } else { current.forced },
        contents,
        labels: spec.template_labels(),
    };
    state.volumes_stay(&next)?;
    let next = (!same_content(&next, current)).then_some(next);
    change(state, entry, id, spec.clone(), next, None)
}

pub(super) fn rollback(
    state: &mut State,
    entry: &mut Entry,
    id: ServiceId,
    version: Option<u64>,
    wanted: Option<u64>,
) -> Result<Answer, Refusal> {
    let known = service::find_staying(state, id)?;
    let name = &known.spec.name;
    if wanted.is_none() && version.is_none() {
        return Err(Refusal::Invalid(once_per_version().into()));
    }
    service::has_version(known, version)?;
    let target = match wanted {
        Some(number) if number == known.revision.number => return Ok(Answer::Service(known.clone())),
        Some(number) => {
            let found = known.history.iter().find(|revision| revision.number == number);
            found.ok_or_else(|| Refusal::NoRevision { service: name.clone(), wanted: number })?
        }
        None => known.history.last().ok_or_else(|| Refusal::NothingBefore { service: name.clone() })?,
    };
    state.keeps(name, target)?;
    state.volumes_stay(target)?;
    let pin = known.pins.get(&target.number).cloned();
    let is_so =
        same_content(target, &known.revision) && pin.as_ref() == known.pins.get(&known.revision.number);
    if is_so {
        return Ok(Answer::Service(known.clone()));
    }
    // It has the same `forced`, so that tasks of the earlier revision that still run are not replaced.
    let number = known.revision.number.saturating_add(1);
    let next = Revision { number, created_at: entry.now, ..(**target).clone() };
    let Revision { task, ports, placement, .. } = next.clone();
    let spec = ServiceSpec { task, ports, placement, ..(*known.spec).clone() };
    change(state, entry, id, spec, Some(next), pin)
}

/// Gives a service whose current revision uses an earlier version of the content a revision with that one. What its
/// image is stays: nobody asked for another, and nobody changed the service.
pub(super) fn follow(
    state: &mut State,
    entry: &mut Entry,
    id: ServiceId,
    content: ContentId,
    number: u64,
) -> Result<(), Refusal> {
    let Some(known) = state.services.get(&id).filter(|service| !service.removing) else { return Ok(()) };
    let old = |used: &ContentUse| used.id == content && used.number < number;
    let Some(place) = known.revision.contents.iter().position(old) else { return Ok(()) };
    let mut next = Revision::clone(&known.revision);
    next.contents[place].number = number;
    (next.number, next.created_at) = (next.number.saturating_add(1), entry.now);
    let pin = known.pins.get(&known.revision.number).cloned();
    revise(state, entry, id, Some(next), pin, |_| ()).map(drop)
}

/// They differ in nothing but their numbers.
fn same_content(one: &Revision, other: &Revision) -> bool {
    let Revision { number: _, created_at: _, task, ports, placement, forced, contents, labels } = one;
    (task, ports, placement, forced) == (&other.task, &other.ports, &other.placement, &other.forced)
        && (contents, labels) == (&other.contents, &other.labels)
}

/// What would be done again if it came twice is done for one version of the service.
fn once_per_version() -> Violation {
    Violation::new("version", "is missing; what is forced, or relative to what is, is done once per version")
}

/// Of all revisions that the service has: a forced one must differ from each of them.
fn most_forced(service: &Service) -> u64 {
    let revisions = service.history.iter().chain([&service.revision]);
    revisions.map(|revision| revision.forced).max().unwrap_or(0)
}

/// Gives the service the spec and, if there is one, the revision.
fn change(
    state: &mut State,
    entry: &mut Entry,
    id: ServiceId,
    spec: ServiceSpec,
    next: Option<Revision>,
    pin: Option<ImageDigest>,
) -> Result<Answer, Refusal> {
    service::ports_are_free(state, id, &spec.ports)?;
    let before = state.services.get(&id).map(|service| service.spec.clone());
    state.index.publish(id, &spec.ports);
    before.into_iter().for_each(|before| state.index.withdraw(&before.ports));
    let now = entry.now;
    revise(state, entry, id, next, pin, |service| {
        service.spec = Arc::new(spec);
        service::mark_updated(service, now);
    })
}

/// Makes the change, and the revision, if there is one, the current one.
fn revise(
    state: &mut State,
    entry: &mut Entry,
    id: ServiceId,
    next: Option<Revision>,
    pin: Option<ImageDigest>,
    change: impl FnOnce(&mut Service),
) -> Result<Answer, Refusal> {
    if let (Some(next), Some(service)) = (&next, state.services.get(&id)) {
        state.index.use_by(id, next);
        state.index.unuse_by(id, &service.revision);
    }
    let users = state.users(id);
    service::change(state, entry, id, |service| {
        change(service);
        let Some(next) = next else { return };
        if let Some(pin) = pin.or_else(|| own_pin(&next.task)) {
            service.pins.insert(next.number, pin);
        }
        let before = std::mem::replace(&mut service.revision, Arc::new(next));
        service.history.push(before);
        prune(service, &users);
    })
}

/// The digest that the reference itself names.
pub(super) fn own_pin(task: &TaskSpec) -> Option<ImageDigest> {
    let (_, digest) = task.image.as_str().split_once('@')?;
    digest.parse().ok()
}

/// Forgets earlier revisions that no task has and that are not among the newest, and what is pinned for them.
/// `users` are the numbers of the revisions that tasks have.
fn prune(service: &mut Service, users: &BTreeSet<u64>) {
    let mut beyond = service.history.len().saturating_sub(HISTORY);
    service.history.retain(|revision| {
        let old = beyond > 0;
        beyond = beyond.saturating_sub(1);
        !old || users.contains(&revision.number)
    });
    let Service { history, pins, revision, .. } = service;
    let known = |number: &u64| *number == revision.number || history.iter().any(|old| old.number == *number);
    pins.retain(|number, _| known(number));
}

impl State {
    /// The numbers of the revisions that tasks of the service have, records of ended ones included.
    pub(super) fn users(&self, id: ServiceId) -> BTreeSet<u64> {
        let revisions = self.index.revisions.range((id, 0)..=(id, u64::MAX));
        revisions.map(|((_, number), _)| *number).collect()
    }

    /// Forgets the revisions of a service that nothing needs any more.
    pub(super) fn prune_revisions(&mut self, entry: &mut Entry, id: ServiceId) {
        let users = self.users(id);
        let beyond =
            self.services.get(&id).map_or(0, |service| service.history.len().saturating_sub(HISTORY));
        let unused = |service: &Arc<Service>| {
            service.history[..beyond].iter().any(|revision| !users.contains(&revision.number))
        };
        if self.services.get(&id).is_some_and(unused) {
            self.update_standing(entry, id, |service| prune(service, &users));
        }
    }
}
