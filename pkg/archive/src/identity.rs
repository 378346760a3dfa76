//! The user to whom new files belong.
//!
//! Root of the node cannot make files in a mount whose ids are shifted for a container: its own id does not exist
//! there. As the container's root it can, and keeps all privileges to read and write the files of others.
#![allow(unsafe_code)] // nix has no prctl(2) for this; each call says why it may be made.

use std::io;
use std::panic::resume_unwind;
use std::thread;

use nix::libc;
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

/// No user has this id: the call only returns the present one.
const NOBODY: u32 = u32::MAX;

/// Runs `work` on a thread whose new files belong to the user and the group with this id. Needs root.
///
/// # Errors
/// The identity cannot be changed.
pub(crate) fn as_owner<T: Send>(id: u32, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    // A thread of its own: it does not get its identity back.
    thread::scope(|scope| {
        let working = thread::Builder::new().spawn_scoped(scope, || assume(id).map(|()| work()))?;
        working.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

fn assume(id: u32) -> io::Result<()> {
    // SAFETY: they take numbers, and change this thread only.
    let kept = unsafe {
        match libc::prctl(libc::PR_GET_SECUREBITS) {
            -1 => -1,
            // Privileges stay with a change of the user.
            bits => libc::prctl(
                libc::PR_SET_SECUREBITS,
                libc::c_ulong::from((bits | libc::SECBIT_NO_SETUID_FIXUP).cast_unsigned()),
            ),
        }
    };
    if kept == -1 {
        return Err(io::Error::last_os_error());
    }
    setfsgid(Gid::from_raw(id));
    setfsuid(Uid::from_raw(id));
    let now = (setfsuid(Uid::from_raw(NOBODY)).as_raw(), setfsgid(Gid::from_raw(NOBODY)).as_raw());
    match now == (id, id) {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(libc::EPERM)),
    }
}
