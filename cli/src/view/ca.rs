//! The certificate authority, and how far its replacement is.

use serde::Serialize;
use warren_proto::convert::ca_phase;
use warren_proto::v1;

use super::TimeView;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CaStatusView {
    /// Digest of the certificate of the authority that signs new certificates.
    ca_digest: String,
    /// Absent if the authority was never replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    rotation: Option<CaRotationView>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CaRotationView {
    phase: &'static str,
    began_at: TimeView,
    managers: CaProgressView,
    nodes: CaProgressView,
    users: CaProgressView,
}

/// Who has a certificate of the newest authority.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CaProgressView {
    renewed: u32,
    total: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<String>,
}

impl CaProgressView {
    fn new(wire: Option<v1::CaProgress>) -> Self {
        let v1::CaProgress { total, missing, missing_names } = wire.unwrap_or_default();
        Self { renewed: total.saturating_sub(missing), total, missing: missing_names }
    }
}

impl CaStatusView {
    pub fn new(wire: v1::CaStatus) -> Self {
        let v1::CaStatus { ca_digest, phase, began_at, managers, nodes, users } = wire;
        let rotation = |phase: warren_types::CaPhase| CaRotationView {
            phase: phase.as_str(),
            began_at: TimeView::new(began_at),
            managers: CaProgressView::new(managers),
            nodes: CaProgressView::new(nodes),
            users: CaProgressView::new(users),
        };
        Self { ca_digest, rotation: ca_phase(phase).ok().map(rotation) }
    }
}

/// `managers 2/3, nodes 0/5, users 0/2`.
pub fn progress_summary(status: &v1::CaStatus) -> String {
    let count = |progress: &Option<v1::CaProgress>| {
        let CaProgressView { renewed, total, .. } = CaProgressView::new(progress.clone());
        format!("{renewed}/{total}")
    };
    let v1::CaStatus { managers, nodes, users, .. } = status;
    format!("managers {}, nodes {}, users {}", count(managers), count(nodes), count(users))
}

/// Who is waited for, with what to do.
pub fn progress_lines(status: &v1::CaStatus) -> Vec<(String, String)> {
    let missing =
        |progress: &Option<v1::CaProgress>, line: &dyn Fn(&str) -> String| -> Vec<(String, String)> {
            let names = progress.as_ref().map(|progress| progress.missing_names.clone()).unwrap_or_default();
            names.into_iter().map(|name| (name.clone(), line(&name))).collect()
        };
    match status.phase() {
        v1::CaPhase::Managers => missing(&status.managers, &|name| {
            format!(
                "manager without a new certificate; if it is down, start it, or remove it with \
                 `warren manager rm {name}`"
            )
        }),
        v1::CaPhase::Nodes => {
            missing(&status.nodes, &|_| "node that trusts the earlier certificate authority".to_owned())
        }
        v1::CaPhase::Unspecified | v1::CaPhase::Complete => Vec::new(),
    }
}
