//! The deciding part of the manager: the state of the cluster, and what must happen next.
//!
//! Pure: no IO, no clock, no randomness, no threads, no floating point, no order that differs per process.
//! The same input gives the same result on every member and in every replay. It never contacts a worker, a
//! disk or a client; the driver proposes the commands that are planned here and passes them to
//! [`State::apply`].
//!
//! Start reading at [`state::Command`] (all writes) and [`State::apply`]. Then the planners, each a function
//! of a state: [`schedule`] (which task goes to which node), [`reconcile`] (which tasks should exist) and
//! [`FailureDetector`] (which nodes are down).

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod cluster_clock;
pub mod events;
pub mod explain;
pub mod forecast;
pub mod liveness;
pub mod reconcile;
mod rollout;
pub mod scheduler;
pub mod session;
pub mod settling;
pub mod state;
pub mod why;

pub use cluster_clock::ClusterClock;
pub use explain::explain_task;
pub use forecast::{Forecast, Forecaster};
pub use liveness::{FailureDetector, Liveness};
pub use reconcile::{
    ImageStep, ReconcilePlan, UsedRegistry, VerificationPlan, earlier_pin, image_step, is_refresh,
    known_pins, pin_command, reap, reap_tokens, reconcile_ca_rotation, reconcile_feature_level,
    reconcile_service, reconcile_verification, release_addresses, uncreated_tasks, unresolved_command,
    usable_import, used_registries, verification_peers,
};
pub use rollout::{RolledBackUpdate, Rollout, RolloutState, rollout};
pub use scheduler::{SchedulePlan, UnschedulableReasons, schedule, schedule_with_limit};
pub use settling::settling_time;
pub use state::{
    AppliedIndex, ApplyOutcome, CaCommand, Cluster, Command, CommandResponse, DepartedManager, FEATURE_LEVEL,
    KeyCommand, KeyHolder, KeyRotationStep, KeyStep, ManagerAuthority, ManagerCaStep, ManagerKeyState,
    ManagerKeyStep, NewTask, Refusal, RevokedObjects, RolloutStep, RotationProgress, State, StateChange,
    StateDigest, awaits_managers,
};
