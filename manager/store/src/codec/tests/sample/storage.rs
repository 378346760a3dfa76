//! Secret objects and volumes, and their users.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use warren_core::Command;
use warren_core::state::{HeldVolumes, VolumeData};
use warren_types::{
    Bytes, HealthCheck, Id, NodeCondition, NodeId, Probe, SealedData, SecretObjectId, SecretObjectKind,
    ServiceId, ServiceMode, ServiceSpec, TaskSpec, Timestamp, VolumeDriver, VolumeId, VolumeName,
};

use super::{NODE, global};

fn check(probe: Probe) -> HealthCheck {
    HealthCheck {
        interval: Duration::from_secs(5),
        timeout: Duration::from_secs(2),
        retries: 4,
        start_period: Duration::from_secs(60),
        start_interval: Duration::from_millis(500),
        probe,
    }
}

pub fn exec() -> HealthCheck {
    check(Probe::Exec { command: vec!["/bin/check".into(), "-q".into()] })
}

fn sealed(byte: u8) -> SealedData {
    SealedData { size: 3, fingerprint: [byte; 32], sealed: vec![byte; 8] }
}

fn labels() -> BTreeMap<String, String> {
    BTreeMap::from([("team".into(), "a".into())])
}

fn secret_objects() -> Vec<(&'static str, Command)> {
    let (at, labels) = (Timestamp(150), labels());
    let id = |id| SecretObjectId(Id(id));
    let create = |number, kind, name: &str, byte| {
        let (id, name, labels) = (id(number), name.parse().unwrap(), labels.clone());
        Command::CreateSecretObject { id, kind, name, labels, data: sealed(byte), at }
    };
    vec![
        ("create_secret", create(20, SecretObjectKind::Secret, "key", 1)),
        ("create_config", create(21, SecretObjectKind::Config, "conf", 2)),
        ("create_credential", create(22, SecretObjectKind::Credential, "ghcr.io:443", 3)),
        (
            "update_content",
            Command::UpdateSecretObject { id: id(20), version: Some(9), data: sealed(4), at: Timestamp(151) },
        ),
        ("create_config_to_remove", create(23, SecretObjectKind::Config, "old", 5)),
        ("remove_content", Command::RemoveSecretObject { id: id(23), at }),
    ]
}

fn create_volume(number: u128, name: &str, node: Option<NodeId>, reuse: bool, at: Timestamp) -> Command {
    let options = BTreeMap::from([("uid".into(), "1000".into())]);
    let (id, name, driver) = (VolumeId(Id(number)), name.parse().unwrap(), VolumeDriver::Local);
    Command::CreateVolume { id, name, driver, options, labels: labels(), node, reuse, at }
}

fn volumes() -> Vec<(&'static str, Command)> {
    let at = Timestamp(160);
    let id = |id| VolumeId(Id(id));
    let purge = |number| Command::RemoveVolume { id: id(number), purge: true, data: VolumeData::Unknown, at };
    vec![
        ("create_volume", create_volume(30, "data", None, false, at)),
        ("create_volume_to_purge", create_volume(31, "old", Some(NODE), false, at)),
        ("remove_volume", purge(31)),
        ("delete_volume", Command::DeleteVolume { id: id(31), at }),
        ("create_volume_to_mark", create_volume(32, "marked", Some(NODE), false, at)),
        ("mark_volume", purge(32)),
    ]
}

/// Volumes that were removed and whose data remains.
pub fn released_volumes() -> Vec<(&'static str, Command)> {
    let at = Timestamp(300);
    let create = |number, name, reuse: bool| create_volume(number, name, (!reuse).then_some(NODE), reuse, at);
    let release = |number, data| Command::RemoveVolume { id: VolumeId(Id(number)), purge: false, data, at };
    let names: BTreeSet<VolumeName> = ["kept", "orphan", "found"].map(|name| name.parse().unwrap()).into();
    let held = HeldVolumes { names, is_truncated: true };
    vec![
        ("create_volume_to_release", create(33, "kept", false)),
        ("release_volume", release(33, VolumeData::Present(Some(Bytes(7))))),
        ("create_volume_without_data", create(34, "empty", false)),
        ("release_volume_without_data", release(34, VolumeData::Absent)),
        ("report_volumes", Command::ReportVolumes { node: NODE, session: 1, held, at }),
        ("reuse_volume", create(35, "found", true)),
    ]
}

/// A service with a check of the third kind.
fn checked() -> Command {
    let health = Some(check(Probe::Tcp { port: 5432 }));
    let task = TaskSpec { health, ..TaskSpec::new("db:1".parse().unwrap()) };
    let (name, mode) = ("db".parse().unwrap(), ServiceMode::Replicated { replicas: 1 });
    let spec = ServiceSpec { name, mode, task, ..global() };
    Command::CreateService { id: ServiceId(Id(11)), spec, at: Timestamp(170) }
}

pub fn commands() -> Vec<(&'static str, Command)> {
    let conditions = [NodeCondition::DiskPressure, NodeCondition::ClockSkew].into();
    let output = Command::SetNodeConditions { node: NODE, session: 1, conditions, at: Timestamp(140) };
    let mut all = [secret_objects(), volumes()].concat();
    all.extend([("set_node_conditions", output), ("create_checked_service", checked())]);
    all
}
