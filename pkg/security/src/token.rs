//! Join tokens: what a machine or a person needs to become part of a cluster.
//!
//! `WRN-1-<digest of the CA, 64 digits>-<secret, 32 digits><check, 4 digits>`, all of them hexadecimal, in
//! either case. 1 is the version of this form. The digest is that of [`CaDigest`], by which the joiner recognises the
//! cluster before it says the secret. The check digits are the first two bytes of SHA-256 over `WRN-1-`, the
//! digest and the secret: they tell a typing error from a token that is not (or no longer) known.

use std::fmt;

use rustls::crypto::ring;
use sha2::{Digest, Sha256};
use warren_types::TokenHash;
use zeroize::Zeroizing;

use crate::{CaDigest, hex};

const TOKEN_MAGIC: &str = "WRN-";
const VERSION: u32 = 1;
const PREFIX: &str = "WRN-1-";
const DIGEST_DIGITS: usize = 64;
const SECRET: usize = 16;
/// The secret and the two bytes of the check.
const TAIL_DIGITS: usize = 2 * (SECRET + 2);
const LENGTH: usize = PREFIX.len() + DIGEST_DIGITS + 1 + TAIL_DIGITS;
/// What else is hashed with a secret, so that no other use of the hash gives what is stored.
const HASH_CONTEXT: &[u8] = b"warren join token";

/// Why a text is not a token, or why none could be made. Repeats nothing of the text but its version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It does not look like one at all.
    #[error(
        "expected a token, which begins with {PREFIX}: `warren token create` and `warren user token` print one"
    )]
    NotAToken,
    /// Another version of Warren made it.
    #[error(
        "the token has version {found}, this program supports version {VERSION}: use the same version of Warren as \
         the cluster"
    )]
    Version {
        /// Its version.
        found: u32,
    },
    /// Something is missing or was added.
    #[error(
        "a token has {LENGTH} characters, this one has {found}: copy all of it, without spaces or line breaks"
    )]
    Length {
        /// Its number of characters.
        found: usize,
    },
    /// A character that no token has in this place.
    #[error(
        "character {position} of the token is wrong: after {PREFIX} it has only the digits 0-9 and a-f and one dash"
    )]
    Character {
        /// Where it stands, counted from 1.
        position: usize,
    },
    /// Its parts do not belong together.
    #[error("the token's check digits do not match: a character was mistyped, copy it again")]
    Check,
    /// The operating system gave no randomness.
    #[error("the operating system gave no random bytes for a token")]
    Randomness,
}

/// A join token. `Debug` shows nothing of its secret, which is wiped from memory in the end.
#[derive(Clone)]
pub struct JoinToken {
    authority: CaDigest,
    secret: Zeroizing<[u8; SECRET]>,
}

impl JoinToken {
    /// A new token of the cluster with this authority; its secret has 128 bits from the operating system.
    pub fn generate(authority: CaDigest) -> Result<Self, TokenError> {
        let mut secret = Zeroizing::new([0; SECRET]);
        let random = ring::default_provider().secure_random;
        random.fill(&mut *secret).map_err(|_| TokenError::Randomness)?;
        Ok(Self { authority, secret })
    }

    /// Reads a token as somebody typed or pasted it: space around it and the case of its letters do not count.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        check_version(text)?;
        let found = text.chars().count();
        if found != LENGTH {
            return Err(TokenError::Length { found });
        }
        if let Some(index) = text.chars().position(|letter| !letter.is_ascii()) {
            return Err(TokenError::Character { position: index + 1 });
        }
        let (digest, tail) = text.as_bytes()[PREFIX.len()..].split_at(DIGEST_DIGITS);
        let mut authority = [0; DIGEST_DIGITS / 2];
        let wrong = |from: usize| move |index| TokenError::Character { position: from + index + 1 };
        hex::parse(digest, &mut authority).map_err(wrong(PREFIX.len()))?;
        let dash = PREFIX.len() + DIGEST_DIGITS;
        let Some((b'-', tail)) = tail.split_first() else {
            return Err(TokenError::Character { position: dash + 1 });
        };
        let mut secret_and_check = Zeroizing::new([0; TAIL_DIGITS / 2]);
        hex::parse(tail, &mut *secret_and_check).map_err(wrong(dash + 1))?;
        let (found, check) = secret_and_check.split_at(SECRET);
        let mut secret = Zeroizing::new([0; SECRET]);
        secret.copy_from_slice(found);
        let token = Self { authority: CaDigest::from_bytes(authority), secret };
        if token.check() != check {
            return Err(TokenError::Check);
        }
        Ok(token)
    }

    /// The whole token as text, secret and all. What is done with it must keep it from logs and errors.
    pub fn reveal(&self) -> Zeroizing<String> {
        // Never grows, so that no copy is left behind in freed memory.
        let mut text = Zeroizing::new(String::with_capacity(LENGTH));
        text.push_str(PREFIX);
        text.extend(hex::digits(self.authority.as_bytes()));
        text.push('-');
        text.extend(hex::digits(&*self.secret).chain(hex::digits(&self.check())));
        text
    }

    /// By what the joiner recognises the cluster; see [`crate::connect_to_join`].
    pub fn authority(&self) -> CaDigest {
        self.authority
    }

    /// What the cluster keeps of it: SHA-256 of the secret, by which it is recognised, and of no use to join.
    ///
    /// A plain hash is right here. Slow, salted hashes protect passwords, which can be guessed; a secret of 128
    /// random bits cannot, however fast the guesses are, and no two tokens have the same. Nor does it matter how
    /// long a comparison of hashes takes, so that they may be keys of a map: whoever measured how many bytes of a
    /// stored hash its guess has in common learns bytes of a hash, from which no secret can be found.
    pub fn hash(&self) -> TokenHash {
        TokenHash(
            Sha256::new().chain_update(HASH_CONTEXT).chain_update(self.secret.as_slice()).finalize().into(),
        )
    }

    fn check(&self) -> [u8; 2] {
        let hash = Sha256::new()
            .chain_update(PREFIX)
            .chain_update(self.authority.as_bytes())
            .chain_update(self.secret.as_slice())
            .finalize();
        [hash[0], hash[1]]
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({PREFIX}{}-redacted)", self.authority)
    }
}

fn check_version(text: &str) -> Result<(), TokenError> {
    let marked = text.get(..TOKEN_MAGIC.len()).is_some_and(|mark| mark.eq_ignore_ascii_case(TOKEN_MAGIC));
    let version = marked.then(|| &text[TOKEN_MAGIC.len()..]).and_then(|rest| rest.split('-').next());
    let plain = |version: &&str| !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit());
    match version.filter(plain).and_then(|version| version.parse().ok()) {
        Some(VERSION) if text.get(TOKEN_MAGIC.len()..PREFIX.len()) == Some("1-") => Ok(()),
        // `WRN-1` alone, or `WRN-01-`.
        Some(VERSION) | None => Err(TokenError::NotAToken),
        Some(found) => Err(TokenError::Version { found }),
    }
}

#[cfg(test)]
mod tests;
