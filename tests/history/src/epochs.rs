//! What the answers of one key show by themselves: the versions, their order, and the operations that saw
//! each.

use std::collections::BTreeMap;
use std::fmt;

use crate::record::{
    Acknowledgement, Conflict, OperationOutcome, OperationRecord, RegisterOperation, RegisterValue,
    RegisterVersion,
};

/// An operation by its index in the key's history.
pub type OperationIndex = usize;

/// A version, from the write that made it to the next one.
#[derive(Debug, Default)]
pub struct VersionEpoch {
    pub version: RegisterVersion,
    /// The write that was confirmed with this version. Other versions may have a known writer, but not from
    /// an answer.
    pub written_by: Option<OperationIndex>,
    /// The value that readers found or that the confirmed write wrote, with the operation that shows it.
    pub value: Option<(RegisterValue, OperationIndex)>,
    /// Answers that are right only during this version.
    pub readers: Vec<OperationIndex>,
    /// The compare-and-set that expected it and succeeded, and so made the next version.
    pub expected_by: Option<OperationIndex>,
}

impl VersionEpoch {
    /// No answer needs it: only a compare-and-set of unknown outcome expects it.
    pub fn is_optional(&self) -> bool {
        self.version > 0 && self.witness().is_none()
    }

    /// An operation whose answer is right only if this version existed.
    pub fn witness(&self) -> Option<OperationIndex> {
        self.written_by.or(self.readers.first().copied()).or(self.expected_by)
    }
}

/// A write of unknown outcome.
#[derive(Debug)]
pub struct CandidateWrite {
    pub operation: OperationIndex,
    pub value: RegisterValue,
    /// The expected version of a compare-and-set.
    pub expected: Option<RegisterVersion>,
}

/// The history of a key up to some time, sorted by its evidence.
#[derive(Debug)]
pub struct VersionEpochs {
    /// By increasing version. The first is 0: nothing was written yet.
    pub epochs: Vec<VersionEpoch>,
    /// In the order of their calls.
    pub candidates: Vec<CandidateWrite>,
}

/// Why no order explains the answers. Operations are named by their index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Contradiction {
    /// An operation saw a version that no write can have made.
    NeverWritten { version: RegisterVersion, seen: OperationIndex },
    /// Two answers give a version different values.
    OtherValue { version: RegisterVersion, one: OperationIndex, other: OperationIndex },
    /// Two writes were answered with the same version.
    Twice { version: RegisterVersion, one: OperationIndex, other: OperationIndex },
    /// The answer to a write shows a value that it did not write, and the operation that wrote it.
    ForeignValue { place: OperationIndex, shown: RegisterValue, written_by: Option<OperationIndex> },
    /// A write was answered with a version at which another operation found the value of a third.
    ForeignVersion {
        version: RegisterVersion,
        place: OperationIndex,
        found_by: OperationIndex,
        written_by: OperationIndex,
    },
    /// A compare-and-set succeeded, but the version before its own is not the one it expected.
    Lost { place: OperationIndex, before: RegisterVersion },
    /// A compare-and-set was refused although its expected version was current.
    NoConflict { place: OperationIndex },
    /// It must come after an operation that was called only after its answer.
    Stale { place: OperationIndex, behind: OperationIndex },
}

impl Contradiction {
    /// The operations in the contradiction.
    pub fn operations(&self) -> Vec<OperationIndex> {
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

impl fmt::Display for Contradiction {
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

impl VersionEpochs {
    /// Sorts the operations of a key. Operations that are not answered as of `is_answered` may still take
    /// effect.
    ///
    /// # Errors
    /// Answers that contradict each other in every order.
    pub fn of(
        history: &[&OperationRecord],
        is_answered: impl Fn(OperationIndex) -> bool,
    ) -> Result<Self, Contradiction> {
        let mut drafts = EpochBuilder {
            history,
            epochs: BTreeMap::from([(0, VersionEpoch::default())]),
            candidates: Vec::new(),
        };
        for (place, record) in history.iter().enumerate() {
            drafts.add(place, &record.operation, is_answered(place))?;
        }
        let EpochBuilder { epochs, candidates, .. } = drafts;
        Ok(Self { epochs: epochs.into_values().collect(), candidates })
    }
}

struct EpochBuilder<'a> {
    history: &'a [&'a OperationRecord],
    epochs: BTreeMap<RegisterVersion, VersionEpoch>,
    candidates: Vec<CandidateWrite>,
}

impl EpochBuilder<'_> {
    fn add(
        &mut self,
        place: OperationIndex,
        operation: &RegisterOperation,
        answered: bool,
    ) -> Result<(), Contradiction> {
        match *operation {
            RegisterOperation::Read { found: OperationOutcome::Ok(found) } if answered => {
                self.read(place, found)
            }
            RegisterOperation::Write { value, made: OperationOutcome::Ok(shown) } if answered => {
                self.add_written(place, value, shown)
            }
            RegisterOperation::Cas { expected, made: OperationOutcome::Ok(Err(Conflict(found))), .. }
                if answered =>
            {
                if found == expected {
                    return Err(Contradiction::NoConflict { place });
                }
                self.epoch(found).readers.push(place);
                Ok(())
            }
            RegisterOperation::Cas { expected, value, made: OperationOutcome::Ok(Ok(shown)) } if answered => {
                self.add_written(place, value, shown)?;
                if expected >= shown.version {
                    return Err(Contradiction::Lost { place, before: expected });
                }
                self.epoch(expected).expected_by = Some(place);
                Ok(())
            }
            RegisterOperation::Read { .. }
            | RegisterOperation::Write { made: OperationOutcome::Failed, .. }
            | RegisterOperation::Cas { made: OperationOutcome::Failed, .. } => Ok(()),
            RegisterOperation::Write { value, .. } => {
                self.candidates.push(CandidateWrite { operation: place, value, expected: None });
                Ok(())
            }
            RegisterOperation::Cas { expected, value, .. } => {
                self.epoch(expected);
                self.candidates.push(CandidateWrite { operation: place, value, expected: Some(expected) });
                Ok(())
            }
        }
    }

    fn read(
        &mut self,
        place: OperationIndex,
        found: Option<(RegisterValue, RegisterVersion)>,
    ) -> Result<(), Contradiction> {
        let version = found.map_or(0, |(_, version)| version);
        if let Some((value, version)) = found {
            if version == 0 {
                return Err(Contradiction::NeverWritten { version, seen: place });
            }
            self.has_value(place, version, value)?;
        }
        self.epoch(version).readers.push(place);
        Ok(())
    }

    /// A write that was answered: with its own value, and with a version that no other write has.
    fn add_written(
        &mut self,
        place: OperationIndex,
        value: RegisterValue,
        shown: Acknowledgement,
    ) -> Result<(), Contradiction> {
        let Acknowledgement { value: shown, version } = shown;
        if shown != value {
            return Err(Contradiction::ForeignValue {
                place,
                shown,
                written_by: self.writer_of(shown, place),
            });
        }
        if version == 0 {
            return Err(Contradiction::NeverWritten { version, seen: place });
        }
        if let Some(one) = self.epoch(version).written_by.replace(place) {
            return Err(Contradiction::Twice { version, one, other: place });
        }
        self.has_value(place, version, value)
    }

    fn has_value(
        &mut self,
        place: OperationIndex,
        version: RegisterVersion,
        value: RegisterValue,
    ) -> Result<(), Contradiction> {
        let VersionEpoch { written_by: made_by, value: known, .. } = self.epoch(version);
        let (made_by, (known, one)) = (*made_by, *known.get_or_insert((value, place)));
        if known == value {
            return Ok(());
        }
        // If two answers differ, one may be of the write, and the other shows the real writer of the version.
        let found = if made_by == Some(one) { (place, value) } else { (one, known) };
        let foreign = made_by.and_then(|made_by| Some((made_by, self.writer_of(found.1, made_by)?)));
        Err(match foreign {
            Some((place, written_by)) => {
                Contradiction::ForeignVersion { version, place, found_by: found.0, written_by }
            }
            None => Contradiction::OtherValue { version, one, other: place },
        })
    }

    /// Another operation that writes this value.
    fn writer_of(&self, value: RegisterValue, other_than: OperationIndex) -> Option<OperationIndex> {
        let writes = |place: &OperationIndex| match self.history[*place].operation {
            RegisterOperation::Write { value: written, .. }
            | RegisterOperation::Cas { value: written, .. } => written == value && *place != other_than,
            RegisterOperation::Read { .. } => false,
        };
        (0..self.history.len()).find(writes)
    }

    fn epoch(&mut self, version: RegisterVersion) -> &mut VersionEpoch {
        self.epochs.entry(version).or_insert_with(|| VersionEpoch { version, ..VersionEpoch::default() })
    }
}
