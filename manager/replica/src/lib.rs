//! warren-replica: the decisions of one manager around its raft machine and its state.
//!
//! [`Replica`] executes what is pure of raft's effects: it applies entries, keeps the role, matches proposals with
//! their outcomes, shares read index rounds, and returns what must be published and answered. The other modules decide
//! what a manager does with the state: where a write goes and what its caller is answered ([`write_route`],
//! [`OutcomeCache`]), which keys a change wakes ([`ReconcileTrigger`]), which membership step comes next
//! ([`plan_members`]), and whether states differ ([`DigestComparison`]).
//!
//! This crate must never do IO, read a clock or start a task. Times are durations since any fixed moment of a
//! monotonic clock. The raft driver and the simulator execute the same code. Start reading at `replica.rs`.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod checkpoints;
mod contacts;
mod error;
mod event_history;
mod member_directory;
mod membership;
mod outcomes;
mod peer_table;
mod read_rounds;
mod reconcile_key;
mod replica;
mod role;
mod session;
mod snapshot_schedule;
mod state_comparison;
mod trigger;
mod write_route;

pub use checkpoints::StateCheckpoints;
pub use contacts::{ContactRound, NodeContact};
pub use error::{ChangeError, IndeterminateReason, ProposeError, TransferError, WriteStall};
pub use event_history::{EventHistory, EventPage, EventsExpired, MAX_EVENTS};
pub use member_directory::{KnownManager, MemberDirectory, PeerCaller, PeerRejection};
pub use membership::{MembershipPlan, desired_members, plan_members, recheck_members_after, registration};
pub use outcomes::{CommandResult, MAX_OUTCOMES, OutcomeCache};
pub use peer_table::{PeerRoute, PeerTable};
pub use read_rounds::ReadRounds;
pub use reconcile_key::{PlanErrorAction, ReconcileKey, schedule_plan};
pub use replica::{AppliedWrite, ChangeBatch, Publication, Replica, ReplicaOutput, command_result};
pub use role::{LEADER_TIMEOUT, ReadRoute, ReplicaRole, is_leader_lost};
pub use session::{CATCH_UP_TIMEOUT, SESSION_TIMEOUT, SessionAnswer};
pub use snapshot_schedule::{SnapshotSchedule, SnapshotThresholds};
pub use state_comparison::{ComparisonReport, DigestComparison, DivergenceEvidence, StateDivergence};
pub use trigger::{ReconcileTrigger, WakeUps};
pub use write_route::{AttemptResult, RETRY_DELAY, WriteRoute, deadline_error, timeout_error, write_route};
