//! Secret objects and volumes.

use std::sync::Arc;

use warren_proto::convert::secret_object_kind;
use warren_proto::v1;
use warren_types::{Bytes, ReleasedVolume, SecretObject, Violations, Volume};

use super::super::field::{parse, parse_optional, sealed_version, stored_sealed_version, timestamp};

pub(super) fn stored_secret_object(object: &SecretObject) -> v1::StoredSecretObject {
    let versions = object.versions.iter().map(|(number, version)| (*number, stored_sealed_version(version)));
    v1::StoredSecretObject {
        id: object.id.to_string(),
        kind: v1::SecretObjectKind::from(object.kind).into(),
        name: object.name.to_string(),
        version: object.version,
        created_at: object.created_at.0,
        updated_at: object.updated_at.0,
        labels: object.labels.clone(),
        versions: versions.collect(),
    }
}

pub(super) fn secret_object(stored: v1::StoredSecretObject) -> Result<SecretObject, Violations> {
    let sealed = |(number, version)| Ok((number, Arc::new(sealed_version(version)?)));
    Ok(SecretObject {
        id: parse("secretObject.id", &stored.id)?,
        kind: secret_object_kind(stored.kind)?,
        name: parse("secretObject.name", &stored.name)?,
        version: stored.version,
        created_at: timestamp(stored.created_at),
        updated_at: timestamp(stored.updated_at),
        labels: stored.labels,
        versions: stored.versions.into_iter().map(sealed).collect::<Result<_, Violations>>()?,
    })
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
        released_at: volume.released.map(|released| released.at.0),
        released_size: volume.released.and_then(|released| released.size).map(|size| size.0),
    }
}

pub(super) fn volume(stored: v1::StoredVolume) -> Result<Volume, Violations> {
    Ok(Volume {
        id: parse("volume.id", &stored.id)?,
        name: parse("volume.name", &stored.name)?,
        version: stored.version,
        created_at: timestamp(stored.created_at),
        labels: stored.labels,
        driver: parse("volume.driver", &stored.driver)?,
        options: stored.options,
        node: parse_optional("volume.nodeId", &stored.node_id)?,
        removing: stored.removing,
        released: stored
            .released_at
            .map(|at| ReleasedVolume { at: timestamp(at), size: stored.released_size.map(Bytes) }),
    })
}
