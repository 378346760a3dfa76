//! One operation of a client: call, answer and times.

/// The value of a register. A test that gives each write its own value detects most.
pub type RegisterValue = u64;

/// Increases with every write of the key. 0 is the version of a key that was never written.
pub type RegisterVersion = u64;

/// The outcome of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationOutcome<T> {
    /// It took effect, with this answer.
    Ok(T),
    /// It certainly did not take effect, now or later.
    Failed,
    /// It may take effect once, at any time after its call, or never.
    Unknown,
}

/// The answer to a write: the register as the write's own entry left it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledgement {
    /// The value in the answer. Any other than the written one is a violation.
    pub value: RegisterValue,
    /// The version in the answer. A version of another write is a violation.
    pub version: RegisterVersion,
}

/// A compare-and-set was refused: the register had this version instead of the expected one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict(pub RegisterVersion);

/// An operation on a register, and its outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegisterOperation {
    /// A read.
    Read {
        /// The value and its version, or nothing.
        found: OperationOutcome<Option<(RegisterValue, RegisterVersion)>>,
    },
    /// An unconditional write.
    Write {
        /// The written value.
        value: RegisterValue,
        /// What its answer shows.
        made: OperationOutcome<Acknowledgement>,
    },
    /// A write if the version is still the expected one.
    Cas {
        /// The version that is replaced.
        expected: RegisterVersion,
        /// The written value.
        value: RegisterValue,
        /// Its answer, or the version that was current instead.
        made: OperationOutcome<Result<Acknowledgement, Conflict>>,
    },
}

impl RegisterOperation {
    /// Whether it was answered, so that its answer must be right.
    pub fn is_answered(&self) -> bool {
        match self {
            Self::Read { found } => matches!(found, OperationOutcome::Ok(_)),
            Self::Write { made, .. } => matches!(made, OperationOutcome::Ok(_)),
            Self::Cas { made, .. } => matches!(made, OperationOutcome::Ok(_)),
        }
    }
}

/// An operation with its times, in nanoseconds of one clock. Two operations of which one was answered before
/// the other was called have an order, all others none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationRecord {
    /// The client, for reports.
    pub client: u32,
    /// The register.
    pub key: String,
    /// The operation and its outcome.
    pub operation: RegisterOperation,
    /// When it was called.
    pub invoked: u64,
    /// When it was answered or given up; never before `invoked`.
    pub returned: u64,
}
