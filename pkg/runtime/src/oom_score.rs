//! The OOM score of this process, and of the containerd that it starts.

use std::fs;

const FILE: &str = "/proc/self/oom_score_adj";
/// As systemd sets it for the unit of a node.
const PROTECTED: &str = "-500";

/// Has the kernel end containers before this process, and before a containerd that is started later, when memory is
/// short. Keeps a score that was set before. Logs a warning if the system refuses. Idempotent.
pub fn lower_oom_score() {
    let lowered = fs::read_to_string(FILE).and_then(|score| match score.trim() {
        "0" => fs::write(FILE, PROTECTED),
        _ => Ok(()),
    });
    if let Err(error) = lowered {
        tracing::warn!(%error, "the OOM score is not lowered; this process may end before containers");
    }
}
