//! Arbitrary bytes as signatures of images, and as public keys.

use std::sync::LazyLock;

use warren_registry::testing::{signed_digest, stored_signatures};
use warren_registry::{Digest, FetchedManifest, ImageSignature, OCI_MANIFEST};
use warren_types::SignatureKey;
use warren_types::base64::decode_base64;

/// The most signatures of one image.
const MAX_SIGNATURES: usize = 32;
/// The most bytes of what is signed.
const MAX_PAYLOAD: u64 = 16 << 10;

/// A key of OpenSSL, and its signature of [`PAYLOAD`].
const KEY: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAxZQ5hvQiQ/r0vSvY1tEV0N74+buz6ETKB5WCoj0zcRc=
-----END PUBLIC KEY-----";
const SIGNATURE: &str =
    "5IdZ2OZg/Ad2oHFNdZehuNJHz44n2h0fZifnzrvJVFlGJcdsbn6u+oZbGRD3TXvnp/d9qtraW9Kg+EPmR59cCA==";
/// As cosign writes it, of the digest of nothing.
const PAYLOAD: &str = "{\"critical\":{\"identity\":{\"docker-reference\":\"registry.example.com/shop/app\"},\
                       \"image\":{\"docker-manifest-digest\":\
                       \"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\"},\
                       \"type\":\"cosign container image signature\"},\"optional\":null}";

static SIGNER: LazyLock<(SignatureKey, Vec<u8>)> = LazyLock::new(|| {
    (KEY.parse().expect("it is a public key"), decode_base64(SIGNATURE).expect("it is base64"))
});

/// A manifest has a bounded number of signatures with bounded payloads, a signature is valid for the payload that was
/// signed and for no other, and a key survives as text.
pub fn run(bytes: &[u8]) {
    accepted(bytes);
}

/// What an input is, for the test of the corpus; `None` if it is refused. Its first byte selects the parser.
pub fn accepted(bytes: &[u8]) -> Option<&'static str> {
    let (kind, rest) = bytes.split_first()?;
    match kind % 3 {
        0 => {
            let manifest = FetchedManifest { media_type: OCI_MANIFEST.to_owned(), bytes: rest.to_vec() };
            let signatures = stored_signatures(&manifest).ok()?;
            assert!(signatures.len() <= MAX_SIGNATURES, "{} signatures", signatures.len());
            for (payload, size, _) in &signatures {
                assert_eq!(Digest::parse(payload.as_str()).as_ref(), Ok(payload));
                assert!(*size <= MAX_PAYLOAD, "a payload of {size} bytes");
            }
            (!signatures.is_empty()).then_some("manifest")
        }
        1 => {
            let (key, signature) = &*SIGNER;
            let signature = ImageSignature { payload: rest.to_vec(), signature: signature.clone() };
            let is_valid = signature.is_valid(&Digest::of(b""), &[*key]);
            assert_eq!(is_valid, rest == PAYLOAD.as_bytes());
            signed_digest(rest).map(|_| if is_valid { "signed payload" } else { "payload" })
        }
        _ => {
            let key: SignatureKey = std::str::from_utf8(rest).ok()?.parse().ok()?;
            assert_eq!(key.to_string().parse(), Ok(key));
            Some("key")
        }
    }
}
