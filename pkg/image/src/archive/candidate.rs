//! One image ready to be ingested: its documents in memory, its layers as places in the archive.

use crate::digest::Digest;
use crate::document::{Configuration, Descriptor, Manifest};
use crate::error::Error;
use crate::parts::Parts;
use crate::reference::Reference;

use super::{Archive, Span, parse};

/// An image for this machine's platform, found complete in an archive.
#[derive(Debug)]
pub(crate) struct Candidate {
    /// The names it shall get.
    pub names: Vec<Reference>,
    /// A tag without a repository, if that is all the archive says.
    pub bare_tag: Option<String>,
    /// The image itself.
    pub parts: Parts,
    /// Where each layer's bytes lie, lowest first.
    pub spans: Vec<Span>,
}

impl Candidate {
    /// Puts the checked parts together.
    ///
    /// # Errors
    /// When configuration and layers contradict each other or the platform is another one.
    pub fn assemble(
        manifest: (Descriptor, Vec<u8>),
        config: (Descriptor, Vec<u8>),
        layers: Vec<(Descriptor, Span)>,
    ) -> Result<Self, Error> {
        let name = config.0.digest.to_string();
        let configuration: Configuration = parse(&name, &config.1)?;
        let (layers, spans): (Vec<_>, Vec<_>) = layers.into_iter().unzip();
        let parts = Parts::new(manifest, config, configuration, layers)?;
        Ok(Self { names: Vec::new(), bare_tag: None, parts, spans })
    }

    /// Reads what a manifest in an OCI layout refers to.
    pub fn from_layout(archive: &Archive, manifest: (Descriptor, Vec<u8>)) -> Result<Self, Error> {
        let name = manifest.0.digest.to_string();
        let parsed: Manifest = parse(&name, &manifest.1)?;
        let config = blob(archive, &parsed.config, &name)?;
        let mut layers = Vec::with_capacity(parsed.layers.len());
        for layer in parsed.layers {
            let span = place(archive, &layer, &name)?;
            layers.push((layer, span));
        }
        Self::assemble(manifest, (parsed.config, config), layers)
    }
}

/// The bytes of a document blob, its digest checked.
pub(super) fn blob(archive: &Archive, descriptor: &Descriptor, wanted_by: &str) -> Result<Vec<u8>, Error> {
    place(archive, descriptor, wanted_by)?;
    let bytes = archive.document(&path(&descriptor.digest), wanted_by)?;
    match Digest::of(&bytes) == descriptor.digest {
        true => Ok(bytes),
        false => {
            Err(Error::DigestMismatch { what: path(&descriptor.digest), wanted: descriptor.digest.clone() })
        }
    }
}

/// Where a blob lies, its size checked.
fn place(archive: &Archive, descriptor: &Descriptor, wanted_by: &str) -> Result<Span, Error> {
    let missing =
        || Error::MissingBlob { blob: descriptor.digest.to_string(), wanted_by: wanted_by.to_owned() };
    let span = archive.span(&path(&descriptor.digest)).ok_or_else(missing)?;
    match span.size == descriptor.size {
        true => Ok(span),
        false => {
            let reason = format!("it has {} bytes, {wanted_by} says {}", span.size, descriptor.size);
            Err(Error::entry(path(&descriptor.digest), reason))
        }
    }
}

fn path(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}
