//! The lifecycle of one task on its node as pure functions: from desired state and observed state to the next
//! action.
//!
//! Nothing here does IO, reads a clock or draws a random number: the driver (`warren-worker`) inspects, acts,
//! and records the results in [`ObservedTask`]. It executes one action at a time, each idempotent, so that
//! after a crash between two actions some action is only repeated. Start reading at [`step()`], then
//! [`ObservedTask`]; [`AttemptHistory`] survives the agent. Next to the tasks there are the desired state of
//! the node ([`DesiredState`]), the reports not acknowledged yet ([`Outbox`]), the time without contact
//! ([`ConnectivityTracker`]) and the limits of writable layers ([`LayerDisk`]).

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod action;
mod attempt_history;
mod connectivity;
mod desired_state;
mod display;
mod observed_task;
mod outbox;
mod report;
mod report_order;
mod restart;
mod retention;
mod step;
mod writable_layer;

pub use action::{Action, ActionKind, HookKind};
pub use attempt_history::{AttemptHistory, AttemptPhase, ParseAttemptHistoryError, TerminalState};
pub use connectivity::{Connectivity, ConnectivityTracker, START_GRACE};
pub use desired_state::{BaseMismatch, DesiredState};
pub use observed_task::{
    ContainerState, FailedAction, FailureKind, Freshness, HealthObservation, HookProgress, ImageState,
    ObservedTask, PortState, ResourceState, SentStop,
};
pub use outbox::{ACK_TIMEOUT, MAX_BATCH_REPORTS, MAX_BATCHES_IN_FLIGHT, Outbox, ReportBatch};
pub use report::{build_report, should_report};
pub use report_order::supersedes;
pub use retention::{RetainedLogFiles, logs_to_remove};
pub use step::{NextStep, resolved_digest, step};
pub use writable_layer::{
    LayerDisk, MeasuredLayer, awaits_removal, limit_excess, next_measurement, next_pass, next_round,
};
