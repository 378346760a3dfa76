//! Asks the kernel about its clock.
//!
//! `unsafe` because no safe wrapper of adjtimex(2) is among the libraries in use.
#![allow(unsafe_code)]

use std::io;
use std::time::Duration;

use nix::libc;

use super::facts::KernelClock;

/// Reads the state of the kernel's clock; sets nothing.
pub(super) fn read() -> io::Result<KernelClock> {
    // SAFETY: all fields are numbers. Without bits in `modes` the call sets nothing; it fills the structure.
    let (state, clock) = unsafe {
        let mut clock: libc::timex = std::mem::zeroed();
        (libc::adjtimex(&raw mut clock), clock)
    };
    if state < 0 {
        return Err(io::Error::last_os_error());
    }
    let micros = u64::try_from(clock.maxerror).unwrap_or_default();
    Ok(KernelClock {
        is_synchronised: state != libc::TIME_ERROR && clock.status & libc::STA_UNSYNC == 0,
        max_error: Duration::from_micros(micros),
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_kernel_answers() {
        super::read().unwrap();
    }
}
