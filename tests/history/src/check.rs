//! Checks a history key by key, and finds the smallest invalid prefix of an invalid one.

use std::collections::BTreeMap;
use std::fmt;

use crate::epochs::{Contradiction, OperationIndex};
use crate::record::OperationRecord;
use crate::render::render;
use crate::search::{SearchResult, search};

/// The number of states that a search may remember before it stops. One takes about 50 bytes, plus an eighth
/// of a byte for each operation of the key whose outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SearchLimit(pub usize);

impl Default for SearchLimit {
    fn default() -> Self {
        Self(1 << 20)
    }
}

/// The verdict on a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinearizabilityVerdict {
    /// There is an order that explains every answer.
    Linearizable,
    /// There is no such order.
    Violation(LinearizabilityViolation),
    /// The limit was reached first, and no other key has a violation.
    Undecided(Undecided),
}

/// Proof that no order explains a key's answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinearizabilityViolation {
    /// The register.
    pub key: String,
    /// The smallest number of answers, in the order of their arrival, that cannot all be right, as far as the
    /// limit allowed the search for it.
    pub answers: usize,
    /// The operation with the last of these answers.
    pub last_operation: OperationRecord,
    /// The contradiction and the operations around it, as lines of text.
    pub text: String,
}

/// The progress of an unfinished search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undecided {
    /// The register.
    pub key: String,
    /// The number of explained versions...
    pub explained: usize,
    /// ...of this number.
    pub versions: usize,
}

impl fmt::Display for LinearizabilityVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linearizable => f.write_str("linearizable"),
            Self::Violation(violation) => f.write_str(&violation.text),
            Self::Undecided(Undecided { key, explained, versions }) => {
                write!(
                    f,
                    "undecided: {explained} of {versions} versions of {key} were explained within the limit"
                )
            }
        }
    }
}

/// Checks `history`, whose records may come in any order.
///
/// # Panics
/// When an operation is answered before it is called.
#[must_use]
pub fn check(history: &[OperationRecord], limit: SearchLimit) -> LinearizabilityVerdict {
    let mut keys: BTreeMap<&str, Vec<&OperationRecord>> = BTreeMap::new();
    for record in history {
        assert!(record.invoked <= record.returned, "answered before it was called: {record:?}");
        keys.entry(&record.key).or_default().push(record);
    }
    let mut undecided = None;
    for (key, mut records) in keys {
        records.sort_by_key(|record| (record.invoked, record.returned));
        let history = KeyHistory::new(records);
        match history.search(history.answers.len(), limit) {
            SearchResult::Order => {}
            SearchResult::Impossible(why) => {
                return LinearizabilityVerdict::Violation(history.violation(key, why, limit));
            }
            SearchResult::BudgetExhausted { explained, versions } => {
                undecided.get_or_insert(Undecided { key: key.to_owned(), explained, versions });
            }
        }
    }
    undecided.map_or(LinearizabilityVerdict::Linearizable, LinearizabilityVerdict::Undecided)
}

/// The operations of one key.
struct KeyHistory<'a> {
    /// In the order of the calls.
    records: Vec<&'a OperationRecord>,
    /// The answered ones, in the order of their answers.
    answers: Vec<OperationIndex>,
    /// The inverse: the position of each operation's answer.
    rank: Vec<usize>,
}

impl<'a> KeyHistory<'a> {
    fn new(records: Vec<&'a OperationRecord>) -> Self {
        let answered = |place: &OperationIndex| records[*place].operation.is_answered();
        let mut answers: Vec<OperationIndex> = (0..records.len()).filter(answered).collect();
        answers.sort_by_key(|place| (records[*place].returned, *place));
        let mut rank = vec![usize::MAX; records.len()];
        for (number, place) in answers.iter().enumerate() {
            rank[*place] = number;
        }
        Self { records, answers, rank }
    }

    /// The prefix of the history with that many answers. Operations that were called by then and answered
    /// later may have taken effect or not.
    /// happened or not.
    fn search(&self, answers: usize, limit: SearchLimit) -> SearchResult {
        let mut budget = limit.0;
        search(self.called(answers), |place| self.rank[place] < answers, &mut budget)
    }

    /// The operations that were called before the last of that many answers.
    fn called(&self, answers: usize) -> &[&'a OperationRecord] {
        if answers == self.answers.len() {
            return &self.records;
        }
        let end = answers.checked_sub(1).map_or(0, |last| self.records[self.answers[last]].returned);
        &self.records[..self.records.partition_point(|record| record.invoked <= end)]
    }

    /// The smallest prefix without an order. Every prefix of a valid history is valid, so binary search finds
    /// it.
    fn violation(&self, key: &str, why: Contradiction, limit: SearchLimit) -> LinearizabilityViolation {
        let (mut good, mut bad, mut why) = (0, self.answers.len(), why);
        while good + 1 < bad {
            let middle = good.midpoint(bad);
            match self.search(middle, limit) {
                SearchResult::Impossible(found) => (bad, why) = (middle, found),
                SearchResult::Order | SearchResult::BudgetExhausted { .. } => good = middle,
            }
        }
        let last = self.answers[bad - 1];
        let is_answered = |place: OperationIndex| self.rank[place] < bad;
        let text = render(key, self.called(bad), is_answered, last, &why);
        LinearizabilityViolation {
            key: key.to_owned(),
            answers: bad,
            last_operation: self.records[last].clone(),
            text,
        }
    }
}
