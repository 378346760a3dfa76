//! Transfers an image between nodes: reads its blobs here, or receives them by digest and checks each.

use std::collections::HashMap;

use bytes::Bytes;
use containerd_client::services::v1 as api;
use futures::{Stream, StreamExt, stream};
use serde::de::DeserializeOwned;
use tonic::async_trait;
use warren_registry::{Digest, MAX_DOCUMENT, OCI_INDEX, OCI_MANIFEST, Reference};

use super::import::ImportedName;
use super::pull::REF_MANIFEST;
use super::{DEFAULT_SIZE_LIMIT, ImageStore};
use crate::document::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest};
use crate::error::Error;
use crate::image_parts::ImageParts;
use crate::platform::HostPlatform;
use crate::store::{IngestTarget, Lease};

/// Smallest chunk that is written to the store, except for the last one of a blob.
const CHUNK_BYTES: usize = 256 << 10;

/// The blobs of an image on another node.
#[async_trait]
pub trait BlobSource: Send {
    /// Requests blobs, which then arrive in this order.
    ///
    /// # Errors
    /// The source has ended.
    async fn request(&mut self, blobs: &[Digest]) -> Result<(), Error>;

    /// The next bytes of the current blob; `None` at its end.
    ///
    /// # Errors
    /// The source has ended.
    async fn next_chunk(&mut self) -> Result<Option<Bytes>, Error>;
}

impl ImageStore {
    /// The bytes of a blob of the image with that digest.
    ///
    /// # Errors
    /// The image is not here, or the blob does not belong to it.
    pub async fn read_blob(
        &self,
        image: &Reference,
        blob: &Digest,
    ) -> Result<impl Stream<Item = Result<Bytes, Error>> + Send + use<>, Error> {
        let missing =
            || Error::Transfer { reason: format!("the image {image} has no blob {blob} on this node") };
        let info = self.get(image).await?.ok_or_else(missing)?;
        if info.digest != *blob && !info.blobs().any(|own| own.digest == *blob) {
            return Err(missing());
        }
        let message = api::ReadContentRequest { digest: blob.to_string(), offset: 0, size: 0 };
        let action = format!("read blob {blob}");
        let mut client = self.store.connection.content();
        let replies = client.read(self.store.connection.request(message)).await;
        let replies = replies.map_err(|status| Error::from_status(action.clone(), &status))?.into_inner();
        Ok(replies.map(move |reply| match reply {
            Ok(reply) => Ok(Bytes::from(reply.data)),
            Err(status) => Err(Error::from_status(action.clone(), &status)),
        }))
    }

    /// Receives the image with that digest and gives it the name. What this node has of it is not requested:
    /// each of its documents in a request, then all missing layers in one.
    ///
    /// # Errors
    /// The source ends or sends something else, the image is for another platform, or containerd fails.
    pub async fn receive(
        &self,
        reference: &Reference,
        digest: &Digest,
        source: &mut dyn BlobSource,
    ) -> Result<ImportedName, Error> {
        let receive = async |lease: Lease| self.receive_under(&lease, reference, digest, source).await;
        self.store.under_lease(receive).await
    }

    async fn receive_under(
        &self,
        lease: &Lease,
        reference: &Reference,
        digest: &Digest,
        source: &mut dyn BlobSource,
    ) -> Result<ImportedName, Error> {
        let root = receive_document(source, digest).await?;
        let (target, index, manifest) = if is_index(digest, &root)? {
            let parsed: ImageIndex = parse(digest, &root)?;
            let missing = |found| Error::NoMatchingPlatform { what: reference.to_string(), found };
            let chosen = HostPlatform::native().choose(&parsed.manifests).map_err(missing)?.clone();
            let bytes = receive_document(source, &chosen.digest).await?;
            let media_type = media_type(&root).unwrap_or_else(|| OCI_INDEX.to_owned());
            let target = Descriptor::new(&media_type, digest.clone(), root.len() as u64);
            (target, Some(root), (chosen, bytes))
        } else {
            let media_type = media_type(&root).unwrap_or_else(|| OCI_MANIFEST.to_owned());
            let target = Descriptor::new(&media_type, digest.clone(), root.len() as u64);
            (target.clone(), None, (target, root))
        };
        if !manifest.0.is_manifest() {
            let what = format!("media type {:?}", manifest.0.media_type);
            return Err(Error::Unsupported { what, advice: "copy a container image" });
        }
        let parsed: ImageManifest = parse(&manifest.0.digest, &manifest.1)?;
        let config = receive_document(source, &parsed.config.digest).await?;
        let configuration: ImageConfiguration = parse(&parsed.config.digest, &config)?;
        let parts = ImageParts::new(manifest, (parsed.config, config), configuration, parsed.layers)?;
        if parts.size() > self.pull_size_limit.min(DEFAULT_SIZE_LIMIT) {
            return Err(Error::ImageTooLarge { what: reference.to_string(), limit: self.pull_size_limit });
        }
        self.receive_layers(lease, &parts.layers, source).await?;
        let arrived = stream::iter(parts.layers.iter().map(|_| Ok(())));
        self.assemble(lease, &parts, arrived, |_| ()).await?;
        if let Some(index) = index {
            let references = HashMap::from([(REF_MANIFEST.to_owned(), parts.manifest.0.digest.to_string())]);
            self.store.write_document(lease, &index, references).await?;
        }
        self.set_target(reference, &target).await?;
        let size = self.disk_usage(&target).await?;
        Ok(ImportedName { reference: reference.clone(), digest: digest.clone(), size })
    }

    /// Stores the layers, of which those that are here are not requested.
    async fn receive_layers(
        &self,
        lease: &Lease,
        layers: &[Descriptor],
        source: &mut dyn BlobSource,
    ) -> Result<(), Error> {
        let mut missing: Vec<&Descriptor> = Vec::new();
        for layer in layers {
            let is_requested = missing.iter().any(|other| other.digest == layer.digest);
            if !is_requested && !self.store.has(&layer.digest).await? {
                missing.push(layer);
            }
        }
        let digests: Vec<Digest> = missing.iter().map(|layer| layer.digest.clone()).collect();
        source.request(&digests).await?;
        for layer in missing {
            let mut target = self.store.ingest(lease, &layer.digest, layer.size).await?;
            let (mut received, mut pending) = (0u64, Vec::new());
            while let Some(chunk) = source.next_chunk().await? {
                received += chunk.len() as u64;
                if received > layer.size {
                    let reason = format!("layer {} is longer than {} bytes", layer.digest, layer.size);
                    return Err(Error::Transfer { reason });
                }
                // Another transfer may have stored it meanwhile.
                let IngestTarget::Absent(ingest) = &mut target else { continue };
                pending.extend_from_slice(&chunk);
                if pending.len() >= CHUNK_BYTES {
                    ingest.write(std::mem::take(&mut pending)).await?;
                }
            }
            if let IngestTarget::Absent(mut ingest) = target {
                if !pending.is_empty() {
                    ingest.write(pending).await?;
                }
                ingest.commit(HashMap::new()).await?;
            }
        }
        // The lease also keeps those that were here.
        for layer in layers {
            if let IngestTarget::Absent(_) = self.store.ingest(lease, &layer.digest, layer.size).await? {
                let reason = format!("layer {} was removed meanwhile", layer.digest);
                return Err(Error::Transfer { reason });
            }
        }
        Ok(())
    }
}

/// Receives one document and checks it.
async fn receive_document(source: &mut dyn BlobSource, digest: &Digest) -> Result<Vec<u8>, Error> {
    source.request(std::slice::from_ref(digest)).await?;
    let mut bytes = Vec::new();
    while let Some(chunk) = source.next_chunk().await? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() as u64 > MAX_DOCUMENT {
            return Err(Error::document(
                digest.to_string(),
                format!("it has more than {MAX_DOCUMENT} bytes"),
            ));
        }
    }
    if Digest::of(&bytes) != *digest {
        return Err(Error::DigestMismatch {
            what: "a document of the image".to_owned(),
            expected: digest.clone(),
        });
    }
    Ok(bytes)
}

/// The media type that a document states.
fn media_type(bytes: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct MediaType {
        media_type: Option<String>,
    }
    serde_json::from_slice::<MediaType>(bytes).ok()?.media_type
}

/// Whether a document is an index rather than a manifest.
fn is_index(digest: &Digest, bytes: &[u8]) -> Result<bool, Error> {
    #[derive(serde::Deserialize)]
    struct Shape {
        manifests: Option<serde::de::IgnoredAny>,
    }
    Ok(parse::<Shape>(digest, bytes)?.manifests.is_some())
}

fn parse<T: DeserializeOwned>(digest: &Digest, bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|error| Error::document(digest.to_string(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends these chunks, whatever is requested.
    struct Chunks(Vec<Vec<u8>>);

    #[async_trait]
    impl BlobSource for Chunks {
        async fn request(&mut self, _: &[Digest]) -> Result<(), Error> {
            Ok(())
        }

        async fn next_chunk(&mut self) -> Result<Option<Bytes>, Error> {
            Ok((!self.0.is_empty()).then(|| self.0.remove(0).into()))
        }
    }

    #[tokio::test]
    async fn other_bytes_than_the_requested_document_are_refused() {
        let digest = Digest::of(b"{}");
        let mut whole = Chunks(vec![b"{".to_vec(), b"}".to_vec()]);
        assert_eq!(receive_document(&mut whole, &digest).await.unwrap(), b"{}");
        let error = receive_document(&mut Chunks(vec![b"[]".to_vec()]), &digest).await.unwrap_err();
        assert!(matches!(error, Error::DigestMismatch { .. }), "{error}");
        let large = Chunks(vec![vec![0; 1 << 20]; 5]);
        let error = receive_document(&mut { large }, &digest).await.unwrap_err();
        assert!(error.to_string().contains("more than 4194304 bytes"), "{error}");
    }

    #[test]
    fn an_index_is_recognised_by_its_content() {
        let digest = Digest::of(b"");
        assert!(is_index(&digest, br#"{"manifests":[]}"#).unwrap());
        assert!(!is_index(&digest, br#"{"config":{}}"#).unwrap());
        assert!(is_index(&digest, b"garbage").is_err());
        assert_eq!(media_type(br#"{"mediaType":"x"}"#).as_deref(), Some("x"));
    }
}
