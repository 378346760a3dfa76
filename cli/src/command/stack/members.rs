//! The objects of stacks: those with the label of Docker's stacks.

use std::collections::{BTreeMap, BTreeSet};

use warren_client::{Client, VolumeListOptions};
use warren_compose::stack::STACK_LABEL;
use warren_proto::v1;
use warren_types::SecretObjectKind;

use crate::failure::{CommandError, ExitKind, from_client};

/// Objects of the cluster.
#[derive(Debug, Clone, Default)]
pub struct StackMembers {
    pub services: Vec<v1::Service>,
    pub networks: Vec<v1::Network>,
    pub volumes: Vec<v1::Volume>,
    pub secrets: Vec<v1::SecretObject>,
    pub configs: Vec<v1::SecretObject>,
}

/// The stack of an object, if it is of one.
pub fn stack_of(labels: &BTreeMap<String, String>) -> Option<&str> {
    labels.get(STACK_LABEL).map(String::as_str)
}

/// The labels of a service.
pub fn service_labels(service: &v1::Service) -> BTreeMap<String, String> {
    service.spec.as_ref().map(|spec| spec.labels.clone().into_iter().collect()).unwrap_or_default()
}

/// Whether it is removed only with --force.
pub fn is_bootstrap(service: &v1::Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| spec.bootstrap)
}

/// The name of a service.
pub fn service_name(service: &v1::Service) -> &str {
    service.spec.as_ref().map(|spec| spec.name.as_str()).unwrap_or_default()
}

/// All objects of the cluster. Volumes of which only data remains are not among them.
pub async fn fetch(client: &Client, what: &str) -> Result<StackMembers, CommandError> {
    let failed = |error| from_client(what, error);
    let volumes = client.volumes().list(VolumeListOptions::default()).await.map_err(failed)?;
    Ok(StackMembers {
        services: client.services().list().await.map_err(failed)?,
        networks: client.networks().list().await.map_err(failed)?,
        volumes: volumes.into_iter().filter(|volume| volume.released_at.is_none()).collect(),
        secrets: client.secret_objects(SecretObjectKind::Secret).list().await.map_err(failed)?,
        configs: client.secret_objects(SecretObjectKind::Config).list().await.map_err(failed)?,
    })
}

impl StackMembers {
    /// The names of all stacks.
    pub fn names(&self) -> BTreeSet<String> {
        let services = self.services.iter().map(service_labels);
        let networks = self.networks.iter().map(|network| network.labels.clone());
        let volumes = self.volumes.iter().map(|volume| volume.labels.clone());
        let secret_objects = self.secrets.iter().chain(&self.configs).map(|object| object.labels.clone());
        let labels = services.chain(networks).chain(volumes).chain(secret_objects);
        labels.filter_map(|labels| stack_of(&labels).map(str::to_owned)).collect()
    }

    /// The objects of one stack.
    pub fn of(&self, stack: &str) -> Self {
        fn of_stack<T: Clone>(all: &[T], is_member: impl Fn(&T) -> bool) -> Vec<T> {
            all.iter().filter(|one| is_member(one)).cloned().collect()
        }
        let is_named = |labels: &BTreeMap<String, String>| stack_of(labels) == Some(stack);
        Self {
            services: of_stack(&self.services, |service| is_named(&service_labels(service))),
            networks: of_stack(&self.networks, |network| is_named(&network.labels)),
            volumes: of_stack(&self.volumes, |volume| is_named(&volume.labels)),
            secrets: of_stack(&self.secrets, |secret| is_named(&secret.labels)),
            configs: of_stack(&self.configs, |config| is_named(&config.labels)),
        }
    }

    /// Itself, unless it is empty: then there is no such stack.
    pub fn known(self, stack: &str, what: &str) -> Result<Self, CommandError> {
        let Self { services, networks, volumes, secrets, configs } = &self;
        let objects = services.len() + networks.len() + volumes.len() + secrets.len() + configs.len();
        if objects == 0 {
            let hint = "list the stacks with `warren stack ls`";
            let why = format!("there is no stack {stack}");
            return Err(CommandError::new(ExitKind::NotFound, what, why, hint));
        }
        Ok(self)
    }
}
