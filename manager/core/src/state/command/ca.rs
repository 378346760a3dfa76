//! The writes that replace the certificate authority.

use warren_types::{CaDigest, CaHolder, CaPhase, SealedData, Timestamp};

/// A step of the replacement of the certificate authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CaCommand {
    /// Refused while an earlier replacement is in progress, or if `current` is not the authority of the cluster.
    /// Response: `Cluster`. The same authority again is `Unchanged`.
    Begin {
        /// The digest of the new authority.
        digest: CaDigest,
        /// The new authority with its key, sealed for managers.
        sealed: SealedData,
        /// The digest of the current authority.
        current: CaDigest,
        /// The certificate of the current authority as PEM.
        certificate: String,
        /// Time of the command.
        at: Timestamp,
    },
    /// Planned. Begins the next phase, if nothing is missing for it. Response: `Cluster`.
    Advance {
        /// Term of the planner's state.
        term: u64,
        /// The digest of the new authority.
        digest: CaDigest,
        /// The next phase.
        phase: CaPhase,
        /// Time of the command.
        at: Timestamp,
    },
    /// A manager shows a certificate of the new authority, or a node, user or administrator trusts it alone. Ignored
    /// for another authority. Response: `Done`.
    RecordRenewal {
        /// The digest of the authority.
        digest: CaDigest,
        /// Who has the certificate.
        holder: CaHolder,
        /// Time of the command.
        at: Timestamp,
    },
}

impl CaCommand {
    pub(super) fn planner_term(&self) -> Option<u64> {
        match self {
            Self::Advance { term, .. } => Some(*term),
            Self::Begin { .. } | Self::RecordRenewal { .. } => None,
        }
    }

    pub(super) fn at(&self) -> Timestamp {
        match self {
            Self::Begin { at, .. } | Self::Advance { at, .. } | Self::RecordRenewal { at, .. } => *at,
        }
    }

    pub(super) fn set_at(&mut self, time: Timestamp) {
        match self {
            Self::Begin { at, .. } | Self::Advance { at, .. } | Self::RecordRenewal { at, .. } => *at = time,
        }
    }
}
