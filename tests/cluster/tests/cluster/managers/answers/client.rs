//! Services and configs as registers: the value is a label, or the number of bytes.

use std::collections::BTreeMap;
use std::time::Instant;

use tonic::Status;
use tonic::transport::Channel;
use warren_proto::v1;
use warren_proto::v1::secret_objects_client::SecretObjectsClient;
use warren_proto::v1::services_client::ServicesClient;
use warren_proto::v1::volumes_client::VolumesClient;

use super::super::group::ManagerGroup;
use crate::fixture::{new_id, spec};

/// The label with the value of a service. The value of a config is its number of bytes.
const VALUE: &str = "value";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RegisterKind {
    Service,
    Config,
}

/// The object in an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnsweredObject {
    pub name: String,
    pub value: u64,
    pub version: u64,
    /// Of a config's bytes.
    pub number: u64,
    pub removing: bool,
}

/// An acknowledged write.
#[derive(Debug)]
pub struct AcknowledgedWrite {
    pub kind: RegisterKind,
    pub name: String,
    pub value: u64,
    pub answer: AnsweredObject,
    pub called: Instant,
    pub answered: Instant,
}

/// One of several clients, of one of the managers.
#[derive(Clone)]
pub struct ConcurrentClient {
    services: ServicesClient<Channel>,
    secret_objects: SecretObjectsClient<Channel>,
    pub volumes: VolumesClient<Channel>,
}

fn service_spec(name: &str, value: u64) -> Option<v1::ServiceSpec> {
    let mut spec: v1::ServiceSpec = (&spec(name, 0)).into();
    spec.labels.insert(VALUE.into(), value.to_string());
    Some(spec)
}

fn bytes(value: u64) -> Vec<u8> {
    vec![b'x'; usize::try_from(value).unwrap()]
}

impl From<v1::Service> for AnsweredObject {
    fn from(service: v1::Service) -> Self {
        let v1::Service { version, spec, removing, .. } = service;
        let v1::ServiceSpec { name, labels, .. } = spec.expect("an answer has the spec");
        Self { name, value: labels[VALUE].parse().unwrap(), version, number: 0, removing }
    }
}

impl From<v1::SecretObject> for AnsweredObject {
    fn from(content: v1::SecretObject) -> Self {
        let v1::SecretObject { name, size, version, version_number: number, stored_versions: kept, .. } =
            content;
        assert_eq!(kept.last(), Some(&number), "{name}: the current version is the newest that is kept");
        Self { name, value: size.into(), version, number, removing: false }
    }
}

impl ConcurrentClient {
    pub async fn at(group: &ManagerGroup, number: usize) -> Self {
        let channel = group.channel(number % group.hosts.len()).await;
        Self {
            services: ServicesClient::new(channel.clone()),
            secret_objects: SecretObjectsClient::new(channel.clone()),
            volumes: VolumesClient::new(channel),
        }
    }

    pub async fn create(&self, kind: RegisterKind, name: &str, value: u64) -> Result<AnsweredObject, Status> {
        self.create_as(new_id().to_string(), kind, name, value).await
    }

    pub async fn create_as(
        &self,
        id: String,
        kind: RegisterKind,
        name: &str,
        value: u64,
    ) -> Result<AnsweredObject, Status> {
        let (mut services, mut secret_objects) = (self.services.clone(), self.secret_objects.clone());
        Ok(match kind {
            RegisterKind::Service => {
                let spec = service_spec(name, value);
                services
                    .create(v1::CreateServiceRequest { id, spec, ..Default::default() })
                    .await?
                    .into_inner()
                    .into()
            }
            RegisterKind::Config => {
                let (kind, name, data) =
                    (v1::SecretObjectKind::Config.into(), name.into(), bytes(value).into());
                let request = v1::CreateSecretObjectRequest { id, kind, name, labels: BTreeMap::new(), data };
                secret_objects.create(request).await?.into_inner().into()
            }
        })
    }

    pub async fn get(&self, kind: RegisterKind, name: &str) -> Result<AnsweredObject, Status> {
        let (reference, mut services, mut secret_objects) =
            (name.to_owned(), self.services.clone(), self.secret_objects.clone());
        Ok(match kind {
            RegisterKind::Service => services.get(v1::Reference { reference }).await?.into_inner().into(),
            RegisterKind::Config => {
                let kind = v1::SecretObjectKind::Config.into();
                secret_objects.get(v1::SecretObjectReference { kind, reference }).await?.into_inner().into()
            }
        })
    }

    /// With a version only if the object still has it.
    pub async fn update(
        &self,
        kind: RegisterKind,
        name: &str,
        version: Option<u64>,
        value: u64,
    ) -> Result<AcknowledgedWrite, Status> {
        let (reference, called) = (name.to_owned(), Instant::now());
        let (mut services, mut secret_objects) = (self.services.clone(), self.secret_objects.clone());
        let shown = match kind {
            RegisterKind::Service => {
                let spec = service_spec(name, value);
                let request =
                    v1::UpdateServiceRequest { reference, version, spec, force: false, ..Default::default() };
                services.update(request).await?.into_inner().into()
            }
            RegisterKind::Config => {
                let (kind, data) = (v1::SecretObjectKind::Config.into(), bytes(value).into());
                let request = v1::UpdateSecretObjectRequest { kind, reference, version, data };
                secret_objects.update(request).await?.into_inner().into()
            }
        };
        let answered = Instant::now();
        Ok(AcknowledgedWrite { kind, name: name.into(), value, answer: shown, called, answered })
    }

    pub async fn remove(&self, kind: RegisterKind, name: &str) -> Result<AnsweredObject, Status> {
        let (reference, mut services, mut secret_objects) =
            (name.to_owned(), self.services.clone(), self.secret_objects.clone());
        Ok(match kind {
            RegisterKind::Service => {
                let request = v1::RemoveServiceRequest { reference, version: None, force: false };
                services.remove(request).await?.into_inner().into()
            }
            RegisterKind::Config => {
                let kind = v1::SecretObjectKind::Config.into();
                secret_objects
                    .remove(v1::SecretObjectReference { kind, reference })
                    .await?
                    .into_inner()
                    .into()
            }
        })
    }
}
