//! What is said to people when acknowledged entries are missing: on this manager, or in the whole cluster.

use warren_consensus::{Durability, Position};

/// What is wrong, and what to do; nothing where all is well.
pub fn problem(Durability { regressed, lost }: Durability) -> Option<String> {
    let lost = lost.map(|index| {
        format!(
            "acknowledged writes up to entry {index} may have been lost: the cluster replaced entries that were \
             committed; a manager that still has the old ones stops when it comes back"
        )
    });
    let regressed = regressed.map(|Position { term, index }| {
        format!(
            "the log of this manager is older than what it acknowledged, entry {index} of term {term}: its data came \
             from a backup or a copy of its disk. Until a leader has sent what is missing it votes for nobody without \
             that; if no manager with it can come back, `warren manager run --accept-data-loss` goes on without"
        )
    });
    let problems: Vec<String> = lost.into_iter().chain(regressed).collect();
    (!problems.is_empty()).then(|| problems.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_names_the_entry_and_what_to_do() {
        assert_eq!(problem(Durability::default()), None);
        let regressed = Some(Position { term: 3, index: 41 });
        let text = problem(Durability { regressed, lost: None }).unwrap();
        assert!(text.contains("entry 41 of term 3") && text.contains("--accept-data-loss"), "{text}");
        let text = problem(Durability { regressed, lost: Some(57) }).unwrap();
        assert!(text.starts_with("acknowledged writes up to entry 57 may have been lost"), "{text}");
        assert!(text.contains("comes back; the log of this manager is older"), "{text}");
    }
}
