//! Why an image operation failed, and whether trying again can help.

use std::path::PathBuf;
use std::time::Duration;

use tonic::Status;

use crate::connection::Fault;
use crate::digest::Digest;
use crate::reference::InvalidReference;

/// A failed image operation. Each message says what was wanted, what was found and, where it is not plain,
/// what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A name in the archive is not an image reference.
    #[error(transparent)]
    Reference(#[from] InvalidReference),
    /// The archive could not be kept in the spool directory.
    #[error("cannot spool the archive in {}: {source}", dir.display())]
    Spool {
        /// The directory the caller gave.
        dir: PathBuf,
        /// What the file system said.
        source: std::io::Error,
    },
    /// The archive stopped arriving, or its sender failed.
    #[error("the archive stopped arriving after {received} bytes: {reason}")]
    Interrupted {
        /// Bytes received so far.
        received: u64,
        /// What ended the stream.
        reason: String,
    },
    /// The archive is larger than the caller allows, packed or unpacked.
    #[error("the archive is larger than the limit of {limit} bytes; raise the limit or split the archive")]
    TooLarge {
        /// The limit in bytes.
        limit: u64,
    },
    /// The bytes are not an archive of images.
    #[error(
        "not an image archive: {found}; want an OCI layout or the output of `docker save`, as tar or tar.gz"
    )]
    NotAnArchive {
        /// What was found instead.
        found: String,
    },
    /// An entry that no honest archive has.
    #[error("the archive's entry {entry:?} is refused: {reason}")]
    BadEntry {
        /// The entry's name, as found.
        entry: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A JSON document that cannot be read or contradicts itself.
    #[error("the archive's document {name} is refused: {reason}")]
    BadDocument {
        /// Its name or digest.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The archive names a blob that it does not hold.
    #[error("the archive lacks {blob}, which {wanted_by} names; it is incomplete, make it again")]
    MissingBlob {
        /// Digest or name of the blob.
        blob: String,
        /// The document that refers to it.
        wanted_by: String,
    },
    /// Bytes do not have the digest they are named by.
    #[error("{what} has another digest than the archive says: want {wanted}; it is damaged, make it again")]
    DigestMismatch {
        /// Blob, or unpacked layer.
        what: String,
        /// The digest that was promised.
        wanted: Digest,
    },
    /// No image for this machine.
    #[error("{what} has no image for linux/{}, only for {found}", crate::native_architecture())]
    Platform {
        /// The archive's document or image.
        what: String,
        /// The platforms found, comma separated.
        found: String,
    },
    /// The archive does not say what its image is called, and the caller did not either.
    #[error("the archive does not name its image (tag: {tag}); give a name for it")]
    Unnamed {
        /// The bare tag it carries, or `none`.
        tag: String,
    },
    /// A name was given for an archive with several images.
    #[error("one name was given but the archive holds {found} images; import it without a name")]
    AmbiguousName {
        /// Number of images in the archive.
        found: usize,
    },
    /// Something valid that this node cannot handle.
    #[error("{what} is not supported; {advice}")]
    Unsupported {
        /// The thing met.
        what: String,
        /// What to do instead.
        advice: &'static str,
    },
    /// containerd is away or the connection broke.
    #[error("containerd is not available to {action}: {reason}")]
    Unavailable {
        /// What was being done.
        action: String,
        /// What the connection said.
        reason: String,
    },
    /// containerd did not answer in time.
    #[error("containerd did not answer in time to {action}: {reason}")]
    Timeout {
        /// What was being done.
        action: String,
        /// Which deadline passed.
        reason: String,
    },
    /// containerd answered with an error.
    #[error("containerd refused to {action}: {reason}")]
    Refused {
        /// What was being done.
        action: String,
        /// containerd's words.
        reason: String,
    },
}

impl Error {
    /// Whether the same call may succeed later without anybody changing its input.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Timeout { .. } | Self::Interrupted { .. })
    }

    /// Whether the archive or the options are at fault, rather than this node.
    pub fn is_bad_input(&self) -> bool {
        use Error as E;
        !matches!(
            self,
            E::Spool { .. }
                | E::Interrupted { .. }
                | E::Unavailable { .. }
                | E::Timeout { .. }
                | E::Refused { .. }
        )
    }

    pub(crate) fn of(action: impl Into<String>, status: &Status) -> Self {
        let (action, reason) = (action.into(), status.message().to_owned());
        match Fault::of(status) {
            Fault::Unavailable => Self::Unavailable { action, reason },
            Fault::Timeout => Self::Timeout { action, reason },
            Fault::NotFound | Fault::AlreadyExists | Fault::Other => Self::Refused { action, reason },
        }
    }

    pub(crate) fn spool(dir: &std::path::Path, source: std::io::Error) -> Self {
        Self::Spool { dir: dir.to_owned(), source }
    }

    pub(crate) fn entry(entry: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::BadEntry { entry: entry.into(), reason: reason.into() }
    }

    pub(crate) fn document(name: impl Into<String>, reason: impl ToString) -> Self {
        Self::BadDocument { name: name.into(), reason: reason.to_string() }
    }
}

/// Timestamps and sizes in one place: how long moving `bytes` may take before it counts as stuck.
pub(crate) fn transfer_deadline(bytes: u64) -> Duration {
    const SLOWEST_BYTES_PER_SECOND: u64 = 1 << 20;
    Duration::from_secs(60 + bytes / SLOWEST_BYTES_PER_SECOND)
}
