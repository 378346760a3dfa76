//! Fields that commands and objects share.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::str::FromStr;

use bytes::Bytes;
use warren_proto::convert::node_condition;
use warren_proto::v1;
use warren_types::{NodeCondition, SealedData, Timestamp, TokenHash, Violation, Violations};

pub(super) fn timestamp(millis: u64) -> Timestamp {
    Timestamp(millis)
}

pub(super) fn parse<T: FromStr<Err: Display>>(path: &str, text: &str) -> Result<T, Violations> {
    text.parse().map_err(|why| Violation::new(path, why).into())
}

pub(super) fn parse_all<T: FromStr<Err: Display>>(path: &str, all: &[String]) -> Result<Vec<T>, Violations> {
    all.iter().map(|one| parse(path, one)).collect()
}

/// Parses an optional text; empty means absent.
pub(super) fn parse_optional<T: FromStr<Err: Display>>(
    path: &str,
    text: &str,
) -> Result<Option<T>, Violations> {
    if text.is_empty() { Ok(None) } else { parse(path, text).map(Some) }
}

pub(super) fn token_hash(path: &str, bytes: &[u8]) -> Result<TokenHash, Violations> {
    let whole = <[u8; 32]>::try_from(bytes);
    whole.map(TokenHash).map_err(|_| Violation::new(path, "is not of 32 bytes").into())
}

pub(super) fn required<T>(path: &str, value: Option<T>) -> Result<T, Violations> {
    value.ok_or_else(|| Violation::new(path, "is missing").into())
}

pub(super) fn hash_bytes(TokenHash(hash): &TokenHash) -> Bytes {
    Bytes::copy_from_slice(hash)
}

/// Wire values in order.
pub(super) fn wire_conditions(conditions: &BTreeSet<NodeCondition>) -> Vec<i32> {
    conditions.iter().map(|condition| v1::NodeCondition::from(*condition).into()).collect()
}

/// Parses the output of [`wire_conditions`].
pub(super) fn conditions(wire: &[i32]) -> Result<BTreeSet<NodeCondition>, Violations> {
    wire.iter().map(|condition| node_condition(*condition)).collect()
}

/// One version, in a command or in an object.
pub(super) fn stored_sealed_version(content: &SealedData) -> v1::StoredSealedData {
    v1::StoredSealedData {
        size: content.size,
        fingerprint: Bytes::copy_from_slice(&content.fingerprint),
        sealed: Bytes::copy_from_slice(&content.sealed),
    }
}

/// Parses the output of [`stored_sealed_version`].
pub(super) fn sealed_version(stored: v1::StoredSealedData) -> Result<SealedData, Violations> {
    let fingerprint = <[u8; 32]>::try_from(&stored.fingerprint[..]);
    let fingerprint =
        fingerprint.map_err(|_| Violation::new("secretObject.fingerprint", "is not of 32 bytes"))?;
    Ok(SealedData { size: stored.size, fingerprint, sealed: stored.sealed.into() })
}
