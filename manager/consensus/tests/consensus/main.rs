//! A machine together with a disk that can lose power, alone and in a faulty network.

#![allow(clippy::unwrap_used, missing_docs)]

mod churn;
mod crashes;
mod fatal_errors;
mod faults;
mod group;
mod malformed_messages;
mod member;
mod membership_changes;
mod network;
mod persistent_state;
mod reads;
mod regression;
mod rng;
mod single_voter;
mod slow_disk;
mod transfer;
