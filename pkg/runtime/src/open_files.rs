//! The limit of open files: raised for this process, as it was for the containerd that it starts.

use std::sync::OnceLock;

use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

/// Soft and hard limit before this process raised them.
static INHERITED: OnceLock<(rlim_t, rlim_t)> = OnceLock::new();

/// Raises the soft limit of this process to the hard one: each published port takes a socket. A containerd that is
/// started later has the limits of before. Logs a warning if the system refuses. Idempotent.
pub fn raise_open_files_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|limits| {
        let (_, hard) = *INHERITED.get_or_init(|| limits);
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    });
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files is not raised; it bounds the number of published ports");
    }
}

/// The limits of before, if they were raised.
pub(crate) fn inherited() -> Option<(rlim_t, rlim_t)> {
    INHERITED.get().copied()
}
