//! Parsers of single answers of registries, for tests of other crates.

use crate::challenge::AuthChallenge;
use crate::client::FetchedManifest;
use crate::digest::Digest;
use crate::signature::{ImageSignature, StoredSignature};

/// The realm and the service of the token that `WWW-Authenticate` headers demand; `None` if they demand no token.
pub fn bearer_challenge<'a>(headers: impl IntoIterator<Item = &'a str>) -> Option<(String, Option<String>)> {
    match AuthChallenge::parse(headers)? {
        AuthChallenge::Bearer { realm, service } => Some((realm, service)),
        AuthChallenge::Basic => None,
    }
}

/// The message in the body of an error, as it is shown to people.
pub fn error_message(body: &[u8]) -> String {
    crate::error::error_message(body)
}

/// The signatures in a manifest of cosign: each with the digest of its payload and how many bytes that has.
///
/// # Errors
/// Why it is no such manifest.
pub fn stored_signatures(manifest: &FetchedManifest) -> Result<Vec<(Digest, u64, Vec<u8>)>, String> {
    let parts = |StoredSignature { payload, payload_size, signature }| (payload, payload_size, signature);
    Ok(crate::signature::stored_signatures(manifest)?.into_iter().map(parts).collect())
}

/// The digest that a payload of cosign is about; `None` if it is no such payload.
pub fn signed_digest(payload: &[u8]) -> Option<Digest> {
    ImageSignature { payload: payload.to_vec(), signature: Vec::new() }.signed_digest()
}
