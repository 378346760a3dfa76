//! The peer of a connection: its identity, and where it connects from.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use warren_types::PublicKeyHash;

use crate::Identity;

/// The other end, as far as the connection proves it. What it may do is decided by the API.
///
/// Every request served through [`crate::serve_tls`] or [`crate::serve_local`] carries one in its extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// It holds the key of a certificate of this cluster that is valid now.
    Certificate {
        /// Who the certificate was issued to.
        identity: Identity,
        /// Hash of its key.
        key: PublicKeyHash,
        /// Where it dialled from.
        address: SocketAddr,
    },
    /// A process on this machine that may open the unix socket, as the kernel names it.
    Local {
        /// Its effective user at the time it connected.
        uid: u32,
        /// Its effective group at the time it connected.
        gid: u32,
    },
    /// It showed no certificate. It may only join, log in, renew the certificate of its key, or ask whether a machine
    /// was removed, and stays within [`crate::HandshakeLimits`].
    Anonymous {
        /// Where it dialled from.
        address: SocketAddr,
    },
    /// A caller of another manager, which relays the request. The connection proves only which manager that is; its
    /// word on the caller is taken, since every manager can issue certificates.
    Relayed {
        /// The other end of the connection to that manager.
        caller: Arc<Peer>,
        /// The manager.
        by: Identity,
    },
}

impl Peer {
    /// Who made the request, whichever manager received it.
    pub fn origin(&self) -> &Peer {
        match self {
            Peer::Relayed { caller, .. } => caller.origin(),
            peer => peer,
        }
    }
}

/// As in audit lines: `user alice at 10.0.0.7:40112`, `uid 1000`, `anonymous client at 10.0.0.7:40112`,
/// `uid 1000 through manager 42`.
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Certificate { identity, address, .. } => write!(f, "{identity} at {address}"),
            Peer::Local { uid, .. } => write!(f, "uid {uid}"),
            Peer::Anonymous { address } => write!(f, "anonymous client at {address}"),
            Peer::Relayed { caller, by } => write!(f, "{caller} through {by}"),
        }
    }
}
