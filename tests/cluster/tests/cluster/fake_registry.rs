//! The registry that managers ask.

use warren_registry::{Digest, Reference, RegistryCredentials, RegistryError, ResolveNames, ResolvedName};

/// The digest of its image, and of those of workers.
pub const DIGEST: &str = "sha256:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// It has one image, by every name but `missing`; for `offline` it cannot be reached.
#[derive(Debug)]
pub struct FakeRegistry;

#[tonic::async_trait]
impl ResolveNames for FakeRegistry {
    async fn resolve(
        &self,
        reference: &Reference,
        _: Option<RegistryCredentials>,
    ) -> Result<ResolvedName, RegistryError> {
        if reference.path().ends_with("missing") {
            let (registry, image) = (reference.domain().to_owned(), reference.to_string());
            return Err(RegistryError::UnknownImage { registry, image });
        }
        if reference.path().ends_with("offline") {
            let (registry, reason) = (reference.domain().to_owned(), "no route to host".to_owned());
            return Err(RegistryError::Unreachable { registry, reason });
        }
        let media_type = "application/vnd.oci.image.index.v1+json".to_owned();
        Ok(ResolvedName { digest: Digest::parse(DIGEST).unwrap(), media_type, size: 1234 })
    }
}
