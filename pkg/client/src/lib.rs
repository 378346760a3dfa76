//! Talks to managers: finds out which ([`Contexts`]), dials one ([`Client::connect`]), and calls it with a
//! deadline and bounded retries on every call, at another manager when that one is gone or has no leader.
//!
//! It never keeps what it was told (no caches), never waits without a bound, and never shows key material in
//! an error or a `Debug`. Every request may be repeated, since creates carry an id that the caller made and
//! all else says what is wanted; that is why unary calls are simply tried again while managers are
//! unavailable. A write that fails although one of its attempts may have been applied says so
//! ([`Error::Unconfirmed`]).
//! Start reading at [`client`]; [`error`] says how a call can end.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod attempts;
pub mod client;
mod contents;
pub mod contexts;
mod dial;
pub mod error;
mod handles;
mod import;
mod link;
mod logs;
mod managers;
mod pages;
mod pull;
mod refusal;
mod retry;
mod tokens;
mod volumes;
mod watch;

pub use client::Client;
pub use contents::{Contents, NewContent};
pub use contexts::{Context, Contexts, Identity, PrivateKey, Target};
pub use error::Error;
pub use handles::{Cluster, Images, NodeChange, Nodes, Services, TaskFilter, Tasks};
pub use import::Import;
pub use logs::{LogEntries, Logs, LogsOf, LogsWish};
pub use managers::{Backup, ManagerChange, Managers};
pub use pull::{PullWish, Pulls};
pub use tokens::{NewToken, TokenWish, Tokens};
pub use volumes::{NewVolume, Volumes};
/// A join token, secret and all.
pub use warren_security::Token as JoinToken;
pub use watch::{Change, Watch};

#[cfg(test)]
mod tests;
