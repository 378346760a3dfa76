//! Why the data key is not renewed.

use std::sync::Arc;
use std::time::Duration;

use warren_security::{FileError, KeyFileError};

use super::WriteStall;

/// Why the data key is not renewed. A repeated renewal completes it.
#[derive(Debug, thiserror::Error)]
pub enum KeyRenewalError {
    /// The log cannot be written.
    #[error("{}", .0.reason)]
    WriteStalled(Arc<WriteStall>),
    /// The keyring cannot be written.
    #[error(transparent)]
    Keyring(#[from] KeyFileError),
    /// A snapshot that was received meanwhile is sealed with an earlier key.
    #[error("a snapshot that was just received is sealed with an earlier data key")]
    StillUsed,
    /// It takes long.
    #[error("the log and the snapshot were not written again within {0:?}")]
    Timeout(Duration),
    /// The manager is stopping.
    #[error("the manager is stopping")]
    Stopping,
}

impl From<FileError> for KeyRenewalError {
    fn from(error: FileError) -> Self {
        Self::Keyring(error.into())
    }
}
