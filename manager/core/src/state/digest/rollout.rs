//! The digest of a rollout's record.

use warren_types::{FailureOutcome, PauseCause, RolloutFailure, RolloutKind, RolloutRecord};

use super::{halves, list, pair, text};

/// 0 for one without anything.
pub(super) fn record(record: &RolloutRecord) -> u64 {
    if *record == RolloutRecord::default() {
        return 0;
    }
    let RolloutRecord { good_revision, kind, resumed_at, updated, updated_at, failures, image_reason } =
        record;
    let kind = match kind {
        RolloutKind::Update => 0,
        RolloutKind::Rollback => 1,
    };
    let fields = [*good_revision, kind, resumed_at.0, u64::from(*updated), updated_at.0];
    let failures = failures.iter().flat_map(failure);
    let image = (!image_reason.is_empty()).then(|| text(image_reason));
    list(fields.into_iter().chain(failures).chain(image))
}

fn failure(failure: &RolloutFailure) -> [u64; 8] {
    let RolloutFailure { revision, task, slot, reason, at, outcome } = failure;
    let [high, low] = halves(task.service.0);
    let (what, to) = match outcome {
        FailureOutcome::RolledBack { to } => (0, *to),
        FailureOutcome::Paused(PauseCause::Policy) => (1, 0),
        FailureOutcome::Paused(PauseCause::DataMayHaveChanged) => (2, 0),
        FailureOutcome::Paused(PauseCause::NoGoodRevision) => (3, 0),
        FailureOutcome::Paused(PauseCause::NotRestorable) => (4, 0),
        FailureOutcome::Paused(PauseCause::IsRollback) => (5, 0),
    };
    [*revision, high, low, task.number, pair(*slot, what), text(reason), at.0, to]
}
