//! The rules of the queue as plain data, without a clock or waiting.

use std::collections::{BTreeMap, BTreeSet};

use super::WorkQueueFull;

/// Keys that wait for their time `T` and keys that run. A key is in one of the two, once.
#[derive(Debug)]
pub struct KeySchedule<K, T> {
    capacity: usize,
    waiting: BTreeMap<K, T>,
    /// The same pairs as `waiting`, by time.
    order: BTreeSet<(T, K)>,
    /// Waiting keys whose time does not change.
    paused: BTreeSet<K>,
    /// Running keys, and the requested time of their next run.
    running: BTreeMap<K, Option<T>>,
}

impl<K: Ord + Clone, T: Ord + Copy> KeySchedule<K, T> {
    /// An empty schedule for at most `capacity` keys.
    pub fn new(capacity: usize) -> Self {
        let (waiting, order, paused) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Self { capacity, waiting, order, paused, running: BTreeMap::new() }
    }

    /// Schedules a run at `due`, or after the current run of the key. A scheduled key keeps the earlier time, a
    /// paused key its own.
    pub fn wake_at(&mut self, key: K, due: T) -> Result<(), WorkQueueFull> {
        if let Some(again) = self.running.get_mut(&key) {
            *again = Some(again.map_or(due, |already| already.min(due)));
            return Ok(());
        }
        if !self.waiting.contains_key(&key) && self.len() >= self.capacity {
            return Err(WorkQueueFull { capacity: self.capacity });
        }
        self.wait(key, due);
        Ok(())
    }

    /// Takes the key with the earliest due time, if one is due at `now`. It runs until [`KeySchedule::finish`].
    pub fn take_due(&mut self, now: T) -> Option<K> {
        if self.next_due()? > now {
            return None;
        }
        let (_, key) = self.order.pop_first()?;
        self.waiting.remove(&key);
        self.paused.remove(&key);
        self.running.insert(key.clone(), None);
        Some(key)
    }

    /// Ends the run of a key; it waits again if it was scheduled meanwhile, or is to run `again`.
    pub fn finish(&mut self, key: &K, again: Option<T>) {
        let woken = self.running.remove(key).flatten();
        let due = match (woken, again) {
            (Some(woken), Some(again)) => Some(woken.min(again)),
            (woken, again) => woken.or(again),
        };
        if let Some(due) = due {
            self.wait(key.clone(), due);
        }
    }

    /// Ends the run of a key, which runs again at `until`, not earlier.
    pub fn finish_paused(&mut self, key: &K, until: T) {
        self.running.remove(key);
        self.wait(key.clone(), until);
        self.paused.insert(key.clone());
    }

    /// Due time of the next key.
    pub fn next_due(&self) -> Option<T> {
        self.order.first().map(|(due, _)| *due)
    }

    /// Number of waiting and running keys.
    pub fn len(&self) -> usize {
        self.waiting.len() + self.running.len()
    }

    /// Whether no key waits or runs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn wait(&mut self, key: K, due: T) {
        match self.waiting.get_mut(&key) {
            Some(already) if *already <= due || self.paused.contains(&key) => {}
            Some(already) => {
                self.order.remove(&(*already, key.clone()));
                *already = due;
                self.order.insert((due, key));
            }
            None => {
                self.waiting.insert(key.clone(), due);
                self.order.insert((due, key));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_keys_collapse_and_the_earlier_moment_wins() {
        for (first, second) in [(5, 3), (3, 5)] {
            let mut schedule = KeySchedule::new(10);
            schedule.wake_at("a", first).unwrap();
            schedule.wake_at("a", second).unwrap();
            assert_eq!(schedule.len(), 1);
            assert_eq!(schedule.take_due(2), None);
            assert_eq!(schedule.take_due(3), Some("a"));
            schedule.finish(&"a", None);
            assert_eq!((schedule.len(), schedule.take_due(100)), (0, None));
        }
    }

    #[test]
    fn paused_key_runs_at_its_time_and_once() {
        let mut schedule = KeySchedule::new(10);
        schedule.wake_at("a", 0).unwrap();
        assert_eq!(schedule.take_due(0), Some("a"));
        schedule.wake_at("a", 1).unwrap();
        schedule.finish_paused(&"a", 5);
        schedule.wake_at("a", 2).unwrap();
        assert_eq!((schedule.len(), schedule.take_due(4)), (1, None));
        assert_eq!(schedule.take_due(5), Some("a"));
        schedule.wake_at("a", 6).unwrap();
        schedule.finish(&"a", None);
        assert_eq!(schedule.take_due(6), Some("a"), "the next time is not paused");
    }

    #[test]
    fn a_key_woken_while_it_runs_waits_for_its_end() {
        let mut schedule = KeySchedule::new(10);
        schedule.wake_at("a", 0).unwrap();
        assert_eq!(schedule.take_due(0), Some("a"));
        schedule.wake_at("a", 1).unwrap();
        assert_eq!((schedule.take_due(9), schedule.next_due()), (None, None));
        schedule.finish(&"a", Some(50));
        assert_eq!(schedule.next_due(), Some(1));
    }

    #[test]
    fn the_longest_due_goes_first() {
        let mut schedule = KeySchedule::new(10);
        for (key, due) in [("c", 1), ("a", 3), ("b", 2)] {
            schedule.wake_at(key, due).unwrap();
        }
        let order: Vec<_> = std::iter::from_fn(|| schedule.take_due(9)).collect();
        assert_eq!(order, ["c", "b", "a"]);
    }

    #[test]
    fn a_full_queue_refuses_new_keys_only() {
        let mut schedule = KeySchedule::new(2);
        schedule.wake_at("a", 0).unwrap();
        schedule.wake_at("b", 0).unwrap();
        assert_eq!(schedule.take_due(0), Some("a"));
        assert_eq!(schedule.wake_at("c", 0), Err(WorkQueueFull { capacity: 2 }));
        schedule.wake_at("a", 0).unwrap();
        schedule.wake_at("b", 0).unwrap();
        schedule.finish(&"a", Some(7));
        assert_eq!(schedule.wake_at("c", 0), Err(WorkQueueFull { capacity: 2 }));
        assert_eq!(schedule.take_due(0), Some("a"));
        schedule.finish(&"a", None);
        schedule.wake_at("c", 0).unwrap();
    }

    #[derive(Clone, Debug)]
    enum Op {
        Wake(u8, u16),
        Take,
        Finish(u8, Option<u16>),
        Pass(u16),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0u8..6, 0u16..40).prop_map(|(key, after)| Op::Wake(key, after)),
            4 => Just(Op::Take),
            3 => (0u8..6, proptest::option::of(0u16..40)).prop_map(|(key, again)| Op::Finish(key, again)),
            2 => (0u16..20).prop_map(Op::Pass),
        ]
    }

    proptest! {
        /// Against the plainest model: per key, the earliest moment owed, and whether it runs.
        #[test]
        fn earliest_moment_wins_and_no_key_runs_twice(
            ops in proptest::collection::vec(op(), 1..120),
        ) {
            let (mut schedule, mut now) = (KeySchedule::new(6), 0u64);
            let mut owed: BTreeMap<u8, u64> = BTreeMap::new();
            let mut running = BTreeSet::new();
            for op in ops {
                match op {
                    Op::Wake(key, after) => {
                        let due = now + u64::from(after);
                        schedule.wake_at(key, due).unwrap();
                        owed.entry(key).and_modify(|owed| *owed = due.min(*owed)).or_insert(due);
                    }
                    Op::Take => {
                        let best = owed.iter().filter(|(key, due)| !running.contains(*key) && **due <= now);
                        let best = best.map(|(key, due)| (*due, *key)).min().map(|(_, key)| key);
                        prop_assert_eq!(schedule.take_due(now), best);
                        if let Some(key) = best {
                            owed.remove(&key);
                            prop_assert!(running.insert(key));
                        }
                    }
                    Op::Finish(key, again) if running.remove(&key) => {
                        let again = again.map(|after| now + u64::from(after));
                        schedule.finish(&key, again);
                        if let Some(due) = again {
                            owed.entry(key).and_modify(|owed| *owed = due.min(*owed)).or_insert(due);
                        }
                    }
                    Op::Finish(..) => {}
                    Op::Pass(by) => now += u64::from(by),
                }
                let next = owed.iter().filter(|(key, _)| !running.contains(*key)).map(|(_, due)| *due).min();
                prop_assert_eq!(schedule.next_due(), next);
            }
        }
    }
}
