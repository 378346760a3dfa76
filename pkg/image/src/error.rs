//! Why an image operation failed, and whether trying again can help.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tonic::Status;

use crate::connection::Fault;
use crate::digest::Digest;
use crate::reference::InvalidReference;
use crate::registry::RegistryError;

/// A failed image operation. Each message says what was wanted, what was found and, where it is not plain,
/// what to do.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A name in the archive is not an image reference.
    #[error(transparent)]
    Reference(#[from] InvalidReference),
    /// A registry did not give the image.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A pull took longer than pulls may.
    #[error("{what} did not come within {} s; the registry or the network is too slow", limit.as_secs())]
    TooSlow {
        /// The image.
        what: String,
        /// How long it had.
        limit: Duration,
    },
    /// Nobody waited for a pull any more.
    #[error("the pull of {what} was given up: nobody waits for it")]
    Abandoned {
        /// The image.
        what: String,
    },
    /// The archive could not be kept in the spool directory.
    #[error("cannot spool the archive in {}: {source}", dir.display())]
    Spool {
        /// The directory the caller gave.
        dir: PathBuf,
        /// What the file system said.
        source: Arc<std::io::Error>,
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
    #[error("the image's document {name} is refused: {reason}")]
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
    #[error("{what} has another digest or size than promised: want {wanted}; it is damaged, make it again")]
    DigestMismatch {
        /// Document, blob, or unpacked layer.
        what: String,
        /// The digest that was promised.
        wanted: Digest,
    },
    /// The spooled archive could not be read again.
    #[error("cannot read {what} back from the spooled archive: {source}")]
    Unreadable {
        /// The blob.
        what: String,
        /// What the file system said.
        source: Arc<std::io::Error>,
    },
    /// An image that takes more than one image may.
    #[error("{what} is larger than the limit of {limit} bytes; raise the limit or make the image smaller")]
    ImageTooLarge {
        /// The image, and in which form.
        what: String,
        /// The limit in bytes.
        limit: u64,
    },
    /// A layer that is what it was promised to be and that nobody can unpack.
    #[error("layer {layer} is refused: {reason}; it is damaged or hostile, make the image again")]
    BadLayer {
        /// The layer.
        layer: Digest,
        /// containerd's words.
        reason: String,
    },
    /// The disk that holds images is full.
    #[error("there is no room on the disk to {action}: {reason}; remove images or enlarge the disk")]
    DiskFull {
        /// What was being done.
        action: String,
        /// Who said so, in his words.
        reason: String,
    },
    /// No more layers came although more were promised.
    #[error("layer {layer} never arrived")]
    Incomplete {
        /// The first one that is missing.
        layer: Digest,
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
        use Error as E;
        match self {
            E::Registry(error) => error.is_transient(),
            E::Unavailable { .. } | E::Timeout { .. } | E::Interrupted { .. } => true,
            // Garbage is collected, by this node itself when its disk is nearly full.
            E::TooSlow { .. } | E::Abandoned { .. } | E::DiskFull { .. } => true,
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
                | E::Abandoned { .. }
                | E::DiskFull { .. }
                | E::Incomplete { .. }
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
            Fault::Other if is_full(&reason) => Self::DiskFull { action, reason },
            Fault::NotFound | Fault::AlreadyExists | Fault::Other => Self::Refused { action, reason },
        }
    }

    /// The error of a failed unpacking, where containerd has one code for bad layers and for a bad node.
    pub(crate) fn of_unpacking(layer: &Digest, status: &Status) -> Self {
        // What Go's readers of tar, gzip and zstd say, and containerd of what leads out of a root.
        const BAD: [&str; 9] = [
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
        // What the kernel says of entries that no tool writes, while they are made in a mounted snapshot.
        const IMPOSSIBLE: [&str; 6] = [
            "no such file or directory",
            "file exists",
            "not a directory",
            "is a directory",
            "file name too long",
            "too many levels of symbolic links",
        ];
        let reason = status.message();
        let says = |words: &[&str]| words.iter().any(|words| reason.contains(words));
        let is_bad = says(&BAD) || says(&["mount callback failed"]) && says(&IMPOSSIBLE);
        match Self::of(format!("unpack layer {layer}"), status) {
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

/// Whether a message of containerd's ends in the kernel's words for a full disk.
fn is_full(message: &str) -> bool {
    ["no space left on device", "disk quota exceeded"].iter().any(|words| message.contains(words))
}

/// Timestamps and sizes in one place: how long moving `bytes` may take before it counts as stuck.
pub(crate) fn transfer_deadline(bytes: u64) -> Duration {
    const SLOWEST_BYTES_PER_SECOND: u64 = 1 << 20;
    Duration::from_secs(60 + bytes / SLOWEST_BYTES_PER_SECOND)
}
