//! The answer to a write shows what that write made: its own value, at a version that no other write has.

use std::collections::BTreeMap;

use crate::writers::{Call, Object, Shown, Verb};

/// What writers were answered in the cluster's present life.
#[derive(Debug, Default)]
pub struct Answers(BTreeMap<Object, Acknowledged>);

/// Of one object, by the version that the answer showed.
#[derive(Debug, Default)]
struct Acknowledged {
    shown: BTreeMap<u64, Shown>,
    /// The versions that compare-and-sets expected.
    expected: BTreeMap<u64, u64>,
}

impl Answers {
    /// The newest version that some writer of the object was answered with.
    pub fn newest(&self, object: Object) -> u64 {
        self.0.get(&object).and_then(|known| known.shown.keys().next_back()).copied().unwrap_or(0)
    }

    /// A write was acknowledged, with an answer that shows this.
    pub fn acknowledged(&mut self, call: &Call, shown: Option<Shown>) -> Result<(), String> {
        let Some(shown) = shown.filter(|shown| shown.value == call.value) else {
            return Err(format!("answers show the caller's own write: {call:?} was answered with {shown:?}"));
        };
        let known = self.0.entry(call.object).or_default();
        if let Some(other) = known.shown.get(&shown.version).filter(|other| other.value != shown.value) {
            return Err(format!("returned versions are unique: both {other:?} and {shown:?}"));
        }
        if shown.version <= call.after {
            return Err(format!("returned versions increase: {call:?} was answered with {shown:?}"));
        }
        known.numbers_increase(call.object, shown)?;
        known.shown.insert(shown.version, shown);
        if let Verb::Set { expected } = call.verb {
            known.expected.insert(shown.version, expected);
        }
        known.nothing_came_between(shown.version)
    }

    /// A removal was acknowledged: the answer shows what was removed.
    pub fn removed(&mut self, call: &Call, shown: Option<Shown>) -> Result<(), String> {
        let Some(shown) = shown else {
            return Err(format!(
                "answers show the caller's own write: {call:?} was answered without its object"
            ));
        };
        let known = self.0.entry(call.object).or_default();
        match known.shown.get(&shown.version).filter(|other| other.value != shown.value) {
            None if shown.version >= call.after => Ok(()),
            other => {
                Err(format!("answers show the caller's own write: {call:?} with {shown:?}, beside {other:?}"))
            }
        }
    }
}

impl Acknowledged {
    /// As versions do.
    fn numbers_increase(&self, object: Object, shown: Shown) -> Result<(), String> {
        let before = self.shown.range(..shown.version).next_back();
        let after = self.shown.range(shown.version + 1..).next();
        let is_before = |one: &Shown, other: &Shown| one.number < other.number || object != Object::Config;
        let wrong = before.filter(|(_, before)| !is_before(before, &shown));
        match wrong.or_else(|| after.filter(|(_, after)| !is_before(&shown, after))) {
            None => Ok(()),
            Some((_, other)) => {
                Err(format!("returned numbers increase with the versions: {other:?} and {shown:?}"))
            }
        }
    }

    /// Looks at the compare-and-set that was answered with this version, or that may have passed over it.
    fn nothing_came_between(&self, version: u64) -> Result<(), String> {
        for (made, expected) in self.expected.range(version..).take(2) {
            if let Some((_, between)) = self.shown.range(expected + 1..*made).next() {
                return Err(format!(
                    "a compare-and-set succeeds only if nothing came between: version {made} replaced version \
                     {expected}, and {between:?} came between"
                ));
            }
        }
        Ok(())
    }
}
