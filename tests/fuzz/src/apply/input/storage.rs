//! Steps about secrets, configs, credentials, volumes, their users, and conditions of nodes.

use arbitrary::Result;
use warren_core::Command;
use warren_core::state::VolumeData;
use warren_types::{
    Mount, MountSource, NodeCondition, SealedData, SecretObjectId, SecretObjectKind, SecretObjectMount,
    ServiceSpec, Timestamp, VolumeDriver, VolumeId,
};

use super::FuzzInput;

impl FuzzInput<'_> {
    pub(super) fn storage(&mut self, kind: u8, at: Timestamp) -> Result<Command> {
        Ok(match kind % 9 {
            0 => {
                let (id, kind) = (self.secret_object_id()?, *self.0.choose(&SecretObjectKind::ALL)?);
                let (name, labels) = (self.name()?.parse().expect("the name is valid"), self.labels()?);
                Command::CreateSecretObject { id, kind, name, labels, data: self.sealed()?, at }
            }
            1 => {
                let (id, version, data) = (self.secret_object_id()?, self.version()?, self.sealed()?);
                Command::UpdateSecretObject { id, version, data, at }
            }
            2 => Command::RemoveSecretObject { id: self.secret_object_id()?, at },
            3 => {
                let (id, name) = (self.volume()?, self.name()?.parse().expect("the name is valid"));
                let option = |input: &mut Self| Ok((input.short_text()?, "1000".to_owned()));
                let mut options: std::collections::BTreeMap<_, _> =
                    self.list(1, option)?.into_iter().collect();
                if self.sometimes()? {
                    options.insert("uid".to_owned(), "1000".to_owned());
                }
                let node = if self.sometimes()? { Some(self.node()?) } else { None };
                let (driver, labels) = (VolumeDriver::Local, self.labels()?);
                Command::CreateVolume { id, name, driver, options, labels, node, reuse: false, at }
            }
            4 => {
                let (id, purge) = (self.volume()?, self.sometimes()?);
                Command::RemoveVolume { id, purge, data: VolumeData::Absent, at }
            }
            5 => Command::DeleteVolume { id: self.volume()?, at },
            6 => {
                let (node, session) = (self.node()?, self.number(1, 4)?);
                let condition = |input: &mut Self| input.0.choose(&NodeCondition::ALL).copied();
                let conditions = self.list(3, condition)?.into_iter().collect();
                Command::SetNodeConditions { node, session, conditions, at }
            }
            7 => Command::CreateService { id: self.service()?, spec: self.spec_with_storage()?, at },
            _ => {
                let (id, version, spec) = (self.service()?, self.version()?, self.spec_with_storage()?);
                Command::UpdateService { id, version, spec, force: self.sometimes()?, at }
            }
        })
    }

    fn spec_with_storage(&mut self) -> Result<ServiceSpec> {
        let mut spec = self.spec()?;
        let content =
            |input: &mut Self| Ok(SecretObjectMount::new(input.name()?.parse().expect("the name is valid")));
        spec.task.secrets = self.list(1, content)?;
        spec.task.configs = self.list(1, content)?;
        if self.sometimes()? {
            let names = ["a", "b", "a-{{.Task.Slot}}", "{{.Node.Hostname}}", "{{.Node.Labels.a}}"];
            let name = (*self.0.choose(&names)?).into();
            let source = MountSource::Volume { name, subpath: None, no_copy: false };
            spec.task.mounts = vec![Mount { target: "/data".into(), source, read_only: false }];
        }
        Ok(spec)
    }

    fn secret_object_id(&mut self) -> Result<SecretObjectId> {
        self.id().map(SecretObjectId)
    }

    pub(super) fn volume(&mut self) -> Result<VolumeId> {
        self.id().map(VolumeId)
    }

    fn sealed(&mut self) -> Result<SealedData> {
        let (byte, size) = (self.byte()? % 4, self.small()?);
        let sealed = vec![byte; size.min(1 << 10) as usize];
        Ok(SealedData { size, fingerprint: [byte; 32], sealed })
    }
}
