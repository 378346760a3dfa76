//! What a node has: images and the digest of its program stay in memory, volumes are compared with the replicated
//! state.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tonic::Status;
use warren_core::state::{HeldVolumes, ObjectKind};
use warren_core::{Command, Refusal, State};
use warren_proto::v1;
use warren_store::ProposeError;
use warren_store::problem::node_removed;
use warren_types::{MAX_REPORTED_IMAGES, MAX_REPORTED_VOLUMES, NodeId, Timestamp, VolumeName};

use super::{SessionHandler, truncate};

/// Maximum length of an image's name and of its digest in bytes.
const MAX_IMAGE_BYTES: usize = 512;
/// Maximum length of the digest of a program in bytes.
const MAX_PROGRAM_DIGEST_BYTES: usize = 80;
/// Interval at which the last report is compared with the state again: data is gone only some time after the release
/// of its volume.
const RECHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The volumes reported last; `None` before the first report.
pub type ReportedVolumes = Option<HeldVolumes>;

/// The images, the digest of the program and the volumes of an inventory, limited in number and length. Names that are
/// no names of volumes are skipped.
pub fn parse(inventory: v1::NodeInventory) -> (Vec<v1::HeldImage>, String, HeldVolumes) {
    let v1::NodeInventory { mut images, volumes, volumes_truncated, mut program_digest } = inventory;
    truncate(&mut program_digest, MAX_PROGRAM_DIGEST_BYTES);
    images.truncate(MAX_REPORTED_IMAGES);
    for v1::HeldImage { reference, digest } in &mut images {
        truncate(reference, MAX_IMAGE_BYTES);
        truncate(digest, MAX_IMAGE_BYTES);
    }
    let is_truncated = volumes_truncated || volumes.len() > MAX_REPORTED_VOLUMES;
    let names = volumes.iter().take(MAX_REPORTED_VOLUMES).filter_map(|name| name.parse().ok()).collect();
    (images, program_digest, HeldVolumes { names, is_truncated })
}

impl SessionHandler<'_> {
    /// Replicates what the reported volumes change. A worker reports them only when they change, so the last report
    /// is compared again after an interval, and a failed write is retried then.
    ///
    /// # Errors
    /// The node was removed.
    pub(super) async fn replicate_volumes(
        &self,
        mut reported: watch::Receiver<ReportedVolumes>,
    ) -> Result<(), Status> {
        let mut recheck = interval(RECHECK_INTERVAL);
        recheck.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The last report has not been compared and stored yet.
        let mut is_new = false;
        loop {
            tokio::select! {
                changed = reported.changed() => match changed {
                    Ok(()) => is_new = true,
                    Err(_) => return Ok(()),
                },
                _ = recheck.tick() => {}
            }
            let (node, session, at) = (self.node, self.session_number, self.context.clock.now());
            let due = {
                let held = reported.borrow_and_update();
                let published = self.context.store.read();
                held.as_ref().and_then(|held| due_report(&published.state, node, held, is_new, at))
            };
            let Some(held) = due else {
                is_new = false;
                continue;
            };
            let command = Command::ReportVolumes { node, session, held, at };
            match Box::pin(self.context.store.propose(command)).await {
                Ok(_) => {
                    is_new = false;
                    tracing::info!(%node, "data without a volume changed");
                }
                Err(ProposeError::Rejected(Refusal::NotFound { kind: ObjectKind::Node, .. })) => {
                    return Err(node_removed());
                }
                // Also returned for a superseded session, which ends by itself.
                Err(error) => {
                    tracing::debug!(%node, %error, "storing the volumes failed; retrying after an interval");
                }
            }
        }
    }
}

/// What must be stored of a report, if anything. Data that no volume has is stored only while the report is new: since
/// then it may have been deleted with its volume.
fn due_report(
    state: &State,
    node: NodeId,
    held: &HeldVolumes,
    is_new: bool,
    at: Timestamp,
) -> Option<HeldVolumes> {
    let changes = state.volume_report_changes(node, held, at);
    if is_new {
        return (!changes.is_empty()).then(|| held.clone());
    }
    let is_recorded = |name: &&VolumeName| state.volume_by_name(name).is_some();
    let names = || held.names.iter().filter(is_recorded).cloned().collect();
    (!changes.gone.is_empty()).then(|| HeldVolumes { names: names(), is_truncated: held.is_truncated })
}

#[cfg(test)]
mod tests {
    use warren_core::state::HeldVolumes;
    use warren_core::{ApplyOutcome, FEATURE_LEVEL};
    use warren_types::{ClusterId, Id, NodeRole};

    use super::*;

    const NODE: NodeId = NodeId(Id(1));
    const AT: Timestamp = Timestamp(1_795_184_280_000);

    fn held(names: &[&str]) -> HeldVolumes {
        HeldVolumes { names: names.iter().map(|name| name.parse().unwrap()).collect(), is_truncated: false }
    }

    /// With a released volume, whose data a node reported.
    fn state() -> State {
        let mut state = State::new();
        let description = warren_types::NodeDescription::default();
        for (command, index) in [
            Command::CreateCluster {
                id: ClusterId(Id(2)),
                ranges: vec!["10.210.0.0/16".parse().unwrap()],
                feature_level: FEATURE_LEVEL,
                at: AT,
            },
            Command::RegisterNode {
                id: NODE,
                name: "n1".parse().unwrap(),
                role: NodeRole::Worker,
                description: description.clone(),
                taints: Default::default(),
                at: AT,
            },
            Command::OpenSession { node: NODE, description, manager: 0, at: AT },
            Command::ReportVolumes { node: NODE, session: 1, held: held(&["old"]), at: AT },
        ]
        .into_iter()
        .zip(1..)
        {
            let outcome = state.apply(1, index, &command);
            assert!(matches!(outcome, ApplyOutcome::Applied { .. }), "{outcome:?}");
        }
        state
    }

    #[test]
    fn later_comparison_of_a_report_stores_only_what_is_gone() {
        let (state, later) = (state(), AT + Duration::from_secs(3600));
        let due = |names: &[&str], is_new, at| due_report(&state, NODE, &held(names), is_new, at);
        assert_eq!(due(&["old"], true, later), None);
        assert_eq!(due(&["old", "other"], true, AT), Some(held(&["old", "other"])));
        assert_eq!(due(&["old", "other"], false, later), None, "it may have been purged since");
        assert_eq!(due(&[], true, AT), None, "the report may be older than the release");
        assert_eq!(due(&[], false, later), Some(held(&[])));
        assert_eq!(due(&["other"], false, later), Some(held(&[])));
        let truncated = HeldVolumes { is_truncated: true, ..held(&[]) };
        assert_eq!(due_report(&state, NODE, &truncated, false, later), None);
    }
}
