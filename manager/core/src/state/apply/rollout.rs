//! Commands on the rollout of a service's current revision.

use warren_types::{FailureOutcome, RolloutFailure, ServiceId};

use super::{ApplyContext, image, revision, service};
use crate::state::command::RolloutStep;
use crate::state::{CommandResponse, Refusal, State};

pub(super) fn advance(
    state: &mut State,
    entry: &mut ApplyContext,
    id: ServiceId,
    number: u64,
    step: &RolloutStep,
) -> Result<CommandResponse, Refusal> {
    let Some(known) = state.services.get(&id) else { return Ok(CommandResponse::Done) };
    if known.removing || known.revision.number != number {
        return Ok(CommandResponse::Done);
    }
    let is_over = known.rollout.good_revision == number || known.rollout_failure().is_some();
    let now = entry.now;
    match step {
        RolloutStep::ImagePinned(digest) => image::pin(state, entry, id, number, digest),
        RolloutStep::ImageUnresolved(reason) if *reason != known.rollout.image_reason => {
            state.update_service_status(entry, id, |service| service.rollout.image_reason = reason.clone());
        }
        RolloutStep::ImageUnresolved(_) => {}
        _ if is_over => {}
        RolloutStep::Updated(updated) if *updated != known.rollout.updated => {
            state.update_service_status(entry, id, |service| {
                (service.rollout.updated, service.rollout.updated_at) = (*updated, now);
            });
        }
        RolloutStep::Updated(_) => {}
        RolloutStep::Completed => {
            state.update_service_status(entry, id, |service| service.rollout.good_revision = number);
            state.prune_revisions(entry, id);
        }
        RolloutStep::Failed(failure) => return fail(state, entry, id, failure),
    }
    Ok(CommandResponse::Done)
}

fn fail(
    state: &mut State,
    entry: &mut ApplyContext,
    id: ServiceId,
    failure: &RolloutFailure,
) -> Result<CommandResponse, Refusal> {
    match failure.outcome {
        FailureOutcome::Paused(_) => {
            state.update_service_status(entry, id, |service| service.rollout.failures.push(failure.clone()));
            Ok(CommandResponse::Done)
        }
        FailureOutcome::RolledBack { to } => {
            revision::restore(state, entry, id, to, Some(failure.clone())).map(|_| CommandResponse::Done)
        }
    }
}

pub(super) fn resume(
    state: &mut State,
    entry: &mut ApplyContext,
    id: ServiceId,
    version: Option<u64>,
) -> Result<CommandResponse, Refusal> {
    let known = service::find_not_removing(state, id)?;
    if known.rollout_failure().is_none() {
        return Ok(CommandResponse::Service(known.clone()));
    }
    service::check_version(known, version)?;
    let now = entry.now;
    service::update(state, entry, id, |service| {
        service.rollout.failures.pop();
        service.rollout.resumed_at = now;
    })
}
