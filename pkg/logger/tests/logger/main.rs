//! The programs as they ship, given what containerd and runc give them.

#![allow(clippy::unwrap_used)]

mod container;
mod flood;
mod init;
mod logger;
mod shim;
