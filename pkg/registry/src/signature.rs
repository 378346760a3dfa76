//! The signatures that cosign stores beside an image, as the tag `sha256-HEX.sig` of its repository.
//!
//! Sources: cosign's `SIGNATURE_SPEC.md`, and "Simple signing" of containers/image for what is signed.

use std::collections::BTreeMap;

use ring::signature::{ECDSA_P256_SHA256_ASN1, ED25519, UnparsedPublicKey, VerificationAlgorithm};
use serde::Deserialize;
use warren_types::SignatureKey;
use warren_types::base64::decode_base64;

use crate::client::{FetchedManifest, ManifestSelector, Repository};
use crate::digest::Digest;
use crate::error::RegistryError;
use crate::media_type::OCI_MANIFEST;
use crate::retry::AttemptFailure;

const SIMPLE_SIGNING: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// The annotation of a layer with its signature in base64.
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
const PAYLOAD_TYPE: &str = "cosign container image signature";
/// Size limit of the manifest in bytes. Annotations may contain certificates.
const MAX_MANIFEST: usize = 1 << 20;
/// The most signatures of one image.
const MAX_SIGNATURES: usize = 32;
/// Size limit of what is signed in bytes; cosign writes some 300.
const MAX_PAYLOAD: u64 = 16 << 10;
/// The most characters of a signature in base64; one of P-256 has 96.
const MAX_SIGNATURE: usize = 1024;

/// A signature as the registry has it, not verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSignature {
    /// What is signed: a JSON document that contains the digest of the image.
    pub payload: Vec<u8>,
    /// ECDSA in ASN.1, or Ed25519.
    pub signature: Vec<u8>,
}

impl ImageSignature {
    /// Whether one of the keys signed this digest. The repository that the payload names is not compared: images are
    /// copied together with their signatures.
    pub fn is_valid(&self, image: &Digest, keys: &[SignatureKey]) -> bool {
        // What nobody signed is not parsed.
        keys.iter().any(|key| self.is_by(key)) && self.signed_digest().as_ref() == Some(image)
    }

    fn is_by(&self, key: &SignatureKey) -> bool {
        let (algorithm, bytes): (&'static dyn VerificationAlgorithm, &[u8]) = match key {
            SignatureKey::EcdsaP256(point) => (&ECDSA_P256_SHA256_ASN1, point),
            SignatureKey::Ed25519(key) => (&ED25519, key),
        };
        UnparsedPublicKey::new(algorithm, bytes).verify(&self.payload, &self.signature).is_ok()
    }

    pub(super) fn signed_digest(&self) -> Option<Digest> {
        let SignedPayload { critical } = serde_json::from_slice(&self.payload).ok()?;
        (critical.kind == PAYLOAD_TYPE).then_some(critical.image.digest)
    }
}

#[derive(Deserialize)]
struct SignedPayload {
    critical: CriticalPart,
}

#[derive(Deserialize)]
struct CriticalPart {
    image: SignedImage,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct SignedImage {
    #[serde(rename = "docker-manifest-digest")]
    digest: Digest,
}

#[derive(Deserialize)]
struct SignatureManifest {
    layers: Vec<SignatureLayer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SignatureLayer {
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// A layer that is a signature.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StoredSignature {
    pub payload: Digest,
    pub payload_size: u64,
    pub signature: Vec<u8>,
}

impl StoredSignature {
    /// `None` for what is no signature that cosign writes.
    fn of(layer: &SignatureLayer) -> Option<Self> {
        let text = layer.annotations.get(SIGNATURE).filter(|text| text.len() <= MAX_SIGNATURE)?;
        let signature = decode_base64(text)?;
        let payload = Digest::parse(&layer.digest).ok()?;
        (layer.size <= MAX_PAYLOAD).then_some(Self { payload, payload_size: layer.size, signature })
    }
}

/// The signatures in a manifest.
pub(super) fn stored_signatures(manifest: &FetchedManifest) -> Result<Vec<StoredSignature>, String> {
    let FetchedManifest { media_type, bytes } = manifest;
    if media_type != OCI_MANIFEST {
        return Err(format!("its media type is {media_type:?}, expected {OCI_MANIFEST}"));
    }
    if bytes.len() > MAX_MANIFEST {
        return Err(format!("it has more than {MAX_MANIFEST} bytes"));
    }
    let SignatureManifest { mut layers } =
        serde_json::from_slice(bytes).map_err(|error| format!("it is no manifest: {error}"))?;
    layers.retain(|layer| layer.media_type == SIMPLE_SIGNING);
    if layers.len() > MAX_SIGNATURES {
        return Err(format!("it has {} signatures, more than {MAX_SIGNATURES}", layers.len()));
    }
    Ok(layers.iter().filter_map(StoredSignature::of).collect())
}

impl Repository {
    /// The signatures of an image; one attempt. None is no error.
    pub(super) async fn signatures(&self, image: &Digest) -> Result<Vec<ImageSignature>, AttemptFailure> {
        let tag = format!("sha256-{}.sig", image.hex());
        let manifest = match self.manifest(ManifestSelector::Tag(&tag)).await {
            Ok(manifest) => manifest,
            Err(AttemptFailure { error: RegistryError::UnknownImage { .. }, .. }) => return Ok(Vec::new()),
            Err(failure) => return Err(failure),
        };
        let invalid = |what: &str, reason: String| self.invalid_answer(what, reason);
        let stored = stored_signatures(&manifest).map_err(|reason| invalid(&format!("tag {tag}"), reason))?;
        let mut signatures = Vec::with_capacity(stored.len());
        for StoredSignature { payload, payload_size, signature } in stored {
            let bytes = self.document(&payload, payload_size).await?;
            let found = Digest::of(&bytes);
            if found != payload {
                return Err(invalid(&format!("blob {payload}"), format!("its digest is {found}")).into());
            }
            signatures.push(ImageSignature { payload: bytes, signature });
        }
        Ok(signatures)
    }
}

#[cfg(test)]
mod tests;
