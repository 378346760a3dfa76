//! The policies of updates and rollbacks, from their flags.

use warren_types::UpdatePolicy;

use super::ResetFlags;
use crate::args::update_policy::{RollbackFlags, UpdateFlags};

pub(super) fn update(resets: &mut ResetFlags, flags: &UpdateFlags, policy: &mut UpdatePolicy) {
    let UpdateFlags {
        update_parallelism,
        update_delay,
        update_order,
        update_monitor,
        update_failure_ratio,
        update_on_failure,
    } = flags;
    let default = UpdatePolicy::default();
    resets.set("--update-parallelism", update_parallelism, &mut policy.parallelism, default.parallelism);
    resets.set("--update-delay", update_delay, &mut policy.delay, default.delay);
    resets.set_optional("--update-order", update_order, &mut policy.order);
    resets.set("--update-monitor", update_monitor, &mut policy.monitor, default.monitor);
    resets.set(
        "--update-failure-ratio",
        update_failure_ratio,
        &mut policy.failure_ratio,
        default.failure_ratio,
    );
    resets.set_optional("--update-on-failure", update_on_failure, &mut policy.on_failure);
}

pub(super) fn rollback(resets: &mut ResetFlags, flags: &RollbackFlags, policy: &mut UpdatePolicy) {
    let RollbackFlags {
        rollback_parallelism,
        rollback_delay,
        rollback_order,
        rollback_monitor,
        rollback_failure_ratio,
        rollback_on_failure,
    } = flags;
    let default = UpdatePolicy::default();
    resets.set("--rollback-parallelism", rollback_parallelism, &mut policy.parallelism, default.parallelism);
    resets.set("--rollback-delay", rollback_delay, &mut policy.delay, default.delay);
    resets.set_optional("--rollback-order", rollback_order, &mut policy.order);
    resets.set("--rollback-monitor", rollback_monitor, &mut policy.monitor, default.monitor);
    resets.set(
        "--rollback-failure-ratio",
        rollback_failure_ratio,
        &mut policy.failure_ratio,
        default.failure_ratio,
    );
    resets.set_optional("--rollback-on-failure", rollback_on_failure, &mut policy.on_failure);
}
