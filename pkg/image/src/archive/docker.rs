//! Reads the output of `docker save`: `manifest.json` names a configuration and layer tars for each image.
//!
//! Such an archive has no OCI manifest. One is written here, the same bytes for the same content, so that
//! importing the archive again yields the same digest.

use std::os::unix::fs::FileExt;

use sha2::{Digest as _, Sha256};

use crate::digest::Digest;
use crate::document::{
    Configuration, Descriptor, Manifest, OCI_CONFIG, OCI_LAYER_GZIP, OCI_LAYER_TAR, OCI_MANIFEST, Saved,
};
use crate::error::Error;
use crate::reference::Reference;

use super::{Archive, CHUNK, Candidate, GZIP, Span, ZSTD, parse};

const NAME: &str = "manifest.json";

pub(super) fn candidates(archive: &Archive) -> Result<Vec<Candidate>, Error> {
    let saved: Vec<Saved> = parse(NAME, &archive.document(NAME, "the archive")?)?;
    if saved.is_empty() {
        return Err(Error::document(NAME, "it lists no image"));
    }
    saved.iter().map(|image| candidate(archive, image)).collect()
}

fn candidate(archive: &Archive, saved: &Saved) -> Result<Candidate, Error> {
    let bytes = archive.document(&saved.config, NAME)?;
    let config = Descriptor::new(OCI_CONFIG, Digest::of(&bytes), bytes.len() as u64);
    let diff_ids = parse::<Configuration>(&saved.config, &bytes)?.rootfs.diff_ids;
    let mut layers = Vec::with_capacity(saved.layers.len());
    for (position, name) in saved.layers.iter().enumerate() {
        let missing = || Error::MissingBlob { blob: name.clone(), wanted_by: NAME.to_owned() };
        let span = archive.span(name).ok_or_else(missing)?;
        layers.push((layer(archive, name, span, diff_ids.get(position))?, span));
    }
    let manifest = Manifest {
        schema_version: 2,
        media_type: OCI_MANIFEST.to_owned(),
        config: config.clone(),
        layers: layers.iter().map(|(descriptor, _)| descriptor.clone()).collect(),
    };
    let document = serde_json::to_vec(&manifest).map_err(|error| Error::document(NAME, error))?;
    let descriptor = Descriptor::new(OCI_MANIFEST, Digest::of(&document), document.len() as u64);
    let mut candidate = Candidate::assemble((descriptor, document), (config, bytes), layers)?;
    for tag in &saved.repo_tags {
        candidate.names.push(Reference::parse(tag)?);
    }
    Ok(candidate)
}

/// Hashes a layer. A plain one must already be what the configuration promises.
fn layer(archive: &Archive, name: &str, span: Span, diff_id: Option<&Digest>) -> Result<Descriptor, Error> {
    let failed = |error| Error::entry(name, format!("it cannot be read: {error}"));
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    let mut done = 0;
    let mut media_type = OCI_LAYER_TAR;
    while done < span.size {
        let want = CHUNK.min((span.size - done) as usize);
        archive.file.read_exact_at(&mut chunk[..want], span.offset + done).map_err(failed)?;
        if done == 0 && chunk.starts_with(GZIP) {
            media_type = OCI_LAYER_GZIP;
        }
        if done == 0 && chunk.starts_with(ZSTD) {
            let what = format!("the zstd-compressed layer {name}");
            return Err(Error::Unsupported { what, advice: "save the image as an OCI archive instead" });
        }
        hasher.update(&chunk[..want]);
        done += want as u64;
    }
    let digest = Digest::finish(hasher);
    match diff_id {
        Some(wanted) if media_type == OCI_LAYER_TAR && *wanted != digest => {
            Err(Error::DigestMismatch { what: name.to_owned(), wanted: wanted.clone() })
        }
        _ => Ok(Descriptor::new(media_type, digest, span.size)),
    }
}
