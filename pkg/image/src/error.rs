//! Errors of image operations, and whether a retry can help.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tonic::Status;
use warren_registry::{Digest, InvalidReference, RegistryError};

use crate::connection::CallError;

/// A failed image operation. Each message gives the expected and the actual value and, where it is not
/// obvious, the remedy.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A name in the archive is not an image reference.
    #[error(transparent)]
    Reference(#[from] InvalidReference),
    /// A registry did not provide the image.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A pull exceeded its time limit.
    #[error("pull of {what} timed out after {} s; the registry or the network is too slow", limit.as_secs())]
    TooSlow {
        /// Image name.
        what: String,
        /// The time limit.
        limit: Duration,
    },
    /// The last caller that waited for a pull was dropped.
    #[error("pull of {what} was cancelled: its last caller disconnected")]
    Cancelled {
        /// Image name.
        what: String,
    },
    /// The archive could not be written to the spool directory.
    #[error("cannot spool the archive in {}: {source}", dir.display())]
    Spool {
        /// Spool directory from the import options.
        dir: PathBuf,
        /// The file system error.
        source: Arc<std::io::Error>,
    },
    /// The archive stream ended early or failed.
    #[error("the archive stopped arriving after {received} bytes: {reason}")]
    Interrupted {
        /// Bytes received until then.
        received: u64,
        /// Why the stream ended.
        reason: String,
    },
    /// Another node did not send the image.
    #[error("the image was not received from another node: {reason}; copy it again")]
    Transfer {
        /// What happened.
        reason: String,
    },
    /// The archive is larger than the caller allows, packed or unpacked.
    #[error("the archive is larger than the limit of {limit} bytes; raise the limit or split the archive")]
    TooLarge {
        /// Limit in bytes.
        limit: u64,
    },
    /// The bytes are not an image archive.
    #[error(
        "not an image archive: {found}; expected an OCI layout or the output of `docker save`, as tar or tar.gz"
    )]
    NotAnArchive {
        /// The format that was detected.
        found: String,
    },
    /// An archive entry is invalid or unsafe.
    #[error("archive entry {entry:?} is invalid: {reason}")]
    BadEntry {
        /// Entry name as in the archive.
        entry: String,
        /// What is invalid.
        reason: String,
    },
    /// A JSON document is unreadable or inconsistent.
    #[error("image document {name} is invalid: {reason}")]
    BadDocument {
        /// Name or digest.
        name: String,
        /// What is invalid.
        reason: String,
    },
    /// The archive refers to a blob that it does not contain.
    #[error("the archive has no {blob}, which {referrer} refers to; create the archive again")]
    MissingBlob {
        /// Digest or name of the blob.
        blob: String,
        /// The document that refers to the blob.
        referrer: String,
    },
    /// The digest of some bytes differs from their reference.
    #[error("digest or size mismatch for {what}: expected {expected}; create the archive or image again")]
    DigestMismatch {
        /// Document, blob or unpacked layer.
        what: String,
        /// Digest in the reference.
        expected: Digest,
    },
    /// The spooled archive could not be read back.
    #[error("cannot read {what} back from the spooled archive: {source}")]
    Unreadable {
        /// Blob that was read.
        what: String,
        /// The file system error.
        source: Arc<std::io::Error>,
    },
    /// The image exceeds the size limit.
    #[error("{what} is larger than the limit of {limit} bytes; raise the limit or make the image smaller")]
    ImageTooLarge {
        /// The image, and its form (packed or unpacked).
        what: String,
        /// Limit in bytes.
        limit: u64,
    },
    /// A layer has the right digest but cannot be unpacked.
    #[error("layer {layer} is invalid: {reason}; rebuild the image")]
    BadLayer {
        /// Digest of the layer.
        layer: Digest,
        /// Message of containerd.
        reason: String,
    },
    /// The disk that holds images is full.
    #[error("no space left to {action}: {reason}; remove images or enlarge the disk")]
    DiskFull {
        /// The failed operation.
        action: String,
        /// Message of the kernel or containerd.
        reason: String,
    },
    /// The layer stream ended before all layers arrived.
    #[error("layer {layer} is missing")]
    MissingLayer {
        /// The first missing layer.
        layer: Digest,
    },
    /// The image has no variant for this platform.
    #[error("{what} has no image for linux/{}, only for {found}", crate::native_architecture())]
    NoMatchingPlatform {
        /// The archive document or image.
        what: String,
        /// Platforms that exist, comma separated.
        found: String,
    },
    /// Neither the archive nor the caller names the image.
    #[error("the archive has no image name (tag: {tag}); specify a name")]
    Unnamed {
        /// The bare tag in the archive, or `none`.
        tag: String,
    },
    /// A name was given for an archive with several images.
    #[error("one name was given but the archive contains {found} images; import it without a name")]
    AmbiguousName {
        /// Number of images in the archive.
        found: usize,
    },
    /// Valid input that this node does not support.
    #[error("{what} is not supported; {advice}")]
    Unsupported {
        /// The unsupported feature.
        what: String,
        /// What to do instead.
        advice: &'static str,
    },
    /// containerd is unavailable or the connection broke.
    #[error("containerd is not available to {action}: {reason}")]
    Unavailable {
        /// The failed operation.
        action: String,
        /// Message of the connection.
        reason: String,
    },
    /// containerd did not answer in time.
    #[error("containerd did not answer in time to {action}: {reason}")]
    Timeout {
        /// The failed operation.
        action: String,
        /// The deadline that passed.
        reason: String,
    },
    /// containerd returned an error.
    #[error("containerd failed to {action}: {reason}")]
    Refused {
        /// The failed operation.
        action: String,
        /// Message of containerd.
        reason: String,
    },
}

impl Error {
    /// Whether the same call may succeed later with unchanged input.
    pub fn is_transient(&self) -> bool {
        use Error as E;
        match self {
            E::Registry(error) => error.is_transient(),
            E::Unavailable { .. } | E::Timeout { .. } => true,
            E::Interrupted { .. } | E::Transfer { .. } => true,
            // Garbage collection by this node frees space when its disk is nearly full.
            E::TooSlow { .. } | E::Cancelled { .. } | E::DiskFull { .. } => true,
            _ => false,
        }
    }

    /// Whether the archive, the image or the options are at fault, rather than this node or a registry.
    pub fn is_bad_input(&self) -> bool {
        use Error as E;
        !matches!(
            self,
            E::Spool { .. }
                | E::Unreadable { .. }
                | E::Registry(_)
                | E::TooSlow { .. }
                | E::Cancelled { .. }
                | E::DiskFull { .. }
                | E::MissingLayer { .. }
                | E::Interrupted { .. }
                | E::Transfer { .. }
                | E::Unavailable { .. }
                | E::Timeout { .. }
                | E::Refused { .. }
        )
    }

    pub(crate) fn from_status(action: impl Into<String>, status: &Status) -> Self {
        let (action, reason) = (action.into(), status.message().to_owned());
        match CallError::from_status(status) {
            CallError::Unavailable => Self::Unavailable { action, reason },
            CallError::Timeout => Self::Timeout { action, reason },
            CallError::Other if is_full(&reason) => Self::DiskFull { action, reason },
            CallError::NotFound | CallError::AlreadyExists | CallError::Other => {
                Self::Refused { action, reason }
            }
        }
    }

    /// Converts an unpack error; containerd uses one code for bad layers and for node failures.
    pub(crate) fn from_unpack_status(layer: &Digest, status: &Status) -> Self {
        // Messages of Go's tar, gzip and zstd readers, and of containerd for paths that escape the root.
        const BAD_LAYER_ERRORS: [&str; 9] = [
            "archive/tar:",
            "gzip:",
            "flate:",
            "zstd:",
            "unexpected EOF",
            "invalid header",
            "unhandled tar header",
            "invalid archive",
            "breaks out",
        ];
        // Kernel errors for malformed entries while they are created in a mounted snapshot.
        const UNSUPPORTED_ERRORS: [&str; 6] = [
            "no such file or directory",
            "file exists",
            "not a directory",
            "is a directory",
            "file name too long",
            "too many levels of symbolic links",
        ];
        let reason = status.message();
        let says = |words: &[&str]| words.iter().any(|words| reason.contains(words));
        let is_bad = says(&BAD_LAYER_ERRORS) || says(&["mount callback failed"]) && says(&UNSUPPORTED_ERRORS);
        match Self::from_status(format!("unpack layer {layer}"), status) {
            Self::Refused { reason, .. } if is_bad => Self::BadLayer { layer: layer.clone(), reason },
            other => other,
        }
    }

    pub(crate) fn spool(dir: &std::path::Path, source: std::io::Error) -> Self {
        use std::io::ErrorKind as Kind;
        match source.kind() {
            Kind::StorageFull | Kind::QuotaExceeded => {
                let action = format!("spool the archive in {}", dir.display());
                Self::DiskFull { action, reason: source.to_string() }
            }
            _ => Self::Spool { dir: dir.to_owned(), source: Arc::new(source) },
        }
    }

    pub(crate) fn entry(entry: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::BadEntry { entry: entry.into(), reason: reason.into() }
    }

    pub(crate) fn document(name: impl Into<String>, reason: impl ToString) -> Self {
        Self::BadDocument { name: name.into(), reason: reason.to_string() }
    }
}

/// Whether a containerd message ends in the kernel's text for a full disk.
fn is_full(message: &str) -> bool {
    ["no space left on device", "disk quota exceeded"].iter().any(|words| message.contains(words))
}

/// How long moving `bytes` may take before it counts as stuck.
pub(crate) fn transfer_deadline(bytes: u64) -> Duration {
    const SLOWEST_BYTES_PER_SECOND: u64 = 1 << 20;
    Duration::from_secs(60 + bytes / SLOWEST_BYTES_PER_SECOND)
}
