//! Calls that the standard library lacks: waiting for one of several descriptors, ignoring signals, and
//! closing inherited descriptors.
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

/// Only the end of its input ends the logger. In addition to termination signals, SIGXFSZ for files over
/// the size limit is ignored: the write then fails, which the writer handles.
pub fn ignore_signals() {
    for number in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXFSZ] {
        // SAFETY: ignoring a signal installs no handler.
        unsafe { signal(number, SIG_IGN) };
    }
}

/// Closes a descriptor inherited from the parent. Ignored when it is not open.
pub fn close_inherited(fd: c_int) {
    // SAFETY: nothing in this program owns a file with this number: `main` closes before it opens anything.
    unsafe { close(fd) };
}

/// A descriptor inherited from the parent, which stays open until the process ends.
pub fn inherited_file(fd: c_int) -> ManuallyDrop<File> {
    // SAFETY: it has no other owner, and when it is not open, reading returns an error.
    ManuallyDrop::new(unsafe { File::from_raw_fd(fd) })
}

/// Waits until one of `fds` is readable or has ended, or until the timeout; returns which. `None` entries
/// are ignored.
pub fn poll_readable(fds: [Option<c_int>; 2], timeout: Option<Duration>) -> [bool; 2] {
    // The kernel ignores negative descriptors.
    let mut polled = fds.map(|fd| PollFd { fd: fd.unwrap_or(-1), events: POLLIN, revents: 0 });
    // Rounded up, so that a caller with a deadline does not poll without a pause just before it.
    let millis = timeout.map(|timeout| timeout.as_nanos().div_ceil(1_000_000));
    let timeout = millis.map_or(-1, |millis| c_int::try_from(millis).unwrap_or(c_int::MAX));
    // SAFETY: the pointer and the count describe `polled`, which outlives the call.
    let ready = unsafe { poll(polled.as_mut_ptr(), polled.len() as c_ulong, timeout) };
    // After an interruption the result is undefined; the caller polls again.
    polled.map(|polled| ready > 0 && polled.revents != 0)
}
