//! Resolves a name to the documents of the image for this machine; checks each before it requests the next.

use serde::de::DeserializeOwned;
use warren_registry::{
    Digest, FetchedManifest, IMAGE_TYPES, MAX_DOCUMENT, ManifestSelector, Reference, Repository,
};

use super::progress::ProgressSender;
use super::retry;
use crate::document::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest};
use crate::error::Error;
use crate::image_parts::ImageParts;
use crate::platform::HostPlatform;
use crate::store::ContentStore;

/// Documents of a resolved name.
pub(super) struct ResolvedImage {
    /// The index, when the image has one.
    pub index: Option<(Descriptor, Vec<u8>)>,
    /// The image for this machine.
    pub parts: ImageParts,
}

/// Fetches and checks all documents of an image.
///
/// # Errors
/// A registry that does not provide them, invalid documents, or another platform.
pub(super) async fn resolve(
    store: &ContentStore,
    repository: &Repository,
    reference: &Reference,
    reporter: &ProgressSender,
) -> Result<ResolvedImage, Error> {
    let (descriptor, bytes) =
        manifest(repository, ManifestSelector::from_reference(reference), reporter).await?;
    if !descriptor.is_index() {
        let parts = parts(store, repository, (descriptor, bytes), reporter).await?;
        return Ok(ResolvedImage { index: None, parts });
    }
    let name = descriptor.digest.to_string();
    let index: ImageIndex = parse(&name, &bytes)?;
    let missing = |found| Error::NoMatchingPlatform { what: reference.to_string(), found };
    let chosen = HostPlatform::native().choose(&index.manifests).map_err(missing)?;
    if !chosen.is_manifest() {
        let what = format!("media type {:?} in index {name}", chosen.media_type);
        return Err(Error::Unsupported { what, advice: "use an image manifest for each platform" });
    }
    let manifest = manifest(repository, ManifestSelector::Digest(&chosen.digest), reporter).await?;
    if manifest.0.is_index() {
        let what = format!("the index {} in index {name}", chosen.digest);
        return Err(Error::Unsupported { what, advice: "use an image manifest for each platform" });
    }
    let parts = parts(store, repository, manifest, reporter).await?;
    Ok(ResolvedImage { index: Some((descriptor, bytes)), parts })
}

/// Fetches a manifest or an index and returns which it is.
pub(super) async fn manifest(
    repository: &Repository,
    named: ManifestSelector<'_>,
    reporter: &ProgressSender,
) -> Result<(Descriptor, Vec<u8>), Error> {
    let FetchedManifest { media_type, bytes } =
        retry(repository, reporter, || repository.manifest(named)).await?;
    let digest = Digest::of(&bytes);
    if let ManifestSelector::Digest(expected) = named
        && *expected != digest
    {
        return Err(Error::DigestMismatch { what: "the manifest".to_owned(), expected: expected.clone() });
    }
    let media_type = effective_media_type(&digest, &media_type, &bytes)?;
    Ok((Descriptor::new(media_type, digest, bytes.len() as u64), bytes))
}

/// Media type of a manifest: its own field, or else the registry's header. If both exist they must agree,
/// so that other tools read it the same way.
fn effective_media_type(digest: &Digest, header: &str, bytes: &[u8]) -> Result<&'static str, Error> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct MediaTypeHint {
        schema_version: u32,
        #[serde(default)]
        media_type: Option<String>,
    }
    let MediaTypeHint { schema_version, media_type } = parse(digest.as_str(), bytes)?;
    if schema_version != 2 {
        let what = format!("an image manifest of schema version {schema_version}");
        return Err(Error::Unsupported { what, advice: "push it again with a current tool" });
    }
    let own = media_type.as_deref().unwrap_or(header);
    match IMAGE_TYPES.into_iter().find(|known| *known == own) {
        Some(known) if known == header => Ok(known),
        Some(known) => {
            let reason = format!("the registry reports {header:?}, the document {known:?}");
            Err(Error::document(digest.to_string(), reason))
        }
        None => {
            let what = format!("manifest media type {own:?}");
            Err(Error::Unsupported { what, advice: "use an OCI or Docker image manifest" })
        }
    }
}

/// Fetches what a manifest refers to, except its layers.
async fn parts(
    store: &ContentStore,
    repository: &Repository,
    manifest: (Descriptor, Vec<u8>),
    reporter: &ProgressSender,
) -> Result<ImageParts, Error> {
    let name = manifest.0.digest.to_string();
    let parsed: ImageManifest = parse(&name, &manifest.1)?;
    let config = parsed.config;
    if !config.is_configuration() {
        let what = format!("content of type {:?} in {name}", config.media_type);
        return Err(Error::Unsupported { what, advice: "use a container image" });
    }
    if config.size > MAX_DOCUMENT {
        let reason =
            format!("its configuration has {} bytes, at most {MAX_DOCUMENT} are allowed", config.size);
        return Err(Error::document(name, reason));
    }
    let bytes = match store.read_document(&config.digest).await? {
        Some(bytes) => bytes,
        None => retry(repository, reporter, || repository.document(&config.digest, config.size)).await?,
    };
    if Digest::of(&bytes) != config.digest || bytes.len() as u64 != config.size {
        return Err(Error::DigestMismatch { what: "the configuration".to_owned(), expected: config.digest });
    }
    let configuration: ImageConfiguration = parse(config.digest.as_str(), &bytes)?;
    ImageParts::new(manifest, (config, bytes), configuration, parsed.layers)
}

fn parse<T: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|error| Error::document(name, error))
}
