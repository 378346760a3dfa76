//! What is said to people when acknowledged entries are missing: on this manager, or in the whole cluster.

use std::fmt;

use warren_consensus::{Durability, Position};

/// A [`Durability`] in words; nothing where all is well.
#[derive(Debug, Clone, Copy)]
pub struct Shown(pub Durability);

impl Shown {
    /// The words, if something is wrong.
    pub fn problem(self) -> Option<String> {
        (self.0 != Durability::default()).then(|| self.to_string())
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Durability { regressed, lost } = self.0;
        if let Some(index) = lost {
            write!(
                f,
                "acknowledged writes up to entry {index} may have been lost: the cluster replaced entries that were \
                 committed; a manager that still has the old ones stops when it comes back"
            )?;
        }
        if let Some(Position { term, index }) = regressed {
            let separator = if lost.is_some() { "; " } else { "" };
            write!(
                f,
                "{separator}the log of this manager is older than what it acknowledged, entry {index} of term {term}: \
                 its data came from a backup or a copy of its disk. Until a leader has sent what is missing it votes \
                 for nobody without that; if no manager with it can come back, \
                 `warren manager run --accept-data-loss` goes on without"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_names_the_entry_and_what_to_do() {
        assert_eq!(Shown(Durability::default()).problem(), None);
        let regressed = Some(Position { term: 3, index: 41 });
        let text = Shown(Durability { regressed, lost: None }).problem().unwrap();
        assert!(text.contains("entry 41 of term 3") && text.contains("--accept-data-loss"), "{text}");
        let text = Shown(Durability { regressed, lost: Some(57) }).problem().unwrap();
        assert!(text.starts_with("acknowledged writes up to entry 57 may have been lost"), "{text}");
        assert!(text.contains("comes back; the log of this manager is older"), "{text}");
    }
}
