//! A machine together with a disk that can lose its power, alone and in a hostile network.

#![allow(clippy::unwrap_used, missing_docs)]

mod alone;
mod changes;
mod churn;
mod crashes;
mod dice;
mod faults;
mod group;
mod hostile;
mod member;
mod network;
mod reads;
mod regression;
mod restored;
mod slow_disk;
mod stopped;
mod transfer;
