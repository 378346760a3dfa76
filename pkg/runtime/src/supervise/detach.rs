//! Starts a program that outlives this process and its terminal.
//!
//! `unsafe` because code between fork and exec must be async-signal-safe; the one system call here is.
#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Runs the program in its own session: no hang-up or interrupt of a terminal reaches it.
pub(super) fn into_own_session(command: &mut Command) {
    // SAFETY: setsid(2) is async-signal-safe and touches no memory.
    unsafe {
        command.pre_exec(|| nix::unistd::setsid().map(|_| ()).map_err(Into::into));
    }
}
