//! Tests of the shipped programs, called like containerd and runc do.

#![allow(clippy::unwrap_used)]

mod container;
mod flood;
mod init;
mod logger;
mod shim;
