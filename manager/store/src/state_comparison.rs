//! Compares the state of all managers: each queries the digests of the others once a minute, and compares them itself.
//! A difference is reported in status, health checks, metrics and logs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use warren_core::StateDigest;
use warren_replica::{ComparisonReport, DigestComparison};
pub use warren_replica::{DivergenceEvidence, StateDivergence};
use warren_types::MemberId;

/// Comparison interval.
pub const COMPARE_INTERVAL: Duration = Duration::from_secs(60);

/// The last result for each manager. Cheap to clone; all clones share one table.
#[derive(Debug, Clone, Default)]
pub struct StateComparison(Arc<Mutex<DigestComparison>>);

impl StateComparison {
    fn lock(&self) -> MutexGuard<'_, DigestComparison> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`DigestComparison::divergence`].
    pub fn divergence(&self, member: MemberId) -> Option<StateDivergence> {
        self.lock().divergence(member)
    }

    /// As [`DigestComparison::results`].
    pub fn results(&self) -> Vec<(MemberId, bool)> {
        self.lock().results()
    }

    /// As [`DigestComparison::record_digests`]; logs what it reports.
    pub fn record_digests(
        &self,
        reported: &BTreeMap<MemberId, Vec<StateDigest>>,
        leader: Option<MemberId>,
        members: &BTreeSet<MemberId>,
    ) {
        for (member, report) in self.lock().record_digests(reported, leader, members) {
            match report {
                ComparisonReport::Diverged(difference) => {
                    tracing::error!(member, %difference, "manager state diverged");
                }
                ComparisonReport::Recovered => {
                    tracing::warn!(member, "manager state matches the others again");
                }
            }
        }
    }
}
