//! From a history to a verdict: key by key, and for what is wrong the smallest beginning that shows it.

use std::collections::BTreeMap;
use std::fmt;

use crate::epochs::{Place, Why};
use crate::record::Record;
use crate::render::render;
use crate::search::{Found, search};

/// How many states a search may remember before it gives up. One takes some 50 bytes, and an eighth of a byte more
/// for each operation of the key whose outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit(pub usize);

impl Default for Limit {
    fn default() -> Self {
        Self(1 << 20)
    }
}

/// What a history shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order that explains every answer.
    Linearizable,
    /// There is none.
    Violation(Violation),
    /// The limit was reached first, and no other key shows a violation.
    Undecided(Undecided),
}

/// Proof that no order explains a key's answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Of this register.
    pub key: String,
    /// The smallest number of answers, in the order in which they came, that cannot all be right, as far as the limit
    /// allowed to look for a smaller one.
    pub answers: usize,
    /// The operation whose answer was the last of them.
    pub last: Record,
    /// What is wrong and the operations around it, in lines.
    pub text: String,
}

/// How far a search came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undecided {
    /// In this register.
    pub key: String,
    /// So many versions were explained...
    pub explained: usize,
    /// ...of so many.
    pub versions: usize,
}

impl fmt::Display for Verdict {
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
pub fn check(history: &[Record], limit: Limit) -> Verdict {
    let mut keys: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
    for record in history {
        assert!(record.invoked <= record.returned, "answered before it was called: {record:?}");
        keys.entry(&record.key).or_default().push(record);
    }
    let mut undecided = None;
    for (key, mut records) in keys {
        records.sort_by_key(|record| (record.invoked, record.returned));
        let history = KeyHistory::new(records);
        match history.search(history.answers.len(), limit) {
            Found::Order => {}
            Found::None(why) => return Verdict::Violation(history.violation(key, why, limit)),
            Found::Spent { explained, versions } => {
                undecided.get_or_insert(Undecided { key: key.to_owned(), explained, versions });
            }
        }
    }
    undecided.map_or(Verdict::Linearizable, Verdict::Undecided)
}

/// What was done with one key.
struct KeyHistory<'a> {
    /// In the order of the calls.
    records: Vec<&'a Record>,
    /// The answered ones, in the order of their answers.
    answers: Vec<Place>,
    /// The other way round: the how manieth answer is this one's?
    rank: Vec<usize>,
}

impl<'a> KeyHistory<'a> {
    fn new(records: Vec<&'a Record>) -> Self {
        let answered = |place: &Place| records[*place].operation.is_answered();
        let mut answers: Vec<Place> = (0..records.len()).filter(answered).collect();
        answers.sort_by_key(|place| (records[*place].returned, *place));
        let mut rank = vec![usize::MAX; records.len()];
        for (number, place) in answers.iter().enumerate() {
            rank[*place] = number;
        }
        Self { records, answers, rank }
    }

    /// The beginning of the history with so many answers. What was called by then and is answered later may have
    /// happened or not.
    fn search(&self, answers: usize, limit: Limit) -> Found {
        let mut budget = limit.0;
        search(self.called(answers), |place| self.rank[place] < answers, &mut budget)
    }

    /// The operations that were called before the last of so many answers.
    fn called(&self, answers: usize) -> &[&'a Record] {
        if answers == self.answers.len() {
            return &self.records;
        }
        let end = answers.checked_sub(1).map_or(0, |last| self.records[self.answers[last]].returned);
        &self.records[..self.records.partition_point(|record| record.invoked <= end)]
    }

    /// The smallest beginning that has no order. A beginning of a history that has one has one as well, so halving
    /// finds it.
    fn violation(&self, key: &str, why: Why, limit: Limit) -> Violation {
        let (mut good, mut bad, mut why) = (0, self.answers.len(), why);
        while good + 1 < bad {
            let middle = good.midpoint(bad);
            match self.search(middle, limit) {
                Found::None(found) => (bad, why) = (middle, found),
                Found::Order | Found::Spent { .. } => good = middle,
            }
        }
        let last = self.answers[bad - 1];
        let is_answered = |place: Place| self.rank[place] < bad;
        let text = render(key, self.called(bad), is_answered, last, &why);
        Violation { key: key.to_owned(), answers: bad, last: self.records[last].clone(), text }
    }
}
