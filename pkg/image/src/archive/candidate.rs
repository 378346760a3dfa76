//! One image of an archive: its documents in memory, its layers as spans of the archive.

use warren_registry::{Digest, Reference};

use crate::document::{Descriptor, ImageConfiguration, ImageManifest};
use crate::error::Error;
use crate::image_parts::ImageParts;

use super::{IndexedArchive, Span, parse};

/// A complete image for this machine's platform in an archive.
#[derive(Debug)]
pub(crate) struct ImageCandidate {
    /// The names to set.
    pub names: Vec<Reference>,
    /// A tag without a repository, if the archive has no full name.
    pub bare_tag: Option<String>,
    /// The image itself.
    pub parts: ImageParts,
    /// Position of each layer, lowest first.
    pub spans: Vec<Span>,
}

impl ImageCandidate {
    /// Combines the checked parts.
    ///
    /// # Errors
    /// When configuration and layers do not match, or the platform is another one.
    pub fn new(
        manifest: (Descriptor, Vec<u8>),
        config: (Descriptor, Vec<u8>),
        layers: Vec<(Descriptor, Span)>,
    ) -> Result<Self, Error> {
        let name = config.0.digest.to_string();
        let configuration: ImageConfiguration = parse(&name, &config.1)?;
        let (layers, spans): (Vec<_>, Vec<_>) = layers.into_iter().unzip();
        let parts = ImageParts::new(manifest, config, configuration, layers)?;
        Ok(Self { names: Vec::new(), bare_tag: None, parts, spans })
    }

    /// Reads what a manifest in an OCI layout refers to.
    pub fn from_layout(archive: &IndexedArchive, manifest: (Descriptor, Vec<u8>)) -> Result<Self, Error> {
        let name = manifest.0.digest.to_string();
        let parsed: ImageManifest = parse(&name, &manifest.1)?;
        let config = read_blob(archive, &parsed.config, &name)?;
        let mut layers = Vec::with_capacity(parsed.layers.len());
        for layer in parsed.layers {
            let span = locate_blob(archive, &layer, &name)?;
            layers.push((layer, span));
        }
        Self::new(manifest, (parsed.config, config), layers)
    }
}

/// The bytes of a document blob, with a verified digest.
pub(super) fn read_blob(
    archive: &IndexedArchive,
    descriptor: &Descriptor,
    referrer: &str,
) -> Result<Vec<u8>, Error> {
    locate_blob(archive, descriptor, referrer)?;
    let bytes = archive.document(&blob_path(&descriptor.digest), referrer)?;
    match Digest::of(&bytes) == descriptor.digest {
        true => Ok(bytes),
        false => Err(Error::DigestMismatch {
            what: blob_path(&descriptor.digest),
            expected: descriptor.digest.clone(),
        }),
    }
}

/// The position of a blob, with a verified size.
fn locate_blob(archive: &IndexedArchive, descriptor: &Descriptor, referrer: &str) -> Result<Span, Error> {
    let missing =
        || Error::MissingBlob { blob: descriptor.digest.to_string(), referrer: referrer.to_owned() };
    let span = archive.span(&blob_path(&descriptor.digest)).ok_or_else(missing)?;
    match span.size == descriptor.size {
        true => Ok(span),
        false => {
            let reason = format!("it has {} bytes, {referrer} declares {}", span.size, descriptor.size);
            Err(Error::entry(blob_path(&descriptor.digest), reason))
        }
    }
}

fn blob_path(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}
