//! Reads the output of `docker save`: `manifest.json` lists a configuration and layer tars for each image.
//!
//! Such an archive has no OCI manifest. One is generated here, deterministically, so that importing the
//! archive again yields the same digest.

use std::os::unix::fs::FileExt;

use sha2::{Digest as _, Sha256};
use warren_registry::{Digest, OCI_MANIFEST, Reference};

use crate::document::{
    Descriptor, DockerSaveEntry, ImageConfiguration, ImageManifest, OCI_CONFIG, OCI_LAYER_GZIP, OCI_LAYER_TAR,
};
use crate::error::Error;

use super::{CHUNK, GZIP_MAGIC, ImageCandidate, IndexedArchive, Span, ZSTD_MAGIC, parse};

const NAME: &str = "manifest.json";

pub(super) fn candidates(archive: &IndexedArchive) -> Result<Vec<ImageCandidate>, Error> {
    let saved: Vec<DockerSaveEntry> = parse(NAME, &archive.document(NAME, "the archive")?)?;
    if saved.is_empty() {
        return Err(Error::document(NAME, "it contains no image"));
    }
    saved.iter().map(|image| candidate(archive, image)).collect()
}

fn candidate(archive: &IndexedArchive, saved: &DockerSaveEntry) -> Result<ImageCandidate, Error> {
    let bytes = archive.document(&saved.config, NAME)?;
    let config = Descriptor::new(OCI_CONFIG, Digest::of(&bytes), bytes.len() as u64);
    let diff_ids = parse::<ImageConfiguration>(&saved.config, &bytes)?.rootfs.diff_ids;
    let mut layers = Vec::with_capacity(saved.layers.len());
    for (position, name) in saved.layers.iter().enumerate() {
        let missing = || Error::MissingBlob { blob: name.clone(), referrer: NAME.to_owned() };
        let span = archive.span(name).ok_or_else(missing)?;
        layers.push((check_layer(archive, name, span, diff_ids.get(position))?, span));
    }
    let manifest = ImageManifest {
        schema_version: 2,
        media_type: OCI_MANIFEST.to_owned(),
        config: config.clone(),
        layers: layers.iter().map(|(descriptor, _)| descriptor.clone()).collect(),
    };
    let document = serde_json::to_vec(&manifest).map_err(|error| Error::document(NAME, error))?;
    let descriptor = Descriptor::new(OCI_MANIFEST, Digest::of(&document), document.len() as u64);
    let mut candidate = ImageCandidate::new((descriptor, document), (config, bytes), layers)?;
    for tag in &saved.repo_tags {
        candidate.names.push(Reference::parse(tag)?);
    }
    Ok(candidate)
}

/// Hashes a layer. A plain layer must have the digest in the configuration.
fn check_layer(
    archive: &IndexedArchive,
    name: &str,
    span: Span,
    diff_id: Option<&Digest>,
) -> Result<Descriptor, Error> {
    let failed = |error| Error::entry(name, format!("it cannot be read: {error}"));
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    let mut done = 0;
    let mut media_type = OCI_LAYER_TAR;
    while done < span.size {
        let want = CHUNK.min((span.size - done) as usize);
        archive.file.read_exact_at(&mut chunk[..want], span.offset + done).map_err(failed)?;
        if done == 0 && chunk.starts_with(GZIP_MAGIC) {
            media_type = OCI_LAYER_GZIP;
        }
        if done == 0 && chunk.starts_with(ZSTD_MAGIC) {
            let what = format!("the zstd-compressed layer {name}");
            return Err(Error::Unsupported { what, advice: "save the image as an OCI archive instead" });
        }
        hasher.update(&chunk[..want]);
        done += want as u64;
    }
    let digest = Digest::finish(hasher);
    match diff_id {
        Some(expected) if media_type == OCI_LAYER_TAR && *expected != digest => {
            Err(Error::DigestMismatch { what: name.to_owned(), expected: expected.clone() })
        }
        _ => Ok(Descriptor::new(media_type, digest, span.size)),
    }
}
