//! Contents and volumes, as one number each.

use warren_types::{Content, ContentKind, ContentUse, SealedContent, Volume, VolumeDriver};
use xxhash_rust::xxh3::xxh3_64;

use super::{Kind, flags, halves, hash, labels, list, text};

/// A secret, a config or a credential.
pub(in crate::state) fn content(content: &Content) -> u64 {
    let Content { id, kind, name, version, created_at, updated_at, labels: given, versions } = content;
    let [high, low] = halves(id.0);
    let sealed = |sealed: &SealedContent| {
        let SealedContent { size, fingerprint, sealed } = sealed;
        hash([u64::from(*size), xxh3_64(fingerprint), xxh3_64(sealed)])
    };
    hash([
        Kind::Content as u64,
        high,
        low,
        content_kind(*kind),
        text(name.as_str()),
        *version,
        created_at.0,
        updated_at.0,
        labels(given),
        list(versions.iter().flat_map(|(number, version)| [*number, sealed(version)])),
    ])
}

/// A volume.
pub(in crate::state) fn volume(volume: &Volume) -> u64 {
    let Volume { id, name, version, created_at, labels: given, driver, options, node, removing } = volume;
    let [high, low] = halves(id.0);
    let place = node.map_or([0, 0], |node| halves(node.0));
    let VolumeDriver::Local = driver;
    hash([
        Kind::Volume as u64,
        high,
        low,
        text(name.as_str()),
        *version,
        created_at.0,
        labels(given),
        labels(options),
        place[0],
        place[1],
        flags([node.is_some(), *removing]).into(),
    ])
}

/// Which version of a content a revision uses, as words of its list.
pub(super) fn content_use(used: &ContentUse) -> [u64; 5] {
    let ContentUse { kind, name, id, number } = used;
    let [high, low] = halves(id.0);
    [content_kind(*kind), text(name.as_str()), high, low, *number]
}

fn content_kind(kind: ContentKind) -> u64 {
    match kind {
        ContentKind::Secret => 1,
        ContentKind::Config => 2,
        ContentKind::Credential => 3,
    }
}
