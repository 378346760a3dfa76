//! The replicated store of a manager: the raft driver and its disk, the stored format, and the API of the applied
//! state.
//!
//! This crate has the thread and the files; `warren-consensus` and `warren-replica` decide. It knows neither the other
//! managers nor workers nor users: messages leave through [`raft::transport::RaftTransport`], forwarded writes through
//! [`LeaderClient`]. Start reading at [`Store`], then [`raft::driver`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod codec;
pub mod durability;
pub mod incarnation;
pub mod problem;
pub mod raft;
pub mod state_comparison;
mod store;
pub mod timestamp;

pub use store::{
    AppliedWrite, ChangeBatch, ChangeError, ChangeWatch, CommandResult, DriverInbox, DriverRequest,
    EventPage, EventsExpired, Forwarded, HISTORY_CHANGES, HistoryGap, IndeterminateReason, KeyRenewalError,
    LeaderClient, LogCost, NoTransport, PROPOSE_TIMEOUT, ProposeError, Publication, PublishedState,
    QueuedProposal, READ_TIMEOUT, RaftInput, ReplicaRole, StatePublisher, Store, TRANSFER_TIMEOUT,
    TransferError, WriteStall,
};
