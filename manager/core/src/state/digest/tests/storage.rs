use std::collections::BTreeMap;
use std::sync::Arc;

use warren_types::{
    Bytes, Id, NodeId, ReleasedVolume, SealedData, SecretObject, SecretObjectId, SecretObjectKind, Timestamp,
    Volume, VolumeDriver, VolumeId,
};

use super::{check, secret_object, volume};

fn sealed(byte: u8) -> SealedData {
    SealedData { size: 1, fingerprint: [byte; 32], sealed: vec![byte; 40] }
}

#[test]
fn every_secret_object_field_changes_hash() {
    fn change(content: &mut SecretObject, change: fn(&mut SealedData)) {
        change(Arc::make_mut(content.versions.get_mut(&1).unwrap()));
    }
    let given = SecretObject {
        id: SecretObjectId(Id(1)),
        kind: SecretObjectKind::Secret,
        name: "key".parse().unwrap(),
        version: 1,
        created_at: Timestamp(1),
        updated_at: Timestamp(1),
        labels: BTreeMap::new(),
        versions: [(1, Arc::new(sealed(1)))].into(),
    };
    let changes: &[fn(&mut SecretObject)] = &[
        |c| c.id = SecretObjectId(Id(2)),
        |c| c.kind = SecretObjectKind::Config,
        |c| c.kind = SecretObjectKind::Credential,
        |c| c.name = "k".parse().unwrap(),
        |c| c.version = 2,
        |c| c.created_at = Timestamp(2),
        |c| c.updated_at = Timestamp(2),
        |c| c.labels = [("a".into(), "b".into())].into(),
        |c| c.versions = [(2, Arc::new(sealed(1)))].into(),
        |c| drop(c.versions.insert(2, Arc::new(sealed(1)))),
        |c| change(c, |sealed| sealed.size = 2),
        |c| change(c, |sealed| sealed.fingerprint[0] = 2),
        |c| change(c, |sealed| sealed.sealed[39] = 2),
    ];
    check(secret_object, &given, changes);
}

#[test]
fn every_volume_field_changes_hash() {
    let given = Volume {
        id: VolumeId(Id(1)),
        name: "data".parse().unwrap(),
        version: 1,
        created_at: Timestamp(1),
        labels: BTreeMap::new(),
        driver: VolumeDriver::Local,
        options: BTreeMap::new(),
        node: None,
        removing: false,
        released: None,
    };
    const RELEASED: ReleasedVolume = ReleasedVolume { at: Timestamp(1), size: None };
    let changes: &[fn(&mut Volume)] = &[
        |v| v.id = VolumeId(Id(2)),
        |v| v.name = "d".parse().unwrap(),
        |v| v.version = 2,
        |v| v.created_at = Timestamp(2),
        |v| v.labels = [("uid".into(), "1".into())].into(),
        |v| v.options = [("uid".into(), "1".into())].into(),
        |v| v.node = Some(NodeId(Id(0))),
        |v| v.node = Some(NodeId(Id(1))),
        |v| v.removing = true,
        |v| v.released = Some(RELEASED),
        |v| v.released = Some(ReleasedVolume { at: Timestamp(2), ..RELEASED }),
        |v| v.released = Some(ReleasedVolume { size: Some(Bytes(0)), ..RELEASED }),
        |v| v.released = Some(ReleasedVolume { size: Some(Bytes(1)), ..RELEASED }),
    ];
    check(volume, &given, changes);
}
