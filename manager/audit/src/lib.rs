//! The audit log of a manager: who called what, on which object, with which result.
//!
//! One line of JSON per call ([`AuditLine`]), in files that are rotated by size (`files`). One thread writes
//! ([`AuditLog`]); calls hand over their line and do not wait for the disk. Lines never contain what a request
//! carries: a caller of this crate decides which names go into them. Start reading at `log.rs`.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod denials;
mod files;
mod line;
mod log;

pub use denials::{DenialCaller, DenialLimiter};
pub use files::AuditFileLimits;
pub use line::{AuditCaller, AuditLine, AuditObject, AuditOutcome, LINE_VERSION};
pub use log::{AuditFilter, AuditItem, AuditLog};
