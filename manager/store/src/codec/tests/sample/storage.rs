//! Secret objects and volumes, and their users.

use std::collections::BTreeMap;
use std::time::Duration;

use warren_core::Command;
use warren_types::{
    HealthCheck, HttpHeader, Id, Mount, MountSource, NodeCondition, NodeId, Probe, SealedData,
    SecretObjectId, SecretObjectKind, SecretObjectMount, ServiceId, ServiceMode, ServiceSpec, TaskSpec,
    Timestamp, VolumeDriver, VolumeId,
};

use super::{NODE, global};

pub fn mount(name: &str) -> Mount {
    let source = MountSource::Volume { name: name.into(), subpath: Some("sub/dir".into()), no_copy: true };
    Mount { target: "/srv/data".into(), source, read_only: true }
}

pub fn secret() -> SecretObjectMount {
    let (target, template) = (Some("/run/key".into()), true);
    let (uid, gid, mode) = (Some(1000), Some(1001), Some(0o440));
    SecretObjectMount { source: "key".parse().unwrap(), target, uid, gid, mode, template }
}

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

pub fn http() -> HealthCheck {
    let headers = vec![HttpHeader { name: "Host".into(), value: "web".into() }];
    check(Probe::Http { port: 80, path: "/health".into(), headers })
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
            Command::UpdateSecretObject {
                id: id(20),
                version: Some(9),
                content: sealed(4),
                at: Timestamp(151),
            },
        ),
        ("create_config_to_remove", create(23, SecretObjectKind::Config, "old", 5)),
        ("remove_content", Command::RemoveSecretObject { id: id(23), at }),
    ]
}

fn volumes() -> Vec<(&'static str, Command)> {
    let at = Timestamp(160);
    let id = |id| VolumeId(Id(id));
    let create = |number, name: &str, node: Option<NodeId>| {
        let options = BTreeMap::from([("uid".into(), "1000".into())]);
        let (id, name, driver, labels) = (id(number), name.parse().unwrap(), VolumeDriver::Local, labels());
        Command::CreateVolume { id, name, driver, options, labels, node, at }
    };
    vec![
        ("create_volume", create(30, "data", None)),
        ("create_volume_to_purge", create(31, "old", Some(NODE))),
        ("remove_volume", Command::RemoveVolume { id: id(31), purge: true, at }),
        ("delete_volume", Command::DeleteVolume { id: id(31), at }),
        ("create_volume_to_mark", create(32, "marked", Some(NODE))),
        ("mark_volume", Command::RemoveVolume { id: id(32), purge: true, at }),
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
