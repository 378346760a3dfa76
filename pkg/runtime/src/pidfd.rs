//! Process handles that are safe against reuse of process ids.
//!
//! `unsafe` because neither the standard library nor nix wraps the two system calls, which take and return
//! plain integers and touch no memory of this process; and because tokio requires a promise that a descriptor
//! stays the same.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::libc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use warren_types::Signal;

/// A handle to one process. It becomes readable when the process ends.
#[derive(Debug)]
pub(crate) struct Pidfd(OwnedFd);

impl Pidfd {
    /// A handle to the process that has this id now.
    ///
    /// # Errors
    /// `ESRCH` without such a process.
    pub fn open(pid: u32) -> io::Result<Self> {
        let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
        // SAFETY: pidfd_open(2) reads two integers and returns a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // The descriptor is new and has no other owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
    }

    /// Sends a signal. `false`: the process has ended.
    ///
    /// # Errors
    /// `EPERM` when the signal may not be sent.
    pub fn send(&self, signal: Signal) -> io::Result<bool> {
        let no_details: *const libc::siginfo_t = std::ptr::null();
        let fd = self.0.as_raw_fd();
        // SAFETY: pidfd_send_signal(2) accepts a null pointer for the details and then reads no memory.
        let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal.number(), no_details, 0) };
        match sent {
            0 => Ok(true),
            _ => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::ESRCH) => Ok(false),
                error => Err(error),
            },
        }
    }

    /// Whether the process has not ended.
    pub fn is_alive(&self) -> bool {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut fds, PollTimeout::ZERO), Ok(0))
    }
}

/// Waits for the end of a process. One wait per handle at a time.
///
/// # Errors
/// The descriptor cannot be polled, as for a second wait.
pub(crate) async fn wait_for_exit(pidfd: &Pidfd) -> io::Result<()> {
    // SAFETY: the handle owns its descriptor and neither replaces nor closes it while it is borrowed.
    let registered = unsafe { AsyncFd::register_with_interest(Raw(pidfd.0.as_fd()), Interest::READABLE) };
    registered.map_err(io::Error::from)?.readable().await.map(|_| ())
}

struct Raw<'a>(BorrowedFd<'a>);

impl AsRawFd for Raw<'_> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pidfd_outlives_process() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pidfd = Pidfd::open(child.id()).unwrap();
        assert!(pidfd.is_alive());
        assert!(pidfd.send(Signal::KILL).unwrap());
        child.wait().unwrap();
        assert!(!pidfd.is_alive());
        assert!(!pidfd.send(Signal::KILL).unwrap(), "an ended process gets no signal");
        assert!(Pidfd::open(u32::MAX).is_err());
    }

    #[tokio::test]
    async fn wait_for_exit_returns_on_exit() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pidfd = Pidfd::open(child.id()).unwrap();
        let mut waiting = Box::pin(wait_for_exit(&pidfd));
        assert!(futures::poll!(&mut waiting).is_pending());
        child.kill().unwrap();
        waiting.await.unwrap();
        child.wait().unwrap();
    }
}
