//! AES-256-GCM. The key is wiped from memory when it is dropped.

use aes_gcm::aead::{AeadInOut, Generate};
use aes_gcm::{Aes256Gcm, KeyInit};
use zeroize::Zeroizing;

/// Bytes of a key.
pub(crate) const KEY: usize = 32;
/// Bytes of a nonce.
pub(crate) const NONCE: usize = 12;
/// Bytes of a tag.
pub(crate) const TAG: usize = 16;

pub(crate) struct Cipher(Aes256Gcm);

impl Cipher {
    pub(crate) fn new(key: &[u8; KEY]) -> Self {
        Self(Aes256Gcm::new(key.into()))
    }

    /// Encrypts in place with a counter for the nonce, and returns the tag, which covers `about` as well.
    pub(crate) fn seal(&self, counter: u64, about: &[u8], text: &mut [u8]) -> [u8; TAG] {
        self.seal_under(&nonce(counter), about, text)
    }

    /// Decrypts in place; `false` when this is not what was sealed, and the text is of no use then.
    #[must_use]
    pub(crate) fn open(&self, counter: u64, about: &[u8], text: &mut [u8], tag: &[u8; TAG]) -> bool {
        self.open_under(&nonce(counter), about, text, tag)
    }

    /// As [`Cipher::seal`], with a nonce of the caller's.
    pub(crate) fn seal_under(&self, nonce: &[u8; NONCE], about: &[u8], text: &mut [u8]) -> [u8; TAG] {
        let tag = self.0.encrypt_inout_detached(nonce.into(), about, text.into());
        tag.expect("no text here is near the 64 GiB that one nonce may cover").into()
    }

    /// As [`Cipher::open`], with a nonce of the caller's.
    #[must_use]
    pub(crate) fn open_under(
        &self,
        nonce: &[u8; NONCE],
        about: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG],
    ) -> bool {
        self.0.decrypt_inout_detached(nonce.into(), about, text.into(), tag.into()).is_ok()
    }

    /// A random nonce, the ciphertext, the tag: for keys that seal far fewer texts than the 2^32 which random nonces
    /// are good for. It grows by 28 bytes.
    pub(crate) fn seal_at_random(&self, about: &[u8], plain: &[u8]) -> Vec<u8> {
        let nonce = <[u8; NONCE]>::generate();
        let mut sealed = Vec::with_capacity(NONCE + plain.len() + TAG);
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(plain);
        let tag = self.seal_under(&nonce, about, &mut sealed[NONCE..]);
        sealed.extend_from_slice(&tag);
        sealed
    }

    /// What [`Cipher::seal_at_random`] sealed; `None` when this is not it.
    pub(crate) fn open_at_random(&self, about: &[u8], sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let (nonce, rest) = sealed.split_first_chunk()?;
        let (text, tag) = rest.split_last_chunk()?;
        let mut plain = Zeroizing::new(text.to_vec());
        self.open_under(nonce, about, &mut plain, tag).then_some(plain)
    }
}

/// Four zero bytes and the counter.
fn nonce(counter: u64) -> [u8; NONCE] {
    let mut nonce = [0; NONCE];
    nonce[4..].copy_from_slice(&counter.to_le_bytes());
    nonce
}
