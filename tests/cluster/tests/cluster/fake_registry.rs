//! The registry that managers ask.

use std::sync::LazyLock;
use std::time::Duration;

use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use warren_registry::{
    Digest, ImageSignature, PullGrant, Reference, RegistryClients, RegistryCredentials, RegistryError,
    RegistrySettings, RepositoryToken, ResolveNames, ResolvedName,
};
use warren_types::SignatureKey;
use warren_types::image_reference::is_loopback_registry;

use crate::encryption_at_rest::PLAINTEXT_MARK;

/// The digest of its image, and of those of workers.
pub const DIGEST: &str = "sha256:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

static SIGNER: LazyLock<EcdsaKeyPair> = LazyLock::new(new_pair);

fn new_pair() -> EcdsaKeyPair {
    let random = SystemRandom::new();
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random).unwrap();
    EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8.as_ref(), &random).unwrap()
}

/// Whose signature the image has by the name `signed`.
pub fn signer() -> SignatureKey {
    let point: &[u8] = SIGNER.public_key().as_ref();
    SignatureKey::EcdsaP256(point.try_into().unwrap())
}

/// A signature as cosign makes it.
fn signature(pair: &EcdsaKeyPair, digest: &str) -> ImageSignature {
    let critical = serde_json::json!({
        "identity": {"docker-reference": "registry.example/signed"},
        "image": {"docker-manifest-digest": digest},
        "type": "cosign container image signature",
    });
    let payload = serde_json::json!({"critical": critical, "optional": null}).to_string().into_bytes();
    let signature = pair.sign(&SystemRandom::new(), &payload).unwrap().as_ref().to_vec();
    ImageSignature { payload, signature }
}

/// It has one image, by every name but `missing`; for `offline` it cannot be reached. The image is signed by the name
/// `signed`; by another key as `foreign`; and as `copied` it has the signature of another digest. Only `tokens.lan` has
/// tokens for repositories, to whoever does not have the password `wrong`. Registries on loopback are asked themselves.
#[derive(Debug)]
pub struct FakeRegistry;

/// The token of `tokens.lan` for a repository.
pub fn token_of(repository: &str) -> String {
    format!("{PLAINTEXT_MARK}-token-for-{repository}")
}

fn check_reachable(reference: &Reference) -> Result<(), RegistryError> {
    if !reference.path().ends_with("offline") {
        return Ok(());
    }
    let (registry, reason) = (reference.domain().to_owned(), "no route to host".to_owned());
    Err(RegistryError::Unreachable { registry, reason, is_own_host: true })
}

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
        check_reachable(reference)?;
        let media_type = "application/vnd.oci.image.index.v1+json".to_owned();
        Ok(ResolvedName { digest: Digest::parse(DIGEST).unwrap(), media_type, size: 1234 })
    }

    async fn signatures(
        &self,
        reference: &Reference,
        image: &Digest,
        _: Option<RegistryCredentials>,
    ) -> Result<Vec<ImageSignature>, RegistryError> {
        check_reachable(reference)?;
        Ok(match reference.path() {
            _ if image.as_str() != DIGEST => Vec::new(),
            "signed" => vec![signature(&new_pair(), DIGEST), signature(&SIGNER, DIGEST)],
            "foreign" => vec![signature(&new_pair(), DIGEST)],
            "copied" => vec![signature(&SIGNER, &DIGEST.replace("00", "ff"))],
            _ => Vec::new(),
        })
    }

    async fn pull_grant(
        &self,
        reference: &Reference,
        credentials: RegistryCredentials,
    ) -> Result<PullGrant, RegistryError> {
        check_reachable(reference)?;
        if is_loopback_registry(reference.domain()) {
            let registries = RegistryClients::new(RegistrySettings::default());
            return registries.pull_grant(reference, credentials).await;
        }
        if reference.domain() != "tokens.lan" {
            return Ok(PullGrant::PasswordOnly);
        }
        if credentials.password == "wrong" {
            let (registry, image) = (reference.domain().to_owned(), reference.path().to_owned());
            let (user, message) = (credentials.user.clone(), "bad password".to_owned());
            return Ok(PullGrant::NoToken(RegistryError::Denied { registry, image, user, message }));
        }
        let token = RepositoryToken::new(token_of(reference.path()).into(), Duration::from_secs(300));
        Ok(PullGrant::Token(token.unwrap()))
    }
}
