//! The newest events, for those who resume: a bounded part of the sequence that is the same on every manager.

use std::collections::VecDeque;
use std::sync::Arc;

use warren_core::events::{ClusterEvent, EventPosition};
use warren_types::Timestamp;

/// The most events that are kept.
pub const MAX_EVENTS: usize = 10_000;
/// The most bytes of their texts, about.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// Every event of the entries after [`EventHistory::complete_after`] that were applied here.
#[derive(Debug)]
pub struct EventHistory {
    events: VecDeque<Arc<ClusterEvent>>,
    complete_after: u64,
    /// The time of the state at that index.
    complete_since: Timestamp,
    /// The newest entry that was added, with or without events.
    applied: u64,
    size: usize,
    max_events: usize,
}

/// Events after some position, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventPage {
    /// At most as many as were asked for.
    pub events: Vec<Arc<ClusterEvent>>,
    /// Where the next page begins.
    pub next: EventPosition,
}

/// The events after the requested position are not all kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "events after index {asked} are not all kept by this manager: those that it has begin after index {oldest} \
     ({since}); give --since {oldest}"
)]
pub struct EventsExpired {
    /// The index in the request.
    pub asked: u64,
    /// Events after this index are kept.
    pub oldest: u64,
    /// The time at that index.
    pub since: Timestamp,
}

impl EventHistory {
    /// An empty history, complete after the entry `index`, whose state has the clock `since`.
    pub fn starting_after(index: u64, since: Timestamp, max_events: usize) -> Self {
        let (complete_after, complete_since, applied) = (index, since, index);
        Self { events: VecDeque::new(), complete_after, complete_since, applied, size: 0, max_events }
    }

    /// Appends the events of the next entries, up to `applied`, and drops the oldest entries above the limits. The
    /// newest entry is always kept.
    pub fn add(&mut self, events: Vec<ClusterEvent>, applied: u64) {
        self.applied = applied;
        for event in events {
            self.size += size_of_event(&event);
            self.events.push_back(Arc::new(event));
        }
        while let Some(oldest) = self.oldest_excess() {
            while let Some(event) = self.events.pop_front_if(|event| event.position.index == oldest) {
                self.size -= size_of_event(&event);
                (self.complete_after, self.complete_since) = (oldest, event.at);
            }
        }
    }

    /// The oldest entry, if the history is too long and has others.
    fn oldest_excess(&self) -> Option<u64> {
        let is_long = self.events.len() > self.max_events || self.size > MAX_EVENT_BYTES;
        let (first, last) = (self.events.front()?, self.events.back()?);
        let oldest = first.position.index;
        (is_long && oldest != last.position.index).then_some(oldest)
    }

    /// Drops all: a snapshot replaced the state, so the entries up to `index` were not seen.
    pub fn reset_after(&mut self, index: u64, since: Timestamp) {
        *self = Self::starting_after(index, since, self.max_events);
    }

    /// All events of later entries are kept.
    pub fn complete_after(&self) -> u64 {
        self.complete_after
    }

    /// The newest entry whose events are here.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// The time of the entry after which the history is complete; zero if nothing happened before.
    pub fn complete_since(&self) -> Timestamp {
        self.complete_since
    }

    /// The events after `position`, at most `limit`.
    ///
    /// # Errors
    /// [`EventsExpired`] if some were dropped.
    pub fn page(&self, position: EventPosition, limit: usize) -> Result<EventPage, EventsExpired> {
        let is_kept = position.index >= self.complete_after;
        if !is_kept {
            let (oldest, since) = (self.complete_after, self.complete_since);
            return Err(EventsExpired { asked: position.index, oldest, since });
        }
        let start = self.events.partition_point(|event| event.position <= position);
        let events: Vec<_> = self.events.iter().skip(start).take(limit).cloned().collect();
        let next = match events.last() {
            Some(last) if events.len() == limit => last.position,
            _ => position.max(EventPosition::end_of(self.applied)),
        };
        Ok(EventPage { events, next })
    }

    /// The position before the first kept event at this time or later.
    pub fn position_before(&self, time: Timestamp) -> EventPosition {
        // Time never decreases from entry to entry.
        match self.events.partition_point(|event| event.at < time).checked_sub(1) {
            Some(earlier) => self.events[earlier].position,
            None => EventPosition::end_of(self.complete_after),
        }
    }
}

fn size_of_event(event: &ClusterEvent) -> usize {
    let changes = event.changes.iter().map(|it| it.field.len() + it.from.len() + it.to.len());
    size_of::<ClusterEvent>()
        + size_of_val(&event.changes[..])
        + event.id.len()
        + event.name.len()
        + event.reason.len()
        + changes.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use warren_core::events::EventAction;
    use warren_core::state::ObjectKind;

    use super::*;

    fn event(index: u64, number: u32) -> ClusterEvent {
        ClusterEvent {
            position: EventPosition { index, number },
            at: Timestamp(index * 10),
            kind: ObjectKind::Node,
            id: String::new(),
            name: "n".into(),
            action: EventAction::Created,
            changes: Vec::new(),
            reason: Arc::default(),
            task: None,
        }
    }

    fn position(index: u64, number: u32) -> EventPosition {
        EventPosition { index, number }
    }

    /// The positions of the events after one, at most `limit`.
    #[track_caller]
    fn check(history: &EventHistory, after: EventPosition, limit: usize, expected: &[(u64, u32)]) {
        let page = history.page(after, limit).unwrap();
        let found: Vec<_> = page.events.iter().map(|it| (it.position.index, it.position.number)).collect();
        assert_eq!(found, expected);
        let again = history.page(page.next, 100).unwrap();
        let rest = history.page(after, 100).unwrap().events;
        assert_eq!(again.events, rest[found.len()..], "nothing is lost or repeated");
    }

    #[test]
    fn events_are_resumed_within_an_entry() {
        let mut history = EventHistory::starting_after(2, Timestamp(20), 10);
        history.add(vec![event(3, 0), event(5, 0), event(5, 1)], 5);
        history.add(vec![event(8, 0)], 9);
        let all = [(3, 0), (5, 0), (5, 1), (8, 0)];
        check(&history, EventPosition::end_of(2), 100, &all);
        check(&history, EventPosition::end_of(2), 2, &all[..2]);
        check(&history, position(5, 0), 100, &all[2..]);
        check(&history, EventPosition::end_of(5), 1, &all[3..]);
        check(&history, position(8, 0), 100, &[]);
        check(&history, EventPosition::end_of(9), 100, &[]);
        assert_eq!(history.page(position(8, 0), 100).unwrap().next, EventPosition::end_of(9));
        assert_eq!(history.position_before(Timestamp(0)), EventPosition::end_of(2));
        assert_eq!(history.position_before(Timestamp(50)), position(3, 0));
        assert_eq!(history.position_before(Timestamp(51)), position(5, 1));
    }

    #[test]
    fn oldest_entries_are_dropped_as_a_whole() {
        let mut history = EventHistory::starting_after(0, Timestamp(0), 2);
        history.add(vec![event(1, 0), event(1, 1), event(2, 0)], 2);
        assert_eq!((history.complete_after(), history.complete_since()), (1, Timestamp(10)));
        check(&history, EventPosition::end_of(1), 10, &[(2, 0)]);
        let expired = history.page(EventPosition::end_of(0), 10).unwrap_err();
        assert_eq!((expired.asked, expired.oldest), (0, 1));
        assert!(expired.to_string().ends_with("give --since 1"), "{expired}");
        history.add(vec![event(3, 0), event(3, 1), event(3, 2)], 3);
        assert_eq!(history.complete_after(), 2, "the newest entry is kept, however long");
        check(&history, EventPosition::end_of(2), 10, &[(3, 0), (3, 1), (3, 2)]);
        history.reset_after(7, Timestamp(70));
        assert!(history.page(EventPosition::end_of(6), 10).is_err());
        check(&history, EventPosition::end_of(7), 10, &[]);
    }

    #[test]
    fn long_texts_are_bounded_by_size() {
        let mut history = EventHistory::starting_after(0, Timestamp(0), usize::MAX);
        for index in 1..=40 {
            let long = "x".repeat(1 << 20);
            history.add(vec![ClusterEvent { reason: long.into(), ..event(index, 0) }], index);
        }
        assert!(history.complete_after() >= 24 && history.size <= MAX_EVENT_BYTES, "{}", history.size);
    }
}
