//! Entries are applied: the state changes, whoever waits is answered, planners and workers are woken.

use std::collections::BTreeSet;

use warren_consensus::{Committed, EntryKind, Event as RaftEvent};
use warren_core::{Applied, Change, Outcome};

use super::Who;
use crate::world::World;

/// What a row of entries changed, by who must hear of it.
#[derive(Default)]
struct News {
    changes: Vec<Change>,
    answers: Vec<(Who, u64, Outcome)>,
}

impl World {
    pub(super) fn apply(&mut self, host: usize, entries: Vec<Committed>) {
        let Some(last) = entries.last().map(|committed| committed.entry.index) else { return };
        let could_plan = self.life(host).is_some_and(|run| run.role.may_plan);
        let mut news = News::default();
        for committed in entries {
            self.apply_one(host, committed, &mut news);
        }
        self.raft(host, RaftEvent::Applied { index: last });
        self.tell(host, news);
        self.oracle_keeps_promises(host);
        if !could_plan && self.life(host).is_some_and(|run| run.role.may_plan) {
            self.begins_to_lead(host);
        }
        self.maybe_snapshot(host);
    }

    fn apply_one(&mut self, host: usize, committed: Committed, news: &mut News) {
        let (index, term) = (committed.entry.index, committed.entry.term);
        let elapsed = self.elapsed();
        let Some(run) = &mut self.managers[host].run else { return };
        run.role.may_plan |= run.role.leads && term == run.role.term;
        let place = match committed.entry.kind {
            EntryKind::Command => committed.entry.data.as_ref().try_into().map_or(0, u64::from_be_bytes),
            EntryKind::Noop | EntryKind::Membership => {
                run.state.advance(Applied { term, index });
                return self.oracle_applied(host, None, None);
            }
        };
        let command = &self.commands[usize::try_from(place).unwrap_or(0)];
        let outcome = run.state.apply(term, index, command);
        run.clock.saw(run.state.clock(), elapsed);
        if let Outcome::Applied { changes, .. } = &outcome {
            news.changes.extend(changes);
        }
        let who = committed.proposal.and_then(|id| run.writing.take_proposed(id));
        self.oracle_applied(host, Some(place), Some(&outcome));
        if let Some(who) = who {
            news.answers.push((who, index, outcome));
        }
    }

    fn tell(&mut self, host: usize, news: News) {
        self.wake(host, &news.changes);
        for (who, index, outcome) in news.answers {
            self.answer(host, who, Ok((index, Box::new(outcome))));
        }
        self.answer_what_was_applied(host);
        if news.changes.iter().any(|change| matches!(change, Change::Member(_))) {
            self.managers_changed(host);
        }
        if news.changes.iter().any(|change| matches!(change, Change::Node(_))) {
            self.end_old_sessions(host);
        }
        self.open_sessions(host);
        let nodes: BTreeSet<_> = news.changes.iter().filter_map(assigned).collect();
        for node in nodes {
            if let Some(worker) = self.worker_of(node) {
                self.push_assignment(host, worker);
            }
        }
    }

    /// The state is another one at once: it was taken over from the leader.
    pub(super) fn installed(&mut self, host: usize) {
        self.answer_what_was_applied(host);
        self.end_old_sessions(host);
        self.managers_changed(host);
        for worker in self.worker_keys() {
            self.push_assignment(host, worker);
        }
        self.oracle_keeps_promises(host);
    }
}

fn assigned(change: &Change) -> Option<warren_types::NodeId> {
    match change {
        Change::Assignment(node) => Some(*node),
        _ => None,
    }
}
