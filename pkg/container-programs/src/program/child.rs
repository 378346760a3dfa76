//! The processes that `warren-exec` starts: their signals and their ends.
//!
//! Sources: waitid(2), pidfd_open(2).
#![allow(unsafe_code)] // Foreign functions are unsafe to call; each call says why it may be made.

use std::ffi::{c_int, c_long, c_void};
use std::io::{Error, ErrorKind, Read, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::system::{inherited_file, poll_readable};

const SIGKILL: c_int = 9;
const P_PID: c_int = 1;
const WNOHANG: c_int = 1;
const WEXITED: c_int = 4;
const WNOWAIT: c_int = 0x0100_0000;
/// Equal on all architectures.
const SYS_PIDFD_OPEN: c_long = 434;

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn waitid(kind: c_int, id: c_int, found: *mut c_void, options: c_int) -> c_int;
    fn kill(pid: c_int, signal: c_int) -> c_int;
}

/// A child that was not reaped. It leads a session, or will.
pub struct ExecChild {
    pid: c_int,
}

pub fn checked(result: impl Into<i64>) -> Result<c_int> {
    match result.into() {
        -1 => Err(Error::last_os_error()),
        good => Ok(c_int::try_from(good).unwrap_or(c_int::MAX)),
    }
}

/// Takes ownership of a file descriptor returned by a call.
pub fn owned(fd: c_int) -> OwnedFd {
    // SAFETY: the kernel just returned the descriptor, and it has no other owner.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Opens a pidfd of a process.
pub fn open_process(pid: u32) -> Result<OwnedFd> {
    // SAFETY: it takes numbers only.
    checked(unsafe { syscall(SYS_PIDFD_OPEN, c_long::from(pid), 0 as c_long) }).map(owned)
}

impl ExecChild {
    pub const fn new(pid: c_int) -> Self {
        Self { pid }
    }

    /// Process id on the host.
    pub fn pid(&self) -> u32 {
        self.pid.cast_unsigned()
    }

    /// Waits for its exit, and sends it the signals that the parent asks for: its status, or 128 and the number of the
    /// signal that ended it. `None`: it was killed, because the parent closed the socket.
    pub fn wait(self) -> Option<u32> {
        let Ok(process) = open_process(self.pid()) else {
            self.kill();
            return None;
        };
        let mut signals = [0; 16];
        loop {
            match poll_readable([Some(process.as_raw_fd()), Some(0)], None) {
                [true, _] => return Some(reap(self.pid)),
                [false, false] => {}
                [false, true] => match inherited_file(0).read(&mut signals) {
                    Ok(count) if count > 0 => {
                        for signal in &signals[..count] {
                            // SAFETY: it takes numbers only. The child was not reaped, so the number is not reused.
                            unsafe { kill(self.pid, (*signal).into()) };
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    _ => {
                        self.kill();
                        return None;
                    }
                },
            }
        }
    }

    /// Kills and reaps it and its process group.
    pub fn kill(&self) {
        // SAFETY: they take numbers only. The child was not reaped, so the number is not reused. Once it is killed it
        // creates no process that its group, which it may not lead yet, would not have.
        unsafe {
            kill(self.pid, SIGKILL);
            kill(-self.pid, SIGKILL);
        }
        reap(self.pid);
    }
}

/// Whether it is a child of this process that was not reaped.
pub fn is_child(pid: c_int) -> bool {
    // As large as siginfo_t.
    let mut found = [0u64; 16];
    // SAFETY: there is room for the answer.
    pid > 0 && unsafe { waitid(P_PID, pid, found.as_mut_ptr().cast(), WEXITED | WNOHANG | WNOWAIT) } == 0
}

fn reap(pid: c_int) -> u32 {
    let mut status = 0;
    // SAFETY: there is room for the status.
    while let Err(error) = checked(unsafe { waitpid(pid, &raw mut status, 0) }) {
        if error.kind() != ErrorKind::Interrupted {
            return 255;
        }
    }
    match status.cast_unsigned() & 0x7f {
        0 => (status.cast_unsigned() >> 8) & 0xff,
        signal => 128 + signal,
    }
}
