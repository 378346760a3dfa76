//! Queries on networks, and on addresses that are not assigned again yet.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use warren_types::{
    DnsLabel, INGRESS_NETWORK, Id, Network, NetworkId, NetworkName, NodeId, PublishedPort, Revision, Service,
    ServiceId, ServiceName, Task, TaskId, Timestamp,
};

use crate::state::address::WITHDRAWAL_TIME;
use crate::state::{Refusal, State, Withdrawal, WithdrawnAddress};

impl State {
    /// The network with that name.
    pub fn network_by_name(&self, name: &NetworkName) -> Option<&Arc<Network>> {
        self.index.network_names.get(name).and_then(|id| self.networks.get(id))
    }

    /// Networks by name, from the first after `last`.
    pub fn networks_after<'a>(
        &'a self,
        last: Option<&NetworkName>,
    ) -> impl Iterator<Item = &'a Arc<Network>> + use<'a> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.index.network_names.range::<_, NetworkName>((from, Bound::Unbounded));
        names.filter_map(|(_, id)| self.networks.get(id))
    }

    /// The services in the network, by id: those whose current revision names it and that are not being removed,
    /// and those with a task that is not fully removed and whose revision names it.
    pub fn network_services(&self, name: &NetworkName) -> impl Iterator<Item = ServiceId> {
        let all = (name.clone(), ServiceId(Id(0)))..=(name.clone(), ServiceId(Id(u128::MAX)));
        self.index.network_users.range(all).map(|((_, service), _)| *service)
    }

    /// The networks of the node's tasks, and that of ports in ingress mode if there are any. While nodes are verified,
    /// each has it, so that it has a way to the others before its first task.
    pub fn node_networks(&self, node: &NodeId) -> BTreeSet<NetworkId> {
        let mut networks = self.networks_of(self.tasks_on(node).map(Arc::as_ref));
        let verifies = self.cluster().is_some_and(|cluster| cluster.settings.verification.enabled);
        let is_told = verifies || !self.index.ingress_users.is_empty();
        networks.extend(is_told.then_some(INGRESS_NETWORK));
        networks
    }

    /// The networks in which the task has clients.
    pub fn task_networks(&self, task: &TaskId) -> BTreeSet<NetworkId> {
        let task = self.task(task).map(Arc::as_ref);
        let mut networks = self.networks_of(task);
        let has_ingress = task.is_some_and(|task| task.revision.ports.iter().any(PublishedPort::is_ingress));
        networks.extend(has_ingress.then_some(INGRESS_NETWORK));
        networks
    }

    /// Whether the service, or one of its tasks by its revision, has a port in ingress mode.
    pub(crate) fn is_ingress_user(&self, service: &ServiceId) -> bool {
        self.index.ingress_users.contains_key(service)
    }

    /// The services of [`State::is_ingress_user`].
    pub(crate) fn ingress_services(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.index.ingress_users.keys().filter_map(|id| self.services.get(id))
    }

    fn networks_of<'a>(&self, tasks: impl IntoIterator<Item = &'a Task>) -> BTreeSet<NetworkId> {
        let attachments = tasks.into_iter().flat_map(|task| task.revision.task.network.attachments());
        let networks = attachments.filter_map(|it| self.index.network_names.get(&it.network));
        networks.copied().collect()
    }

    /// The names of the services in the network, sorted.
    pub fn network_users(&self, name: &NetworkName) -> Vec<String> {
        let services = self.network_services(name).filter_map(|id| self.services.get(&id));
        let mut names: Vec<String> = services.map(|service| service.spec.name.to_string()).collect();
        names.sort_unstable();
        names
    }

    /// Whether the service is in the network.
    pub(crate) fn is_network_user(&self, name: &NetworkName, service: ServiceId) -> bool {
        self.index.network_users.contains_key(&(name.clone(), service))
    }

    /// A service with that alias on the network.
    pub(in crate::state) fn service_with_alias(
        &self,
        name: &NetworkName,
        alias: &DnsLabel,
    ) -> Option<ServiceId> {
        let key = |service| (name.clone(), alias.clone(), service);
        let mut found = self.index.aliases.range(key(ServiceId(Id(0)))..=key(ServiceId(Id(u128::MAX))));
        found.next().map(|((_, _, service), _)| *service)
    }

    /// The networks of the revision exist.
    pub(in crate::state) fn check_networks_exist(
        &self,
        service: &ServiceName,
        earlier: &Revision,
    ) -> Result<(), Refusal> {
        let attachments = earlier.task.network.attachments();
        match attachments.iter().find(|it| !self.index.network_names.contains_key(&it.network)) {
            None => Ok(()),
            Some(gone) => Err(Refusal::NetworkGone {
                service: service.clone(),
                revision: earlier.number,
                network: gone.network.clone(),
            }),
        }
    }

    /// What can be assigned again at `now`, if all nodes have acknowledged the state at the index.
    pub(crate) fn releasable_addresses(
        &self,
        acknowledged: u64,
        now: Timestamp,
    ) -> impl Iterator<Item = (WithdrawnAddress, Withdrawal)> {
        let is_due = move |withdrawal: &Withdrawal| {
            withdrawal.index <= acknowledged && withdrawal.at + WITHDRAWAL_TIME <= now
        };
        self.withdrawn.iter().filter(move |(_, it)| is_due(it)).map(|(item, it)| (*item, *it))
    }

    /// The oldest withdrawal that is not over.
    pub fn oldest_withdrawal(&self) -> Option<Withdrawal> {
        self.withdrawn.values().min_by_key(|withdrawal| withdrawal.index).copied()
    }
}
