//! Starting a program that shall outlive us and our terminal.
//!
//! `unsafe` because code between fork and exec may only do what is safe in a signal handler; one system call
//! is.
#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Gives the program a session of its own: no terminal's hang-up or interrupt reaches it.
pub(super) fn into_own_session(command: &mut Command) {
    // SAFETY: setsid(2) is async-signal-safe and touches no memory.
    unsafe {
        command.pre_exec(|| nix::unistd::setsid().map(|_| ()).map_err(Into::into));
    }
}
