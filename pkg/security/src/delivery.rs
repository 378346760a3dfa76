//! How contents get from a manager to the one node that needs them, so that whoever records the connection, or ends
//! its TLS in between, has nothing of use.
//!
//! For each call both sides make an X25519 key that lives as long as the call. HKDF-SHA256 of what they agree on, with
//! both public keys (the node's first) for the salt and `warren delivery 1` and the node's id for the info, is the key
//! of the call; each content is sealed under it by AES-256-GCM with a random nonce, bound to the node, the content's id
//! and its number. The manager knows who asks from the certificate of the connection, and seals for that node only.
//!
//! The node is the [`Requester`], the manager the [`Responder`].

use std::fmt;

use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::hkdf;
use ring::rand::SystemRandom;
use warren_types::{ContentId, NodeId};
use zeroize::Zeroizing;

use crate::cipher::{Cipher, KEY};

/// Bytes of an X25519 public key.
pub const PUBLIC_KEY: usize = 32;
const INFO: &[u8] = b"warren delivery 1";

/// Why a content cannot be sent or read. Says nothing of what is in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeliveryError {
    /// The system gives no randomness.
    #[error("the system gives no randomness for a key")]
    Randomness,
    /// What the other side sent is no key.
    #[error("the other side's key has {0} bytes; wanted the {PUBLIC_KEY} of an X25519 public key")]
    KeyLength(usize),
    /// What the other side sent is a key with which everybody agrees on the same.
    #[error(
        "the other side's key is one of those that keep nothing secret; it must make a new one for each call"
    )]
    WeakKey,
    /// The other side changed its key within a call.
    #[error("the other side answered one call with two keys")]
    AnotherKey,
    /// It does not open.
    #[error(
        "content {id} number {number} does not open: it was not sealed for this node and this call, or changed on \
         its way; ask again"
    )]
    Refused {
        /// Which content.
        id: ContentId,
        /// Which version of it.
        number: u64,
    },
}

/// The node's side of one call.
pub struct Requester {
    node: NodeId,
    public: [u8; PUBLIC_KEY],
    state: State,
}

enum State {
    Asked(EphemeralPrivateKey),
    Agreed {
        key: [u8; PUBLIC_KEY],
        cipher: Box<Cipher>,
    },
    /// The other side's first key was of no use, and ours is used up.
    Spent(DeliveryError),
}

/// One content as a manager sent it.
#[derive(Debug, Clone, Copy)]
pub struct Delivery<'a> {
    /// The manager's public key.
    pub key: &'a [u8],
    /// Which content.
    pub id: ContentId,
    /// Which version of it.
    pub number: u64,
    /// Its bytes, sealed.
    pub sealed: &'a [u8],
}

/// The manager's side of one call.
pub struct Responder {
    node: NodeId,
    public: [u8; PUBLIC_KEY],
    cipher: Cipher,
}

impl fmt::Debug for Requester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Requester({})", self.node)
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Responder({})", self.node)
    }
}

impl Requester {
    /// A new key for a call of `node`.
    ///
    /// # Errors
    /// [`DeliveryError::Randomness`].
    pub fn new(node: NodeId) -> Result<Self, DeliveryError> {
        let (private, public) = new_key()?;
        Ok(Self { node, public, state: State::Asked(private) })
    }

    /// What the manager must be sent.
    pub fn public_key(&self) -> &[u8; PUBLIC_KEY] {
        &self.public
    }

    /// The bytes of what the manager answered.
    ///
    /// # Errors
    /// All but [`DeliveryError::Randomness`].
    pub fn open(&mut self, delivery: &Delivery<'_>) -> Result<Zeroizing<Vec<u8>>, DeliveryError> {
        let Delivery { id, number, sealed, .. } = *delivery;
        let (theirs, about) = (public_key(delivery.key)?, about(self.node, id, number));
        let opened = self.agree(theirs)?.open_at_random(&about, sealed);
        opened.ok_or(DeliveryError::Refused { id, number })
    }

    fn agree(&mut self, theirs: [u8; PUBLIC_KEY]) -> Result<&Cipher, DeliveryError> {
        // Whatever comes of it, the key agrees once.
        let spent = State::Spent(DeliveryError::WeakKey);
        self.state = match std::mem::replace(&mut self.state, spent) {
            State::Asked(private) => {
                let keys = [self.public, theirs];
                State::Agreed { key: theirs, cipher: Box::new(agree(private, &theirs, keys, self.node)?) }
            }
            known => known,
        };
        match &self.state {
            State::Agreed { key, cipher } if *key == theirs => Ok(cipher),
            State::Spent(error) => Err(error.clone()),
            State::Agreed { .. } | State::Asked(_) => Err(DeliveryError::AnotherKey),
        }
    }
}

impl Responder {
    /// A new key, and what it agrees on with that of `node`.
    ///
    /// # Errors
    /// The node's key is none or weak, or there is no randomness.
    pub fn new(requester: &[u8], node: NodeId) -> Result<Self, DeliveryError> {
        let theirs = public_key(requester)?;
        let (private, public) = new_key()?;
        let cipher = agree(private, &theirs, [theirs, public], node)?;
        Ok(Self { node, public, cipher })
    }

    /// What the node must be sent with each content.
    pub fn public_key(&self) -> &[u8; PUBLIC_KEY] {
        &self.public
    }

    /// Seals the bytes of a version of a content for the node and this call.
    pub fn seal(&self, id: ContentId, number: u64, plain: &[u8]) -> Vec<u8> {
        self.cipher.seal_at_random(&about(self.node, id, number), plain)
    }
}

fn new_key() -> Result<(EphemeralPrivateKey, [u8; PUBLIC_KEY]), DeliveryError> {
    let none = |_| DeliveryError::Randomness;
    let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).map_err(none)?;
    let public = private.compute_public_key().map_err(none)?;
    let public = public.as_ref().try_into().expect("an X25519 public key has 32 bytes");
    Ok((private, public))
}

fn public_key(bytes: &[u8]) -> Result<[u8; PUBLIC_KEY], DeliveryError> {
    bytes.try_into().map_err(|_| DeliveryError::KeyLength(bytes.len()))
}

/// The cipher of the call; `keys` are the node's public key and the manager's.
fn agree(
    private: EphemeralPrivateKey,
    theirs: &[u8; PUBLIC_KEY],
    keys: [[u8; PUBLIC_KEY]; 2],
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
    // It refuses a key of low order, with which the shared secret would be zero.
    let agreed = agree_ephemeral(private, &UnparsedPublicKey::new(&X25519, theirs), derive);
    agreed.map_err(|_| DeliveryError::WeakKey)
}

fn about(node: NodeId, id: ContentId, number: u64) -> Vec<u8> {
    [&node.0.0.to_be_bytes()[..], &id.0.0.to_be_bytes(), &number.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests;
