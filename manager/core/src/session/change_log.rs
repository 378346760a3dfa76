//! Values by key, and the version at which each key changed last, so that the changes since any version are found
//! without looking at what did not change.

use std::collections::{BTreeMap, BTreeSet};

/// The most removed keys that are remembered.
const MAX_REMOVED: usize = 10_000;

#[derive(Debug, Clone)]
pub(super) struct ChangeLog<K, V> {
    current: BTreeMap<K, (u64, V)>,
    /// Removed keys and when they were.
    removed: BTreeMap<K, u64>,
    /// The keys by the version of their last change.
    by_version: BTreeMap<u64, BTreeSet<K>>,
    /// What was removed until this version is not known.
    floor: u64,
}

impl<K: Ord + Clone, V: PartialEq> ChangeLog<K, V> {
    /// An empty log that knows every change after `floor`.
    pub fn new(floor: u64) -> Self {
        Self { current: BTreeMap::new(), removed: BTreeMap::new(), by_version: BTreeMap::new(), floor }
    }

    /// The value of `key` is this one since `version`; `None`: it does not exist. Whether that is a change.
    pub fn set(&mut self, version: u64, key: K, value: Option<V>) -> bool {
        let known = self.current.get(&key);
        if known.map(|(_, value)| value) == value.as_ref() {
            return false;
        }
        let before = known.map(|(version, _)| *version).or_else(|| self.removed.remove(&key));
        if let Some(before) = before
            && let Some(keys) = self.by_version.get_mut(&before)
        {
            keys.remove(&key);
            if keys.is_empty() {
                self.by_version.remove(&before);
            }
        }
        self.by_version.entry(version).or_default().insert(key.clone());
        match value {
            Some(value) => drop(self.current.insert(key, (version, value))),
            None => {
                self.current.remove(&key);
                self.removed.insert(key, version);
                self.limit_removed();
            }
        }
        true
    }

    fn limit_removed(&mut self) {
        if self.removed.len() <= MAX_REMOVED {
            return;
        }
        let (removed, by_version) = (&mut self.removed, &mut self.by_version);
        // Half of them, so that this is rare.
        while removed.len() > MAX_REMOVED / 2 {
            let Some((version, keys)) =
                by_version.iter_mut().find(|(_, keys)| keys.iter().any(|key| removed.contains_key(key)))
            else {
                return;
            };
            self.floor = *version;
            keys.retain(|key| removed.remove(key).is_none());
        }
        by_version.retain(|_, keys| !keys.is_empty());
    }

    /// Whether all changes after `version` are known.
    pub fn covers(&self, version: u64) -> bool {
        version >= self.floor
    }

    /// Whether something changed after `version`.
    pub fn has_changed_since(&self, version: u64) -> bool {
        self.by_version.last_key_value().is_some_and(|(last, _)| *last > version)
    }

    /// The version of the last change that `version` includes: equal for all versions with the same changes after
    /// them.
    pub fn last_change_until(&self, version: u64) -> u64 {
        self.by_version.range(..=version).next_back().map_or(0, |(last, _)| *last)
    }

    /// The keys that changed after `version`, with their values now, in the order of keys.
    pub fn changes_since(&self, version: u64) -> BTreeMap<&K, Option<&V>> {
        let keys = self.by_version.range(version.saturating_add(1)..).flat_map(|(_, keys)| keys);
        keys.map(|key| (key, self.get(key))).collect()
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        self.current.get(key).map(|(_, value)| value)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.current.iter().map(|(key, (_, value))| (key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_listed_at_its_last_change() {
        let mut log = ChangeLog::new(2);
        assert!(log.set(3, "a", Some(1)) && log.set(4, "b", Some(1)) && !log.set(5, "a", Some(1)));
        assert!(log.set(6, "a", Some(2)) && log.set(7, "b", None) && !log.set(8, "c", None));
        assert_eq!(log.changes_since(2), BTreeMap::from([(&"a", Some(&2)), (&"b", None)]));
        assert_eq!(log.changes_since(6), BTreeMap::from([(&"b", None)]));
        assert!(log.changes_since(7).is_empty() && !log.has_changed_since(7) && log.has_changed_since(6));
        assert_eq!((log.last_change_until(5), log.last_change_until(6), log.last_change_until(9)), (0, 6, 7));
        assert!(log.set(9, "b", Some(3)));
        assert_eq!(log.changes_since(6), BTreeMap::from([(&"b", Some(&3))]));
        assert!(log.covers(2) && !log.covers(1));
    }

    #[test]
    fn removed_keys_are_limited_and_raise_the_floor() {
        let (mut log, count) = (ChangeLog::new(0), u64::try_from(MAX_REMOVED).unwrap() + 1);
        for key in 0..count {
            log.set(1, key, Some(()));
        }
        for key in 0..count {
            log.set(2 + key, key, None);
        }
        assert_eq!(log.removed.len(), MAX_REMOVED / 2);
        let floor = log.floor;
        assert!(floor > 2 && log.covers(floor));
        assert_eq!(log.changes_since(floor).len(), MAX_REMOVED / 2);
        assert_eq!(log.changes_since(0).len(), MAX_REMOVED / 2);
    }
}
