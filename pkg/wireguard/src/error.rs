//! Errors of this crate.

use std::io;
use std::path::PathBuf;

/// A failed operation on WireGuard or its process.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process could not be started, or ended before it was ready.
    #[error("cannot start WireGuard: {reason}")]
    Start {
        /// What the system or the process said.
        reason: String,
    },
    /// The process does not answer on its socket.
    #[error("cannot {operation} the WireGuard process at {path:?}: {source}")]
    Control {
        /// The failed step.
        operation: &'static str,
        /// Path of the socket.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// The process answered something else than the protocol allows.
    #[error("the WireGuard process answered {line:?}, which is not understood")]
    Answer {
        /// The line.
        line: String,
    },
    /// The process could not apply the settings.
    #[error(
        "WireGuard refuses its settings (errno {errno}); UDP port {port} may be in use: stop what uses it, or choose \
         another port with --wireguard-port on all nodes"
    )]
    Refused {
        /// The answer of the process.
        errno: i32,
        /// The UDP port that was asked for.
        port: u16,
    },
}
