//! Values that several callers share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The least number of entries from which on unused ones are removed.
pub(super) const MIN_SHARED: usize = 64;

/// Values that exist as long as someone uses them.
pub(super) struct SharedValues<K, V>(Mutex<Entries<K, V>>);

struct Entries<K, V> {
    values: BTreeMap<K, Weak<V>>,
    /// The number of entries from which on unused ones are removed.
    limit: usize,
}

impl<K: Ord, V> SharedValues<K, V> {
    pub fn new() -> Self {
        Self(Mutex::new(Entries { values: BTreeMap::new(), limit: MIN_SHARED }))
    }

    /// The value of this key.
    pub fn get(&self, key: K, make: impl FnOnce() -> V) -> Arc<V> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(existing) = entries.values.get(&key).and_then(Weak::upgrade) {
            return existing;
        }
        if entries.values.len() >= entries.limit {
            entries.values.retain(|_, value| value.strong_count() > 0);
            // Looking at all entries for each new one would take quadratic time.
            entries.limit = MIN_SHARED.max(2 * entries.values.len());
        }
        let made = Arc::new(make());
        entries.values.insert(key, Arc::downgrade(&made));
        made
    }

    /// The number of entries, of which some may be unused.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values.len()
    }
}
