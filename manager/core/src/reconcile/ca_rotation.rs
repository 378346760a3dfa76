//! Begins the next phase of the replacement of the certificate authority.

use warren_types::{CaPhase, CaRotation, Timestamp};

use super::ReconcilePlan;
use crate::state::{CaCommand, Command, State};

/// Empty while something is missing, or nothing is replaced.
pub fn reconcile_ca_rotation(state: &State, now: Timestamp) -> ReconcilePlan {
    let next = state.ca_rotation().zip(state.next_ca_phase());
    let term = state.applied().term;
    let advance = |(rotation, phase): (&CaRotation, CaPhase)| {
        Command::Ca(CaCommand::Advance { term, digest: rotation.digest, phase, at: now })
    };
    ReconcilePlan { commands: next.map(advance).into_iter().collect(), ..ReconcilePlan::default() }
}
