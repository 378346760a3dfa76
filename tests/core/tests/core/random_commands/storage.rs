//! Secret objects and volumes, and services that use them.

use proptest::prelude::*;
use warren_core::Command;
use warren_core::state::{HeldVolumes, VolumeData};
use warren_types::*;

use super::{node, time};
use crate::test_cluster::*;

const VOLUMES: [&str; 4] = ["data", "web-1", "web-2", "zone-1"];

/// What a service has in addition to its image, by the number of its replicas: so that what users remove and
/// create again is used by some services and not by others.
pub fn add_storage(spec: &mut ServiceSpec, replicas: u32) {
    let secrets: &[&str] = match replicas {
        1 => &["a"],
        2 => &["a", "b"],
        _ => &[],
    };
    spec.task.secrets = with_secrets("web", 1, secrets).task.secrets;
    let volumes: &[&str] = match replicas {
        2 => &["data"],
        3 => &["{{.Service.Name}}-{{.Task.Slot}}"],
        5 => &["zone-{{.Node.Labels.zone}}", "data"],
        _ => &[],
    };
    spec.task.mounts = with_volumes("web", 1, volumes).task.mounts;
}

fn content() -> impl Strategy<Value = SecretObjectId> {
    (1..4u128).prop_map(secret_object_id)
}

fn volume() -> impl Strategy<Value = VolumeId> {
    (1..4u128).prop_map(volume_id)
}

fn volume_data() -> impl Strategy<Value = VolumeData> {
    let present = prop::option::of(0..9u64).prop_map(|size| VolumeData::Present(size.map(Bytes)));
    prop_oneof![Just(VolumeData::Unknown), Just(VolumeData::Absent), present]
}

pub fn command() -> impl Strategy<Value = Command> {
    let version = || prop::option::weighted(0.2, 0..9u64);
    let bytes = || (0..6u8).prop_map(sealed);
    let name = || prop::sample::select(&["a", "b"][..]).prop_map(|name| name.parse().unwrap());
    let kind = || prop_oneof![3 => Just(SecretObjectKind::Secret), 1 => Just(SecretObjectKind::Config)];
    let volume_name = || prop::sample::select(&VOLUMES[..]).prop_map(|name| name.parse().unwrap());
    prop_oneof![
        3 => (content(), kind(), name(), bytes(), time()).prop_map(|(id, kind, name, content, at)| {
            let labels = Default::default();
            Command::CreateSecretObject { id, kind, name, labels, data: content, at }
        }),
        3 => (content(), version(), bytes(), time())
            .prop_map(|(id, version, data, at)| Command::UpdateSecretObject { id, version, data, at }),
        1 => (content(), time()).prop_map(|(id, at)| Command::RemoveSecretObject { id, at }),
        2 => (volume(), volume_name(), any::<bool>(), prop::option::of(node()), any::<bool>(), time()).prop_map(
            |(id, name, owned, node, reuse, at)| {
                let options = owned.then(|| ("uid".to_string(), "1".to_string())).into_iter().collect();
                let (driver, labels) = (VolumeDriver::Local, Default::default());
                Command::CreateVolume { id, name, driver, options, labels, node, reuse, at }
            }
        ),
        1 => (volume(), any::<bool>(), volume_data(), time())
            .prop_map(|(id, purge, data, at)| Command::RemoveVolume { id, purge, data, at }),
        1 => (node(), 0..4u64, prop::collection::btree_set(volume_name(), 0..3), any::<bool>(), time()).prop_map(
            |(node, session, names, is_truncated, at)| {
                Command::ReportVolumes { node, session, held: HeldVolumes { names, is_truncated }, at }
            }
        ),
        1 => (volume(), time()).prop_map(|(id, at)| Command::DeleteVolume { id, at }),
    ]
}
