//! What a client did and heard.

/// What a register holds. A test that gives each write a value of its own makes the sharpest history.
pub type Value = u64;

/// Rises with every write of the key. 0 is the version of a key that was never written.
pub type Version = u64;

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<T> {
    /// It happened, with this answer.
    Ok(T),
    /// It certainly did not happen, now or later.
    Failed,
    /// It may take effect once, at any time after its call, or never.
    Unknown,
    /// Of a write: it happened, and by its answer another one had followed, with this value and version. What it
    /// expected is not held against it.
    Overtaken(Value, Version),
}

/// A compare-and-set was refused: the register had this version, which is another than the expected one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict(pub Version);

/// What was asked of a register, and what came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// What is there?
    Read {
        /// The value and its version, or nothing.
        found: Outcome<Option<(Value, Version)>>,
    },
    /// Whatever is there, this is to be there now.
    Write {
        /// What is written.
        value: Value,
        /// The version it got.
        made: Outcome<Version>,
    },
    /// If the version is still the expected one, this is to be there now.
    Cas {
        /// The version that is replaced.
        expected: Version,
        /// What is written.
        value: Value,
        /// The version it got, or which one was there instead.
        made: Outcome<Result<Version, Conflict>>,
    },
}

impl Operation {
    /// Whether it was answered, so that its answer must be right.
    pub fn is_answered(&self) -> bool {
        match self {
            Self::Read { found } => matches!(found, Outcome::Ok(_)),
            Self::Write { made, .. } => matches!(made, Outcome::Ok(_) | Outcome::Overtaken(..)),
            Self::Cas { made, .. } => matches!(made, Outcome::Ok(_) | Outcome::Overtaken(..)),
        }
    }
}

/// An operation with its place in time. Times are nanoseconds of one clock; two operations of which one was
/// answered before the other was called have an order, all others none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Who did it, for people.
    pub client: u32,
    /// Of which register.
    pub key: String,
    /// What, and how it ended.
    pub operation: Operation,
    /// When it was called.
    pub invoked: u64,
    /// When it was answered or given up; never before `invoked`.
    pub returned: u64,
}
