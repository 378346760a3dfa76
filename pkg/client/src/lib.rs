//! Client of the managers: selects a cluster ([`Contexts`]), connects to a manager ([`Client::connect`]), and sends
//! requests with a deadline and bounded retries, at another manager if the first is unreachable or has no leader.
//!
//! It has no caches, never waits without a bound, and never shows key material in an error or a `Debug`. Every request
//! is idempotent, since creates carry an id from the caller and other writes contain the desired state; so unary calls
//! are repeated while managers are unavailable. A write that failed although an attempt may have been applied ends with
//! [`Error::Unconfirmed`].
//! Start reading at [`client`]; [`error`] lists how a call can end.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod api;
mod audit;
mod channel;
pub mod client;
mod client_tls;
pub mod contexts;
mod dial;
pub mod error;
mod events;
mod exec;
mod import;
mod logs;
mod manager_lock;
mod managers;
mod networks;
mod pages;
mod pull;
mod refusals;
mod retry;
mod seccomp_config;
mod secret_objects;
mod tls_alert;
mod tokens;
mod upgrade;
mod users;
mod volumes;
mod watch;

pub use api::{ClusterApi, ImageApi, NodeApi, NodeChange, ServiceApi, TaskApi, TaskFilter};
pub use audit::{AuditLineStream, AuditMessage};
pub use client::Client;
pub use client_tls::{CertificateOptions, ClockDifference};
pub use contexts::{ClientContext, ClientIdentity, ClientTarget, Contexts, PrivateKeyPem};
pub use error::Error;
pub use events::{EventMessage, EventQuery, EventStart, EventStream};
pub use exec::{INPUT_CHUNK, ProgramControl, ProgramEvent, ProgramInput, ProgramOutput, RunningProgram};
pub use import::ImageImport;
pub use logs::{LogApi, LogOptions, LogStream, LogTarget};
pub use manager_lock::ManagerLockApi;
pub use managers::{BackupDownload, ManagerApi, ManagerChange};
pub use networks::{NetworkApi, NewNetwork};
pub use pull::{ImagePulls, PullOptions};
pub use seccomp_config::SeccompConfig;
pub use secret_objects::{NewSecretObject, SecretObjectApi};
pub use tokens::{NewToken, TokenApi, TokenOptions};
pub use users::{NewUser, UserApi, UserChange};
pub use volumes::{NewVolume, VolumeApi, VolumeListOptions};
/// A join token with its secret.
pub use warren_security::JoinToken;
pub use watch::{Change, ClusterWatch};

#[cfg(test)]
mod tests;
