//! The rollout of a service: its steps in commands, its record in the service.

use warren_core::RolloutStep;
use warren_proto::v1;
use warren_proto::v1::advance_rollout::Step;
use warren_proto::v1::rollout_failure::Outcome;
use warren_types::{
    FailureOutcome, PauseCause, RolloutFailure, RolloutKind, RolloutRecord, Violation, Violations,
};

use super::field::{parse, required, timestamp};

pub(super) fn wire_rollout_step(step: &RolloutStep) -> Step {
    match step {
        RolloutStep::Updated(updated) => Step::Updated(*updated),
        RolloutStep::Completed => Step::Completed(v1::RolloutCompleted {}),
        RolloutStep::Failed(failure) => Step::Failed(wire_failure(failure)),
    }
}

pub(super) fn rollout_step(wire: Step) -> Result<RolloutStep, Violations> {
    Ok(match wire {
        Step::Updated(updated) => RolloutStep::Updated(updated),
        Step::Completed(v1::RolloutCompleted {}) => RolloutStep::Completed,
        Step::Failed(wire) => RolloutStep::Failed(failure(wire)?),
    })
}

/// `None` for one without anything.
pub(super) fn stored_rollout(record: &RolloutRecord) -> Option<v1::StoredRollout> {
    let RolloutRecord { good_revision, kind, resumed_at, updated, updated_at, failures } = record;
    let stored = || v1::StoredRollout {
        good_revision: *good_revision,
        is_rollback: *kind == RolloutKind::Rollback,
        resumed_at: resumed_at.0,
        updated: *updated,
        updated_at: updated_at.0,
        failures: failures.iter().map(wire_failure).collect(),
    };
    (*record != RolloutRecord::default()).then(stored)
}

pub(super) fn rollout(stored: Option<v1::StoredRollout>) -> Result<RolloutRecord, Violations> {
    let v1::StoredRollout { good_revision, is_rollback, resumed_at, updated, updated_at, failures } =
        stored.unwrap_or_default();
    let kind = if is_rollback { RolloutKind::Rollback } else { RolloutKind::Update };
    let (resumed_at, updated_at) = (timestamp(resumed_at), timestamp(updated_at));
    let failures = failures.into_iter().map(failure).collect::<Result<_, _>>()?;
    Ok(RolloutRecord { good_revision, kind, resumed_at, updated, updated_at, failures })
}

fn wire_failure(failure: &RolloutFailure) -> v1::RolloutFailure {
    let outcome = match failure.outcome {
        FailureOutcome::RolledBack { to } => Outcome::RolledBackTo(to),
        FailureOutcome::Paused(cause) => Outcome::Paused(wire_cause(cause).into()),
    };
    v1::RolloutFailure {
        revision: failure.revision,
        task_id: failure.task.to_string(),
        slot: failure.slot,
        reason: failure.reason.to_string(),
        at: failure.at.0,
        outcome: Some(outcome),
    }
}

fn failure(wire: v1::RolloutFailure) -> Result<RolloutFailure, Violations> {
    let outcome = match required("failure.outcome", wire.outcome)? {
        Outcome::RolledBackTo(to) => FailureOutcome::RolledBack { to },
        Outcome::Paused(wire) => FailureOutcome::Paused(cause(wire)?),
    };
    Ok(RolloutFailure {
        revision: wire.revision,
        task: parse("failure.taskId", &wire.task_id)?,
        slot: wire.slot,
        reason: wire.reason.into(),
        at: timestamp(wire.at),
        outcome,
    })
}

fn wire_cause(cause: PauseCause) -> v1::PauseCause {
    match cause {
        PauseCause::Policy => v1::PauseCause::Policy,
        PauseCause::DataMayHaveChanged => v1::PauseCause::DataMayHaveChanged,
        PauseCause::NoGoodRevision => v1::PauseCause::NoGoodRevision,
        PauseCause::NotRestorable => v1::PauseCause::NotRestorable,
        PauseCause::IsRollback => v1::PauseCause::IsRollback,
    }
}

fn cause(wire: i32) -> Result<PauseCause, Violations> {
    match v1::PauseCause::try_from(wire) {
        Ok(v1::PauseCause::Policy) => Ok(PauseCause::Policy),
        Ok(v1::PauseCause::DataMayHaveChanged) => Ok(PauseCause::DataMayHaveChanged),
        Ok(v1::PauseCause::NoGoodRevision) => Ok(PauseCause::NoGoodRevision),
        Ok(v1::PauseCause::NotRestorable) => Ok(PauseCause::NotRestorable),
        Ok(v1::PauseCause::IsRollback) => Ok(PauseCause::IsRollback),
        Ok(v1::PauseCause::Unspecified) | Err(_) => {
            let message = format!("value {wire} is not known to this version");
            Err(Violation::new("failure.paused", message).into())
        }
    }
}
