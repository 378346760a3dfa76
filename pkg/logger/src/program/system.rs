//! The calls that the standard library does not offer the logger: waiting for one of several files, ignoring
//! signals, and closing files that it did not open itself.
#![allow(unsafe_code)] // Foreign functions are unsafe to call; each call says why it may be made.

use std::ffi::{c_int, c_short, c_ulong};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::time::Duration;

const POLLIN: c_short = 1;
const SIGHUP: c_int = 1;
const SIGINT: c_int = 2;
const SIGQUIT: c_int = 3;
const SIGTERM: c_int = 15;
const SIGXFSZ: c_int = 25;
const SIG_IGN: usize = 1;

#[repr(C)]
struct PollFd {
    fd: c_int,
    events: c_short,
    revents: c_short,
}

unsafe extern "C" {
    fn poll(fds: *mut PollFd, count: c_ulong, timeout: c_int) -> c_int;
    fn signal(number: c_int, handler: usize) -> usize;
    fn close(fd: c_int) -> c_int;
}

/// Nothing but the end of its input ends the logger. Beside the signals that ask a process to end, this is
/// the one for files over the size limit: the write then fails, which the journal can handle.
pub fn ignore_signals() {
    for number in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXFSZ] {
        // SAFETY: ignoring a signal installs no handler.
        unsafe { signal(number, SIG_IGN) };
    }
}

/// Closes a file that whoever started this process left open. Harmless when it is not open.
pub fn close_inherited(fd: c_int) {
    // SAFETY: nothing in this program owns a file with this number: `main` closes before it opens anything.
    unsafe { close(fd) };
}

/// A file that whoever started this process left open, and that stays open until the process ends.
pub fn inherited(fd: c_int) -> ManuallyDrop<File> {
    // SAFETY: nobody else owns it, and when it is not open, reading says so.
    ManuallyDrop::new(unsafe { File::from_raw_fd(fd) })
}

/// Waits until one of `fds` can be read or has ended, or the timeout has passed; tells which. Those that are
/// `None` are not looked at.
pub fn wait(fds: [Option<c_int>; 2], timeout: Option<Duration>) -> [bool; 2] {
    // The kernel leaves out negative numbers.
    let mut polled = fds.map(|fd| PollFd { fd: fd.unwrap_or(-1), events: POLLIN, revents: 0 });
    let timeout = timeout.map_or(-1, |timeout| c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX));
    // SAFETY: the pointer and the count describe `polled`, which outlives the call.
    let found = unsafe { poll(polled.as_mut_ptr(), polled.len() as c_ulong, timeout) };
    // After an interruption what the kernel wrote is not defined; the caller asks again.
    polled.map(|polled| found > 0 && polled.revents != 0)
}
