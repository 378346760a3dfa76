//! Signals, process groups and reaping for the first process of a container, which the standard library
//! lacks.
#![allow(unsafe_code)] // Foreign functions are unsafe to call; each call says why it may be made.

use std::ffi::c_int;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

/// Sent when a child has ended.
pub const SIGCHLD: c_int = 17;
const SIGTTIN: c_int = 21;
const SIGTTOU: c_int = 22;
/// Fault signals (ILL, TRAP, ABRT, BUS, FPE, SEGV, SYS): they concern this process, which must end by
/// them, and blocking them is undefined.
const FAULT_SIGNALS: [c_int; 7] = [4, 5, 6, 7, 8, 11, 31];
/// Sent to background processes that use the terminal: they concern this process only.
const TERMINAL_SIGNALS: [c_int; 2] = [SIGTTIN, SIGTTOU];

const SIG_DFL: usize = 0;
const SIG_SETMASK: c_int = 2;
const WNOHANG: c_int = 1;

/// At least as large as the C library's, which has 128 bytes on 64-bit Linux.
#[repr(C, align(8))]
struct SignalSet([u64; 16]);

/// The highest signal number of the kernel.
const LAST_SIGNAL: c_int = 64;

unsafe extern "C" {
    fn sigfillset(set: *mut SignalSet) -> c_int;
    fn sigdelset(set: *mut SignalSet, number: c_int) -> c_int;
    fn sigprocmask(how: c_int, set: *const SignalSet, old: *mut SignalSet) -> c_int;
    fn sigwait(set: *const SignalSet, number: *mut c_int) -> c_int;
    fn signal(number: c_int, handler: usize) -> usize;
    fn kill(pid: c_int, number: c_int) -> c_int;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn setpgid(pid: c_int, group: c_int) -> c_int;
    fn getpgrp() -> c_int;
    fn tcsetpgrp(fd: c_int, group: c_int) -> c_int;
}

/// Every signal but faults.
fn blocked_signals() -> SignalSet {
    let mut set = SignalSet([0; 16]);
    // SAFETY: the set is large enough and outlives the call; the numbers are valid signals.
    unsafe {
        sigfillset(&raw mut set);
        for fault in FAULT_SIGNALS {
            sigdelset(&raw mut set, fault);
        }
    }
    set
}

/// Blocks all signals for [`next_signal`]. A program started later must be [`prepare_child`]d.
pub fn block_signals() -> io::Result<()> {
    // SAFETY: the default action is no handler; the parent may have set another one, with which the kernel
    // would reap children.
    unsafe { signal(SIGCHLD, SIG_DFL) };
    let set = blocked_signals();
    // SAFETY: the set outlives the call, and the old one is not requested.
    match unsafe { sigprocmask(SIG_SETMASK, &raw const set, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Waits for the next signal.
pub fn next_signal() -> c_int {
    let set = blocked_signals();
    loop {
        let mut number = 0;
        // SAFETY: both outlive the call.
        let error = unsafe { sigwait(&raw const set, &raw mut number) };
        if error == 0 && !TERMINAL_SIGNALS.contains(&number) {
            return number;
        }
    }
}

/// Sends a signal; ignored for a process that has ended.
pub fn send_signal(pid: c_int, number: c_int) {
    // SAFETY: it takes numbers only. The process is a child that was not reaped, so its pid is not reused.
    unsafe { kill(pid, number) };
}

/// Reaps one child that has ended, if any.
pub fn reap() -> Option<(c_int, ExitStatus)> {
    let mut status = 0;
    // SAFETY: the status outlives the call.
    let pid = unsafe { waitpid(-1, &raw mut status, WNOHANG) };
    (pid > 0).then(|| (pid, ExitStatus::from_raw(status)))
}

/// Makes the program the leader of a process group, which gets the terminal's signals and input if there is
/// one; and unblocks its signals.
pub fn prepare_child(command: &mut Command) {
    let none = SignalSet([0; 16]);
    let prepare = move || {
        // SAFETY: these take numbers, or a set that outlives the call, and are allowed between fork and exec.
        // Without a terminal the second one fails, which is allowed. With one, it would stop a process that
        // takes it over from the background, were that signal not blocked until then.
        unsafe {
            setpgid(0, 0);
            tcsetpgrp(0, getpgrp());
            // Signals ignored by the parent must not be ignored by the program: it could not even trap
            // them.
            for number in 1..=LAST_SIGNAL {
                signal(number, SIG_DFL);
            }
            sigprocmask(SIG_SETMASK, &raw const none, std::ptr::null_mut());
        }
        Ok(())
    };
    // SAFETY: between fork and exec it allocates nothing and takes no lock.
    unsafe { command.pre_exec(prepare) };
}
