//! What the answers of one key say by themselves: which versions there were, in which order, and who saw each.

use std::collections::BTreeMap;
use std::fmt;

use crate::record::{Acknowledgement, Conflict, Operation, Outcome, Record, Value, Version};

/// An operation by its place in the key's history.
pub type Place = usize;

/// A version, from the write that made it to the next one.
#[derive(Debug, Default)]
pub struct Epoch {
    pub version: Version,
    /// The write that was confirmed with this version. Of the others somebody knows who made them, but not from an
    /// answer.
    pub made_by: Option<Place>,
    /// The value that readers found, or that the confirmed write wrote, and who said so.
    pub value: Option<(Value, Place)>,
    /// Answers that are right only during this version.
    pub seen_by: Vec<Place>,
    /// Whoever expected it succeeded, and so made the next version.
    pub expected_by: Option<Place>,
}

impl Epoch {
    /// Nobody's answer needs it: only a compare-and-set that may have happened expects it, and then it was there.
    pub fn is_optional(&self) -> bool {
        self.version > 0 && self.witness().is_none()
    }

    /// Somebody whose answer is right only if this version was there.
    pub fn witness(&self) -> Option<Place> {
        self.made_by.or(self.seen_by.first().copied()).or(self.expected_by)
    }
}

/// A write that may have happened.
#[derive(Debug)]
pub struct Candidate {
    pub place: Place,
    pub value: Value,
    /// Of a compare-and-set.
    pub expected: Option<Version>,
}

/// The history of a key up to some moment, sorted by what it says.
#[derive(Debug)]
pub struct Epochs {
    /// By rising version. The first is 0: nothing was written yet.
    pub epochs: Vec<Epoch>,
    /// In the order of their calls.
    pub candidates: Vec<Candidate>,
}

/// Why no order explains the answers. Names operations by their place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// Somebody saw a version that no write can have made.
    NeverWritten { version: Version, seen: Place },
    /// Two answers give a version different values.
    OtherValue { version: Version, one: Place, other: Place },
    /// Two writes were answered with the same version.
    Twice { version: Version, one: Place, other: Place },
    /// The answer to a write shows a value that it did not write, and who wrote that.
    ForeignValue { place: Place, shown: Value, written_by: Option<Place> },
    /// A write was answered with a version at which somebody found what another write wrote.
    ForeignVersion { version: Version, place: Place, found_by: Place, written_by: Place },
    /// A compare-and-set succeeded, but the version before its own is not the one it expected.
    Lost { place: Place, before: Version },
    /// A compare-and-set was refused although it found what it expected.
    NoConflict { place: Place },
    /// It belongs behind something that was called only after it had been answered.
    Stale { place: Place, behind: Place },
}

impl Why {
    /// The operations it is about.
    pub fn places(&self) -> Vec<Place> {
        match self {
            Self::NeverWritten { seen: place, .. }
            | Self::Lost { place, .. }
            | Self::NoConflict { place } => {
                vec![*place]
            }
            Self::OtherValue { one, other, .. } | Self::Twice { one, other, .. } => vec![*one, *other],
            Self::ForeignValue { place, written_by, .. } => [*place].into_iter().chain(*written_by).collect(),
            Self::ForeignVersion { place, found_by, written_by, .. } => vec![*place, *found_by, *written_by],
            Self::Stale { place, behind } => vec![*place, *behind],
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverWritten { version, seen } => {
                write!(f, "#{seen} saw version {version}, which no write can have made")
            }
            Self::OtherValue { version, one, other } => {
                write!(f, "#{one} and #{other} give version {version} different values")
            }
            Self::Twice { version, one, other } => {
                write!(
                    f,
                    "#{one} and #{other} were both answered with version {version}, which one write can have"
                )
            }
            Self::ForeignValue { place, shown, written_by } => {
                write!(f, "the answer to #{place} shows {shown}, which it did not write")?;
                written_by.map_or(Ok(()), |other| write!(f, ": #{other} did"))
            }
            Self::ForeignVersion { version, place, found_by, written_by } => {
                write!(
                    f,
                    "#{place} was answered with version {version}, which belongs to another write: #{found_by} \
                     found there what #{written_by} wrote"
                )
            }
            Self::Lost { place, before } => {
                write!(f, "#{place} replaced version {before}, which is not the one it expected")
            }
            Self::NoConflict { place } => {
                write!(f, "#{place} was refused although it found what it expected")
            }
            Self::Stale { place, behind } => {
                write!(
                    f,
                    "#{place} was answered before #{behind} was called, but can only have happened after it"
                )
            }
        }
    }
}

impl Epochs {
    /// Sorts the operations of a key. What is not answered as of `is_answered` may still happen.
    ///
    /// # Errors
    /// Answers that contradict each other in whatever order they happened.
    pub fn of(history: &[&Record], is_answered: impl Fn(Place) -> bool) -> Result<Self, Why> {
        let mut drafts =
            Drafts { history, epochs: BTreeMap::from([(0, Epoch::default())]), candidates: Vec::new() };
        for (place, record) in history.iter().enumerate() {
            drafts.add(place, &record.operation, is_answered(place))?;
        }
        let Drafts { epochs, candidates, .. } = drafts;
        Ok(Self { epochs: epochs.into_values().collect(), candidates })
    }
}

struct Drafts<'a> {
    history: &'a [&'a Record],
    epochs: BTreeMap<Version, Epoch>,
    candidates: Vec<Candidate>,
}

impl Drafts<'_> {
    fn add(&mut self, place: Place, operation: &Operation, answered: bool) -> Result<(), Why> {
        match *operation {
            Operation::Read { found: Outcome::Ok(found) } if answered => self.read(place, found),
            Operation::Write { value, made: Outcome::Ok(shown) } if answered => {
                self.made(place, value, shown)
            }
            Operation::Cas { expected, made: Outcome::Ok(Err(Conflict(found))), .. } if answered => {
                if found == expected {
                    return Err(Why::NoConflict { place });
                }
                self.epoch(found).seen_by.push(place);
                Ok(())
            }
            Operation::Cas { expected, value, made: Outcome::Ok(Ok(shown)) } if answered => {
                self.made(place, value, shown)?;
                if expected >= shown.version {
                    return Err(Why::Lost { place, before: expected });
                }
                self.epoch(expected).expected_by = Some(place);
                Ok(())
            }
            Operation::Read { .. }
            | Operation::Write { made: Outcome::Failed, .. }
            | Operation::Cas { made: Outcome::Failed, .. } => Ok(()),
            Operation::Write { value, .. } => {
                self.candidates.push(Candidate { place, value, expected: None });
                Ok(())
            }
            Operation::Cas { expected, value, .. } => {
                self.epoch(expected);
                self.candidates.push(Candidate { place, value, expected: Some(expected) });
                Ok(())
            }
        }
    }

    fn read(&mut self, place: Place, found: Option<(Value, Version)>) -> Result<(), Why> {
        let version = found.map_or(0, |(_, version)| version);
        if let Some((value, version)) = found {
            if version == 0 {
                return Err(Why::NeverWritten { version, seen: place });
            }
            self.has_value(place, version, value)?;
        }
        self.epoch(version).seen_by.push(place);
        Ok(())
    }

    /// A write that was answered: with its own value, and with a version that no other write has.
    fn made(&mut self, place: Place, value: Value, shown: Acknowledgement) -> Result<(), Why> {
        let Acknowledgement { value: shown, version } = shown;
        if shown != value {
            return Err(Why::ForeignValue { place, shown, written_by: self.writer_of(shown, place) });
        }
        if version == 0 {
            return Err(Why::NeverWritten { version, seen: place });
        }
        if let Some(one) = self.epoch(version).made_by.replace(place) {
            return Err(Why::Twice { version, one, other: place });
        }
        self.has_value(place, version, value)
    }

    fn has_value(&mut self, place: Place, version: Version, value: Value) -> Result<(), Why> {
        let Epoch { made_by, value: known, .. } = self.epoch(version);
        let (made_by, (known, one)) = (*made_by, *known.get_or_insert((value, place)));
        if known == value {
            return Ok(());
        }
        // Of two answers that differ one may be that of the write, and the other shows who has the version as well.
        let found = if made_by == Some(one) { (place, value) } else { (one, known) };
        let foreign = made_by.and_then(|made_by| Some((made_by, self.writer_of(found.1, made_by)?)));
        Err(match foreign {
            Some((place, written_by)) => {
                Why::ForeignVersion { version, place, found_by: found.0, written_by }
            }
            None => Why::OtherValue { version, one, other: place },
        })
    }

    /// Another operation that writes this value.
    fn writer_of(&self, value: Value, other_than: Place) -> Option<Place> {
        let writes = |place: &Place| match self.history[*place].operation {
            Operation::Write { value: written, .. } | Operation::Cas { value: written, .. } => {
                written == value && *place != other_than
            }
            Operation::Read { .. } => false,
        };
        (0..self.history.len()).find(writes)
    }

    fn epoch(&mut self, version: Version) -> &mut Epoch {
        self.epochs.entry(version).or_insert_with(|| Epoch { version, ..Epoch::default() })
    }
}
