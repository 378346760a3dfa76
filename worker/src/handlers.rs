//! The resources of a task around its container: image, directory, volumes, secrets and configs, user namespace, and
//! published ports.
//!
//! Each handler is a pair of `ensure` and `remove` (or `reserve`, `route` and `release`), all idempotent.

pub(crate) mod check_programs;
pub(crate) mod files;
pub(crate) mod images;
pub(crate) mod ports;
pub(crate) mod secret_fetcher;
pub(crate) mod secret_objects;
pub(crate) mod user_namespaces;
pub(crate) mod volumes;
