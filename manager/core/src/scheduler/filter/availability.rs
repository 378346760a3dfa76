//! A node that people drained or paused gets no tasks.

use warren_types::Availability;

use super::{Candidate, Filter, Group, Phrase};

pub(super) struct Available;

impl Filter for Available {
    fn admits(&self, _: &Group<'_>, node: &Candidate<'_>) -> bool {
        node.node.availability == Availability::Active
    }

    fn explain(&self, _: &Group<'_>, refused: &[&Candidate<'_>]) -> Vec<Phrase> {
        let count = |wanted| refused.iter().filter(|node| node.node.availability == wanted).count();
        let drained = Phrase::of(count(Availability::Drain), "is", "are", "drained");
        let paused = Phrase::of(count(Availability::Pause), "is", "are", "paused");
        drained.into_iter().chain(paused).collect()
    }
}
