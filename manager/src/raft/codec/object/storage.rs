//! Contents and volumes.

use std::sync::Arc;

use bytes::Bytes;
use warren_proto::convert::content_kind;
use warren_proto::v1;
use warren_types::{Content, SealedContent, Violation, Violations, Volume};

use super::super::read::{at, optional, text};

pub(super) fn stored_content(content: &Content) -> v1::StoredContent {
    let versions = content.versions.iter().map(|(number, version)| (*number, sealed_content(version)));
    v1::StoredContent {
        id: content.id.to_string(),
        kind: v1::ContentKind::from(content.kind).into(),
        name: content.name.to_string(),
        version: content.version,
        created_at: content.created_at.0,
        updated_at: content.updated_at.0,
        labels: content.labels.clone(),
        versions: versions.collect(),
    }
}

pub(super) fn content(stored: v1::StoredContent) -> Result<Content, Violations> {
    let sealed = |(number, version)| Ok((number, Arc::new(sealed(version)?)));
    Ok(Content {
        id: text("content.id", &stored.id)?,
        kind: content_kind(stored.kind)?,
        name: text("content.name", &stored.name)?,
        version: stored.version,
        created_at: at(stored.created_at),
        updated_at: at(stored.updated_at),
        labels: stored.labels,
        versions: stored.versions.into_iter().map(sealed).collect::<Result<_, Violations>>()?,
    })
}

/// One version, in a command or in an object.
pub(in crate::raft::codec) fn sealed_content(content: &SealedContent) -> v1::StoredSealedContent {
    v1::StoredSealedContent {
        size: content.size,
        fingerprint: Bytes::copy_from_slice(&content.fingerprint),
        sealed: Bytes::copy_from_slice(&content.sealed),
    }
}

/// The version that [`sealed_content`] wrote.
pub(in crate::raft::codec) fn sealed(stored: v1::StoredSealedContent) -> Result<SealedContent, Violations> {
    let fingerprint = <[u8; 32]>::try_from(&stored.fingerprint[..]);
    let fingerprint = fingerprint.map_err(|_| Violation::new("content.fingerprint", "is not of 32 bytes"))?;
    Ok(SealedContent { size: stored.size, fingerprint, sealed: stored.sealed.into() })
}

pub(super) fn stored_volume(volume: &Volume) -> v1::StoredVolume {
    v1::StoredVolume {
        id: volume.id.to_string(),
        name: volume.name.to_string(),
        version: volume.version,
        created_at: volume.created_at.0,
        labels: volume.labels.clone(),
        driver: volume.driver.as_str().into(),
        options: volume.options.clone(),
        node_id: volume.node.map(|node| node.to_string()).unwrap_or_default(),
        removing: volume.removing,
    }
}

pub(super) fn volume(stored: v1::StoredVolume) -> Result<Volume, Violations> {
    Ok(Volume {
        id: text("volume.id", &stored.id)?,
        name: text("volume.name", &stored.name)?,
        version: stored.version,
        created_at: at(stored.created_at),
        labels: stored.labels,
        driver: text("volume.driver", &stored.driver)?,
        options: stored.options,
        node: optional("volume.nodeId", &stored.node_id)?,
        removing: stored.removing,
    })
}
