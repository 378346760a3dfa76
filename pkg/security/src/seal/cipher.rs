//! AES-256-GCM with a counter for the nonce. The key is wiped from memory when it is dropped.

use aes_gcm::aead::AeadInOut;
use aes_gcm::{Aes256Gcm, KeyInit};

/// Bytes of a key.
pub(super) const KEY: usize = 32;
/// Bytes of a nonce.
pub(super) const NONCE: usize = 12;
/// Bytes of a tag.
pub(super) const TAG: usize = 16;

pub(super) struct Cipher(Aes256Gcm);

impl Cipher {
    pub(super) fn new(key: &[u8; KEY]) -> Self {
        Self(Aes256Gcm::new(key.into()))
    }

    /// Encrypts in place, and returns the tag, which covers `about` as well.
    pub(super) fn seal(&self, counter: u64, about: &[u8], text: &mut [u8]) -> [u8; TAG] {
        self.seal_under(&nonce(counter), about, text)
    }

    /// Decrypts in place; `false` when this is not what was sealed, and the text is of no use then.
    #[must_use]
    pub(super) fn open(&self, counter: u64, about: &[u8], text: &mut [u8], tag: &[u8; TAG]) -> bool {
        self.open_under(&nonce(counter), about, text, tag)
    }

    /// As [`Cipher::seal`], with a nonce of the caller's.
    pub(super) fn seal_under(&self, nonce: &[u8; NONCE], about: &[u8], text: &mut [u8]) -> [u8; TAG] {
        let tag = self.0.encrypt_inout_detached(nonce.into(), about, text.into());
        tag.expect("no text here is near the 64 GiB that one nonce may cover").into()
    }

    /// As [`Cipher::open`], with a nonce of the caller's.
    #[must_use]
    pub(super) fn open_under(
        &self,
        nonce: &[u8; NONCE],
        about: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG],
    ) -> bool {
        self.0.decrypt_inout_detached(nonce.into(), about, text.into(), tag.into()).is_ok()
    }
}

/// Four zero bytes and the counter.
fn nonce(counter: u64) -> [u8; NONCE] {
    let mut nonce = [0; NONCE];
    nonce[4..].copy_from_slice(&counter.to_le_bytes());
    nonce
}
