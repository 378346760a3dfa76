//! A private key that is wiped from memory when it is dropped and cannot be shown by accident.

use std::fmt;

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData};
use warren_types::{NodeId, PublicKeyHash};
use zeroize::Zeroizing;

use crate::MaterialError;
use crate::identity::{id_of, public_key_hash};

/// An ECDSA P-256 private key as PKCS #8 PEM. `Debug` shows nothing of it.
#[derive(Clone)]
pub struct PrivateKey {
    pem: Zeroizing<String>,
}

impl PrivateKey {
    /// A new key from the operating system's randomness.
    pub fn generate() -> Result<Self, MaterialError> {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(unusable)?;
        let pair = Zeroizing::new(pair);
        Ok(Self { pem: Zeroizing::new(pair.serialize_pem()) })
    }

    /// Reads a key, and checks that it is of the one kind in use.
    pub fn parse(pem: &str) -> Result<Self, MaterialError> {
        let key = Self { pem: Zeroizing::new(pem.to_owned()) };
        key.pair()?;
        Ok(key)
    }

    /// The key as PEM. What is done with it must keep it from logs, errors and command lines.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The id of the node that this is the key of: the first 128 bits of SHA-256 over its public half, so that
    /// nobody can have the id who does not have the key, and a node that joins again is the same node.
    pub fn node_id(&self) -> Result<NodeId, MaterialError> {
        Ok(node_id(&*self.pair()?))
    }

    /// The hash of its public half.
    pub fn public_hash(&self) -> Result<PublicKeyHash, MaterialError> {
        Ok(public_key_hash(&self.pair()?.subject_public_key_info()))
    }

    pub(crate) fn pair(&self) -> Result<Zeroizing<KeyPair>, MaterialError> {
        let pair = KeyPair::from_pkcs8_pem_and_sign_algo(&self.pem, &PKCS_ECDSA_P256_SHA256);
        pair.map(Zeroizing::new).map_err(unusable)
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(redacted)")
    }
}

/// The first 128 bits of SHA-256 over the public key in DER (SubjectPublicKeyInfo, RFC 5280, 4.1.2.7).
///
/// To join under the id of another node one would need its key, or another key with the same 128 bits.
pub(crate) fn node_id(key: &impl PublicKeyData) -> NodeId {
    id_of(&public_key_hash(&key.subject_public_key_info()))
}

fn unusable(error: rcgen::Error) -> MaterialError {
    MaterialError::Key(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_key_round_trips_and_is_redacted() {
        let key = PrivateKey::generate().unwrap();
        let again = PrivateKey::parse(key.pem()).unwrap();
        assert_eq!(key.pem(), again.pem());
        assert_eq!(format!("{key:?}"), "PrivateKey(redacted)");
    }

    #[test]
    fn invalid_key_error_hides_the_input() {
        let other = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap().serialize_pem();
        let body = other.lines().nth(1).unwrap().to_owned();
        for bad in [other.as_str(), "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n", ""]
        {
            let text = PrivateKey::parse(bad).unwrap_err().to_string();
            assert!(text.contains("P-256"), "{text}");
            assert!(!text.contains(&body) && !text.contains("c2VjcmV0"));
        }
    }
}
