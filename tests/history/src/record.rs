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
}

/// What the answer to a write shows: the register as the write's own entry left it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledgement {
    /// The value it shows. Any other than the written one is a violation.
    pub value: Value,
    /// The version it shows. One that another write has is a violation.
    pub version: Version,
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
        /// What its answer shows.
        made: Outcome<Acknowledgement>,
    },
    /// If the version is still the expected one, this is to be there now.
    Cas {
        /// The version that is replaced.
        expected: Version,
        /// What is written.
        value: Value,
        /// What its answer shows, or which version was there instead.
        made: Outcome<Result<Acknowledgement, Conflict>>,
    },
}

impl Operation {
    /// Whether it was answered, so that its answer must be right.
    pub fn is_answered(&self) -> bool {
        match self {
            Self::Read { found } => matches!(found, Outcome::Ok(_)),
            Self::Write { made, .. } => matches!(made, Outcome::Ok(_)),
            Self::Cas { made, .. } => matches!(made, Outcome::Ok(_)),
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
