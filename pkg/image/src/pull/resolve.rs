//! From a name to the documents of the image for this machine, each checked before the next is asked for.

use serde::de::DeserializeOwned;

use super::persist;
use super::progress::Reporter;
use crate::digest::Digest;
use crate::document::{
    Configuration, DOCKER_LIST, Descriptor, Index, MAX_DOCUMENT, Manifest, OCI_INDEX, OCI_MANIFEST,
};
use crate::error::Error;
use crate::parts::Parts;
use crate::platform::Host;
use crate::reference::Reference;
use crate::registry::{Found, Named, Repository};
use crate::store::Store;

/// What a name stands for.
pub(super) struct Resolved {
    /// The index, when the image has one.
    pub index: Option<(Descriptor, Vec<u8>)>,
    /// The image for this machine.
    pub parts: Parts,
}

/// Fetches and checks all documents of an image.
///
/// # Errors
/// A registry that does not give them, documents that are not of an image, another platform.
pub(super) async fn resolve(
    store: &Store,
    repository: &Repository,
    reference: &Reference,
    reporter: &Reporter,
) -> Result<Resolved, Error> {
    let (descriptor, bytes) = manifest(repository, Named::of(reference), reporter).await?;
    if !descriptor.is_index() {
        let parts = parts(store, repository, (descriptor, bytes), reporter).await?;
        return Ok(Resolved { index: None, parts });
    }
    let name = descriptor.digest.to_string();
    let index: Index = parse(&name, &bytes)?;
    let missing = |found| Error::Platform { what: reference.to_string(), found };
    let chosen = Host::native().choose(&index.manifests).map_err(missing)?;
    if !chosen.is_manifest() {
        let what = format!("media type {:?} in index {name}", chosen.media_type);
        return Err(Error::Unsupported { what, advice: "want an image manifest for each platform" });
    }
    let manifest = manifest(repository, Named::Digest(&chosen.digest), reporter).await?;
    if manifest.0.is_index() {
        let what = format!("the index {} in index {name}", chosen.digest);
        return Err(Error::Unsupported { what, advice: "want an image manifest for each platform" });
    }
    let parts = parts(store, repository, manifest, reporter).await?;
    Ok(Resolved { index: Some((descriptor, bytes)), parts })
}

/// Fetches a manifest or an index and says which it is.
pub(super) async fn manifest(
    repository: &Repository,
    named: Named<'_>,
    reporter: &Reporter,
) -> Result<(Descriptor, Vec<u8>), Error> {
    let Found { media_type, bytes } = persist(repository, reporter, || repository.manifest(named)).await?;
    let digest = Digest::of(&bytes);
    if let Named::Digest(wanted) = named
        && *wanted != digest
    {
        return Err(Error::DigestMismatch { what: "the manifest".to_owned(), wanted: wanted.clone() });
    }
    let media_type = kind(&digest, &media_type, &bytes)?;
    Ok((Descriptor::new(media_type, digest, bytes.len() as u64), bytes))
}

/// The media type of a manifest: what it says of itself, or else what the registry says. Both must agree, so
/// that nobody takes it for something else than we do.
fn kind(digest: &Digest, said: &str, bytes: &[u8]) -> Result<&'static str, Error> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Kind {
        schema_version: u32,
        #[serde(default)]
        media_type: Option<String>,
    }
    let Kind { schema_version, media_type } = parse(digest.as_str(), bytes)?;
    if schema_version != 2 {
        let what = format!("an image manifest of schema version {schema_version}");
        return Err(Error::Unsupported { what, advice: "push it again with a tool of this decade" });
    }
    let own = media_type.as_deref().unwrap_or(said);
    const KNOWN: [&str; 4] = [OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, crate::document::DOCKER_MANIFEST];
    match KNOWN.into_iter().find(|known| *known == own) {
        Some(known) if known == said => Ok(known),
        Some(known) => {
            let reason = format!("the registry calls it {said:?}, itself {known:?}");
            Err(Error::document(digest.to_string(), reason))
        }
        None => {
            let what = format!("manifest media type {own:?}");
            Err(Error::Unsupported { what, advice: "want an OCI or Docker image manifest" })
        }
    }
}

/// Fetches what a manifest refers to, but for its layers.
async fn parts(
    store: &Store,
    repository: &Repository,
    manifest: (Descriptor, Vec<u8>),
    reporter: &Reporter,
) -> Result<Parts, Error> {
    let name = manifest.0.digest.to_string();
    let parsed: Manifest = parse(&name, &manifest.1)?;
    let config = parsed.config;
    if !config.is_configuration() {
        let what = format!("what {name} holds, {:?},", config.media_type);
        return Err(Error::Unsupported { what, advice: "want a container image" });
    }
    if config.size > MAX_DOCUMENT {
        let reason = format!("its configuration has {} bytes, want at most {MAX_DOCUMENT}", config.size);
        return Err(Error::document(name, reason));
    }
    let bytes = match store.read_document(&config.digest).await? {
        Some(bytes) => bytes,
        None => persist(repository, reporter, || repository.document(&config)).await?,
    };
    if Digest::of(&bytes) != config.digest || bytes.len() as u64 != config.size {
        return Err(Error::DigestMismatch { what: "the configuration".to_owned(), wanted: config.digest });
    }
    let configuration: Configuration = parse(config.digest.as_str(), &bytes)?;
    Parts::new(manifest, (config, bytes), configuration, parsed.layers)
}

fn parse<T: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|error| Error::document(name, error))
}
