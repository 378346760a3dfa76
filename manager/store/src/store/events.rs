//! Reads of the newest events, which the driver adds with each publication.

use std::sync::{MutexGuard, PoisonError};

use tokio::sync::watch;
use warren_core::events::EventPosition;
use warren_replica::EventHistory;
use warren_types::Timestamp;

use super::{EventPage, EventsExpired, Store};

impl Store {
    /// The events after `position`, at most `limit`.
    ///
    /// # Errors
    /// [`EventsExpired`] if some were dropped, or happened before this manager's history begins.
    pub fn events_after(&self, position: EventPosition, limit: usize) -> Result<EventPage, EventsExpired> {
        self.event_history().page(position, limit)
    }

    /// The position before the first kept event at this time or later, and whether older ones may be missing from
    /// that time on.
    pub fn events_since(&self, time: Timestamp) -> (EventPosition, bool) {
        let history = self.event_history();
        let begins = history.complete_since();
        (history.position_before(time), begins > Timestamp(0) && time <= begins)
    }

    /// The index after which this manager has all events, and the time of that entry: zero if none came before.
    pub fn events_begin(&self) -> (u64, Timestamp) {
        let history = self.event_history();
        (history.complete_after(), history.complete_since())
    }

    /// The position after all events so far.
    pub fn events_end(&self) -> EventPosition {
        EventPosition::end_of(self.event_history().applied())
    }

    /// Changes after each publication.
    pub fn publications(&self) -> watch::Receiver<u64> {
        self.inner.latest.subscribe()
    }

    fn event_history(&self) -> MutexGuard<'_, EventHistory> {
        self.inner.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
