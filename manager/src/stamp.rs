//! The time that goes into commands and is shown to people.

use std::sync::Arc;

use warren_control::Clock;
use warren_types::Timestamp;

/// A clock that answers in the state's own type. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Stamp(Arc<dyn Clock>);

impl Stamp {
    /// Stamps with `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self(clock)
    }

    /// The time now; never less than an earlier answer.
    pub fn now(&self) -> Timestamp {
        Timestamp(self.0.unix_millis())
    }
}
