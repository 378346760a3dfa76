//! The answer to a write shows what that write made: its own value, at a version that no other write has.

use std::collections::BTreeMap;

use crate::writers::{ObjectAnswer, SharedObject, WriteCall, WriteKind};

/// The answers to writes in the current incarnation.
#[derive(Debug, Default)]
pub struct WriteAnswers(BTreeMap<SharedObject, ObjectAnswers>);

/// The answers for one object, by version.
#[derive(Debug, Default)]
struct ObjectAnswers {
    shown: BTreeMap<u64, ObjectAnswer>,
    /// The versions that compare-and-sets expected.
    expected: BTreeMap<u64, u64>,
}

impl WriteAnswers {
    /// The newest version of the object in any answer.
    pub fn newest(&self, object: SharedObject) -> u64 {
        self.0.get(&object).and_then(|known| known.shown.keys().next_back()).copied().unwrap_or(0)
    }

    /// A write was acknowledged with this answer.
    pub fn record_write(&mut self, call: &WriteCall, shown: Option<ObjectAnswer>) -> Result<(), String> {
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
        if let WriteKind::Set { expected } = call.verb {
            known.expected.insert(shown.version, expected);
        }
        known.nothing_came_between(shown.version)
    }

    /// A removal was acknowledged: the answer shows the removed object.
    pub fn record_removal(&mut self, call: &WriteCall, shown: Option<ObjectAnswer>) -> Result<(), String> {
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

impl ObjectAnswers {
    /// Numbers increase in the order of versions.
    fn numbers_increase(&self, object: SharedObject, shown: ObjectAnswer) -> Result<(), String> {
        let before = self.shown.range(..shown.version).next_back();
        let after = self.shown.range(shown.version + 1..).next();
        let is_before = |one: &ObjectAnswer, other: &ObjectAnswer| {
            one.number < other.number || object != SharedObject::Config
        };
        let wrong = before.filter(|(_, before)| !is_before(before, &shown));
        match wrong.or_else(|| after.filter(|(_, after)| !is_before(&shown, after))) {
            None => Ok(()),
            Some((_, other)) => {
                Err(format!("returned numbers increase with the versions: {other:?} and {shown:?}"))
            }
        }
    }

    /// Checks the compare-and-set that was answered with this version, or that may have overwritten it.
    fn nothing_came_between(&self, version: u64) -> Result<(), String> {
        for (made, expected) in self.expected.range(version..).take(2) {
            if let Some((_, between)) = self.shown.range(expected + 1..*made).next() {
                return Err(format!(
                    "a compare-and-set succeeds only without a write in between: version {made} replaced version \
                     {expected}despite {between:?} in between"
                ));
            }
        }
        Ok(())
    }
}
