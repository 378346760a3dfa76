//! Flags of the policies of updates and rollbacks.

use std::time::Duration;

use clap::Args;
use warren_types::{FailureAction, FailureRatio, Parallelism, UpdateOrder, UpdatePolicy};

use super::value::{self, ResetFlags, Setting, setting};

/// How an update replaces tasks.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Update")]
pub struct UpdateFlags {
    /// Tasks replaced at a time: a number, a share like 25%, or 0 for all [default: 1]
    #[arg(long, value_name = "N|%", value_parser = setting(str::parse::<Parallelism>))]
    pub update_parallelism: Option<Setting<Parallelism>>,
    /// Time between the end of one replacement and the start of the next [default: 0s]
    #[arg(long, value_name = "DURATION", value_parser = setting(value::duration))]
    pub update_delay: Option<Setting<Duration>>,
    /// start-first or stop-first [default: start-first, and stop-first with volumes]
    #[arg(long, value_name = "ORDER", value_parser = setting(str::parse::<UpdateOrder>))]
    pub update_order: Option<Setting<UpdateOrder>>,
    /// Time a task without a health check must run to count as ready; 0s: none [default: 3s]
    #[arg(long, value_name = "DURATION", value_parser = setting(value::duration))]
    pub update_monitor: Option<Setting<Duration>>,
    /// Share of tasks that may fail, like 0.1 or 10% [default: 0]
    #[arg(long, value_name = "RATIO", alias = "update-max-failure-ratio")]
    #[arg(value_parser = setting(str::parse::<FailureRatio>))]
    pub update_failure_ratio: Option<Setting<FailureRatio>>,
    /// Action if more tasks fail: rollback, pause or continue [default: rollback; pause if volumes may have changed]
    #[arg(long, value_name = "ACTION", alias = "update-failure-action")]
    #[arg(value_parser = setting(str::parse::<FailureAction>))]
    pub update_on_failure: Option<Setting<FailureAction>>,
}

impl UpdateFlags {
    /// Sets what is given.
    pub fn change(&self, resets: &mut ResetFlags, policy: &mut UpdatePolicy) {
        let Self {
            update_parallelism,
            update_delay,
            update_order,
            update_monitor,
            update_failure_ratio,
            update_on_failure,
        } = self;
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
}

/// How a rollback replaces tasks.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Rollback")]
pub struct RollbackFlags {
    /// Tasks replaced at a time: a number, a share like 25%, or 0 for all [default: 1]
    #[arg(long, value_name = "N|%", value_parser = setting(str::parse::<Parallelism>))]
    pub rollback_parallelism: Option<Setting<Parallelism>>,
    /// Time between the end of one replacement and the start of the next [default: 0s]
    #[arg(long, value_name = "DURATION", value_parser = setting(value::duration))]
    pub rollback_delay: Option<Setting<Duration>>,
    /// start-first or stop-first [default: start-first, and stop-first with volumes]
    #[arg(long, value_name = "ORDER", value_parser = setting(str::parse::<UpdateOrder>))]
    pub rollback_order: Option<Setting<UpdateOrder>>,
    /// As --update-monitor, during and after a rollback [default: 3s]
    #[arg(long, value_name = "DURATION", value_parser = setting(value::duration))]
    pub rollback_monitor: Option<Setting<Duration>>,
    /// Share of tasks that may fail, like 0.1 or 10% [default: 0]
    #[arg(long, value_name = "RATIO", alias = "rollback-max-failure-ratio")]
    #[arg(value_parser = setting(str::parse::<FailureRatio>))]
    pub rollback_failure_ratio: Option<Setting<FailureRatio>>,
    /// Action if more tasks fail: pause or continue [default: pause]
    #[arg(long, value_name = "ACTION", alias = "rollback-failure-action")]
    #[arg(value_parser = setting(str::parse::<FailureAction>))]
    pub rollback_on_failure: Option<Setting<FailureAction>>,
}

impl RollbackFlags {
    /// Sets what is given.
    pub fn change(&self, resets: &mut ResetFlags, policy: &mut UpdatePolicy) {
        let Self {
            rollback_parallelism,
            rollback_delay,
            rollback_order,
            rollback_monitor,
            rollback_failure_ratio,
            rollback_on_failure,
        } = self;
        let default = UpdatePolicy::default();
        resets.set(
            "--rollback-parallelism",
            rollback_parallelism,
            &mut policy.parallelism,
            default.parallelism,
        );
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
}
