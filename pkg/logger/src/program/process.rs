//! Signals, process groups and reaping: what the standard library does not offer the first process of a
//! container.
#![allow(unsafe_code)] // Foreign functions are unsafe to call; each call says why it may be made.

use std::ffi::c_int;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

/// A child has ended.
pub const SIGCHLD: c_int = 17;
const SIGTTIN: c_int = 21;
const SIGTTOU: c_int = 22;
/// Those that a fault of the program itself raises (ILL, TRAP, ABRT, BUS, FPE, SEGV, SYS): here they are
/// faults of this process, which must end by them, and holding them back has no defined effect.
const FAULTS: [c_int; 7] = [4, 5, 6, 7, 8, 11, 31];
/// Those that a terminal sends to whoever reads or writes it out of turn: they are about this process alone.
const OF_TERMINAL: [c_int; 2] = [SIGTTIN, SIGTTOU];

const SIG_DFL: usize = 0;
const SIG_SETMASK: c_int = 2;
const WNOHANG: c_int = 1;

/// At least as large as the C library's, which has 128 bytes on 64-bit Linux.
#[repr(C, align(8))]
struct SignalSet([u64; 16]);

/// Of all that the kernel has.
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
fn held() -> SignalSet {
    let mut set = SignalSet([0; 16]);
    // SAFETY: the set is large enough, and lives on; the numbers are those of signals.
    unsafe {
        sigfillset(&raw mut set);
        for fault in FAULTS {
            sigdelset(&raw mut set, fault);
        }
    }
    set
}

/// Holds all signals back for [`next_signal`], as long as this process runs. A program that it starts has to
/// be [`prepare`]d.
pub fn hold_signals() -> io::Result<()> {
    // SAFETY: the default action is no handler; whoever started this process may have set another, and then
    // children would be reaped by the kernel.
    unsafe { signal(SIGCHLD, SIG_DFL) };
    let set = held();
    // SAFETY: the set outlives the call, and the old one is not asked for.
    match unsafe { sigprocmask(SIG_SETMASK, &raw const set, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Waits for the next signal.
pub fn next_signal() -> c_int {
    let set = held();
    loop {
        let mut number = 0;
        // SAFETY: both outlive the call.
        let error = unsafe { sigwait(&raw const set, &raw mut number) };
        if error == 0 && !OF_TERMINAL.contains(&number) {
            return number;
        }
    }
}

/// Sends a signal; a process that has ended meanwhile gets none.
pub fn send(pid: c_int, number: c_int) {
    // SAFETY: it only takes numbers. The process is a child that was not reaped, so no other has its id.
    unsafe { kill(pid, number) };
}

/// Takes note of one child that has ended, if there is one.
pub fn reap() -> Option<(c_int, ExitStatus)> {
    let mut status = 0;
    // SAFETY: the status outlives the call.
    let pid = unsafe { waitpid(-1, &raw mut status, WNOHANG) };
    (pid > 0).then(|| (pid, ExitStatus::from_raw(status)))
}

/// Makes the program the leader of a process group, which gets the terminal's signals, and its input when
/// there is one; and lets signals through to it.
pub fn prepare(command: &mut Command) {
    let none = SignalSet([0; 16]);
    let prepare = move || {
        // SAFETY: these take numbers, or a set that outlives the call, and are allowed between fork and exec.
        // Without a terminal the second one fails, as it may. With one, it would stop a process that takes it
        // over from the background, were that signal not held back until after it.
        unsafe {
            setpgid(0, 0);
            tcsetpgrp(0, getpgrp());
            // What whoever started this one ignores, the program shall not: it could not even trap it.
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
