//! Digests of secret objects, volumes and networks.

use warren_types::{
    Network, ReleasedVolume, SealedData, SecretObject, SecretObjectKind, SecretObjectVersion, Volume,
    VolumeDriver,
};
use xxhash_rust::xxh3::xxh3_64;

use super::{HashKind, extension, flags, halves, hash, labels, list, net, text};
use crate::state::{Withdrawal, WithdrawnAddress};

/// A secret, a config or a credential.
pub(in crate::state) fn secret_object(content: &SecretObject) -> u64 {
    let SecretObject { id, kind, name, version, created_at, updated_at, labels: given, versions } = content;
    let [high, low] = halves(id.0);
    let sealed = |sealed: &SealedData| {
        let SealedData { size, fingerprint, sealed } = sealed;
        hash([u64::from(*size), xxh3_64(fingerprint), xxh3_64(sealed)])
    };
    hash([
        HashKind::SecretObject as u64,
        high,
        low,
        secret_object_kind(*kind),
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
    let Volume { id, name, version, created_at, labels: given, driver, options, node, removing, released } =
        volume;
    let [high, low] = halves(id.0);
    let place = node.map_or([0, 0], |node| halves(node.0));
    let VolumeDriver::Local = driver;
    let known = hash([
        HashKind::Volume as u64,
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
    ]);
    let remains = released.map_or(0, |ReleasedVolume { at, size }| {
        hash([at.0, size.is_some().into(), size.map_or(0, |size| size.0)])
    });
    extension(known, 1, remains)
}

/// A network.
pub(in crate::state) fn network(network: &Network) -> u64 {
    let Network { id, name, version, created_at, labels: given, internal, number } = network;
    let [high, low] = halves(id.0);
    hash([
        HashKind::Network as u64,
        high,
        low,
        text(name.as_str()),
        *version,
        created_at.0,
        labels(given),
        u64::from(*internal),
        u64::from(*number),
    ])
}

/// Something that is not assigned again yet.
pub(in crate::state) fn withdrawn(item: WithdrawnAddress, withdrawal: Withdrawal) -> u64 {
    let (kind, value) = match item {
        WithdrawnAddress::Address(address) => (1, u64::from(u32::from(address))),
        WithdrawnAddress::Subnet(subnet) => (2, net(&subnet)),
        WithdrawnAddress::NodeNumber(number) => (3, u64::from(number)),
    };
    hash([HashKind::Withdrawn as u64, kind, value, withdrawal.at.0, withdrawal.index])
}

/// A version of a secret object in a revision, as words of its list.
pub(super) fn secret_object_version(used: &SecretObjectVersion) -> [u64; 5] {
    let SecretObjectVersion { kind, name, id, number } = used;
    let [high, low] = halves(id.0);
    [secret_object_kind(*kind), text(name.as_str()), high, low, *number]
}

fn secret_object_kind(kind: SecretObjectKind) -> u64 {
    match kind {
        SecretObjectKind::Secret => 1,
        SecretObjectKind::Config => 2,
        SecretObjectKind::Credential => 3,
    }
}
