//! Messages for users when acknowledged entries are missing: on this manager, or in the whole cluster.

use warren_consensus::{DurabilityStatus, LogPosition};

/// The problem and what to do; `None` without one.
pub fn describe_problem(
    DurabilityStatus { missing_entry: regressed, lost_entry: lost }: DurabilityStatus,
) -> Option<String> {
    let lost = lost.map(|index| {
        format!(
            "acknowledged writes up to index {index} may have been lost: the cluster replaced committed \
             entries; a manager that still has them stops when it restarts"
        )
    });
    let regressed = regressed.map(|LogPosition { term, index }| {
        format!(
            "the log of this manager lacks acknowledged entries up to index {index} of term {term}: its \
             data was restored from a backup or a copy of its disk. Until a leader has sent the missing \
             entries, it votes only for candidates that have them; if no manager has them any more, \
             continue without them: `warren manager run --accept-data-loss`"
        )
    });
    let problems: Vec<String> = lost.into_iter().chain(regressed).collect();
    (!problems.is_empty()).then(|| problems.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_names_entry_and_action() {
        assert_eq!(describe_problem(DurabilityStatus::default()), None);
        let regressed = Some(LogPosition { term: 3, index: 41 });
        let text = describe_problem(DurabilityStatus { missing_entry: regressed, lost_entry: None }).unwrap();
        assert!(text.contains("index 41 of term 3") && text.contains("--accept-data-loss"), "{text}");
        let text =
            describe_problem(DurabilityStatus { missing_entry: regressed, lost_entry: Some(57) }).unwrap();
        assert!(text.starts_with("acknowledged writes up to index 57 may have been lost"), "{text}");
        assert!(text.contains("restarts; the log of this manager lacks"), "{text}");
    }
}
