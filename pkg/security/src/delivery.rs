//! End-to-end encryption of secrets, configs and credentials from a manager to the one node that needs them: a recorded
//! connection, or a proxy that terminates its TLS, reveals nothing.
//!
//! For each call both sides generate an ephemeral X25519 key. The key of the call is HKDF-SHA256 of the shared secret,
//! with both public keys (the node's first) as salt and `warren delivery 1` and the node id as info. Each object is
//! sealed with it by AES-256-GCM with a random nonce, bound to the node, the id of the object and its version number.
//! The manager identifies the node by the certificate of the connection, and seals for that node only.
//!
//! The node is the [`DeliveryRequester`], the manager the [`DeliveryResponder`].

use std::fmt;

use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::hkdf;
use ring::rand::SystemRandom;
use warren_types::{NodeId, SecretObjectId};
use zeroize::Zeroizing;

use crate::cipher::{Cipher, KEY};

/// Bytes of an X25519 public key.
pub const PUBLIC_KEY_LEN: usize = 32;
const INFO: &[u8] = b"warren delivery 1";

/// Why an object cannot be sealed or opened. Contains no data of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeliveryError {
    /// The operating system returned no random bytes.
    #[error("no random bytes from the operating system for a key")]
    Randomness,
    /// The peer sent an invalid key.
    #[error("the key of the peer has {0} bytes, expected {PUBLIC_KEY_LEN} of an X25519 public key")]
    KeyLength(usize),
    /// The peer sent a low-order key, which gives a known shared secret.
    #[error("the key of the peer is weak (of low order); it must generate a new one for each call")]
    WeakKey,
    /// The peer changed its key within a call.
    #[error("the peer sent two different keys in one call")]
    AnotherKey,
    /// Decryption failed.
    #[error(
        "object {id} version {number} cannot be decrypted: it was not sealed for this node and this call, or was \
         changed in transit; retry"
    )]
    Refused {
        /// Id of the object.
        id: SecretObjectId,
        /// Version number.
        number: u64,
    },
}

/// The node side of a call.
pub struct DeliveryRequester {
    node: NodeId,
    public: [u8; PUBLIC_KEY_LEN],
    state: RequesterState,
}

enum RequesterState {
    KeySent(EphemeralPrivateKey),
    Agreed {
        key: [u8; PUBLIC_KEY_LEN],
        cipher: Box<Cipher>,
    },
    /// The first key of the manager was invalid, and the private key is consumed.
    Failed(DeliveryError),
}

/// A sealed object as sent by a manager.
#[derive(Debug, Clone, Copy)]
pub struct SealedDelivery<'a> {
    /// The manager's public key.
    pub key: &'a [u8],
    /// Id of the object.
    pub id: SecretObjectId,
    /// Version number.
    pub number: u64,
    /// Sealed data.
    pub sealed: &'a [u8],
}

/// The manager side of a call.
pub struct DeliveryResponder {
    node: NodeId,
    public: [u8; PUBLIC_KEY_LEN],
    cipher: Cipher,
}

impl fmt::Debug for DeliveryRequester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Requester({})", self.node)
    }
}

impl fmt::Debug for DeliveryResponder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Responder({})", self.node)
    }
}

impl DeliveryRequester {
    /// A new key for a call of `node`.
    ///
    /// # Errors
    /// [`DeliveryError::Randomness`].
    pub fn new(node: NodeId) -> Result<Self, DeliveryError> {
        let (private, public) = new_key()?;
        Ok(Self { node, public, state: RequesterState::KeySent(private) })
    }

    /// The public key to send to the manager.
    pub fn public_key(&self) -> &[u8; PUBLIC_KEY_LEN] {
        &self.public
    }

    /// Decrypts a response of the manager.
    ///
    /// # Errors
    /// All but [`DeliveryError::Randomness`].
    pub fn open(&mut self, delivery: &SealedDelivery<'_>) -> Result<Zeroizing<Vec<u8>>, DeliveryError> {
        let SealedDelivery { id, number, sealed, .. } = *delivery;
        let (theirs, about) = (public_key(delivery.key)?, aad(self.node, id, number));
        let opened = self.agree(theirs)?.open_at_random(&about, sealed);
        opened.ok_or(DeliveryError::Refused { id, number })
    }

    fn agree(&mut self, theirs: [u8; PUBLIC_KEY_LEN]) -> Result<&Cipher, DeliveryError> {
        // The key is used for one agreement only, even if it fails.
        let spent = RequesterState::Failed(DeliveryError::WeakKey);
        self.state = match std::mem::replace(&mut self.state, spent) {
            RequesterState::KeySent(private) => {
                let keys = [self.public, theirs];
                RequesterState::Agreed {
                    key: theirs,
                    cipher: Box::new(agree(private, &theirs, keys, self.node)?),
                }
            }
            known => known,
        };
        match &self.state {
            RequesterState::Agreed { key, cipher } if *key == theirs => Ok(cipher),
            RequesterState::Failed(error) => Err(error.clone()),
            RequesterState::Agreed { .. } | RequesterState::KeySent(_) => Err(DeliveryError::AnotherKey),
        }
    }
}

impl DeliveryResponder {
    /// A new key, and the shared secret with the key of `node`.
    ///
    /// # Errors
    /// The key of the node is invalid or weak, or there are no random bytes.
    pub fn new(requester: &[u8], node: NodeId) -> Result<Self, DeliveryError> {
        let theirs = public_key(requester)?;
        let (private, public) = new_key()?;
        let cipher = agree(private, &theirs, [theirs, public], node)?;
        Ok(Self { node, public, cipher })
    }

    /// The public key to send with each object.
    pub fn public_key(&self) -> &[u8; PUBLIC_KEY_LEN] {
        &self.public
    }

    /// Seals a version of an object for the node and this call.
    pub fn seal(&self, id: SecretObjectId, number: u64, plain: &[u8]) -> Vec<u8> {
        self.cipher.seal_at_random(&aad(self.node, id, number), plain)
    }
}

fn new_key() -> Result<(EphemeralPrivateKey, [u8; PUBLIC_KEY_LEN]), DeliveryError> {
    let none = |_| DeliveryError::Randomness;
    let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).map_err(none)?;
    let public = private.compute_public_key().map_err(none)?;
    let public = public.as_ref().try_into().expect("an X25519 public key has 32 bytes");
    Ok((private, public))
}

fn public_key(bytes: &[u8]) -> Result<[u8; PUBLIC_KEY_LEN], DeliveryError> {
    bytes.try_into().map_err(|_| DeliveryError::KeyLength(bytes.len()))
}

/// The cipher of the call; `keys` are the public keys of the node and of the manager.
fn agree(
    private: EphemeralPrivateKey,
    theirs: &[u8; PUBLIC_KEY_LEN],
    keys: [[u8; PUBLIC_KEY_LEN]; 2],
    node: NodeId,
) -> Result<Cipher, DeliveryError> {
    let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, &keys.concat());
    let info: [&[u8]; 2] = [INFO, &node.0.0.to_be_bytes()];
    let derive = |shared: &[u8]| {
        let derived = "so short a key can be derived";
        let mut key = Zeroizing::new([0; KEY]);
        let source = salt.extract(shared);
        let sealing = source.expand(&info, hkdf::HKDF_SHA256).expect(derived);
        sealing.fill(&mut key[..]).expect(derived);
        Cipher::new(&key)
    };
    // Refuses a key of low order, which gives a shared secret of zero.
    let agreed = agree_ephemeral(private, &UnparsedPublicKey::new(&X25519, theirs), derive);
    agreed.map_err(|_| DeliveryError::WeakKey)
}

fn aad(node: NodeId, id: SecretObjectId, number: u64) -> Vec<u8> {
    [&node.0.0.to_be_bytes()[..], &id.0.0.to_be_bytes(), &number.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests;
