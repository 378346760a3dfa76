//! Queries on a state. None of them scans more than it returns.

mod network;
mod resolve;
mod storage;
mod users;

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use warren_types::spec::MAX_REPLICAS;
use warren_types::{
    Assignment, AssignmentVersion, ClusterSettings, DEFAULT_NODE_CERTIFICATE_LIFETIME, Id, NoNewPrivileges,
    Node, NodeId, NodeName, NodeSettings, RetainedLog, Revision, SealedUnlockKey, Service, ServiceId,
    ServiceMode, ServiceName, Task, TaskAssignment, TaskId, Token, TokenHash, TokenId, VolumeAssignment,
    VolumeName,
};

pub use self::users::KeyHolder;
use super::address::{address_capacity, subnet_capacity};
use super::{MAX_NODE_SUBNETS, NodeAllocation, NodeEligibility, Refusal, State, TaskCounts};

/// How often a worker sends usage and conditions.
pub const HEARTBEAT_PERIOD: Duration = Duration::from_secs(5);
/// How often a worker asks whether its assignment is current.
pub const SYNC_PERIOD: Duration = Duration::from_secs(3);

impl State {
    /// What managers lock the keys on their disks with; `None` while autolock is off.
    pub fn unlock_key(&self) -> Option<&SealedUnlockKey> {
        self.cluster.as_ref()?.unlock_key.as_deref()
    }

    /// How long certificates of nodes and managers are valid that are issued now.
    pub fn node_certificate_lifetime(&self) -> Duration {
        let settings = self.cluster.as_ref().map(|cluster| cluster.settings.node_certificate_lifetime);
        settings.unwrap_or(DEFAULT_NODE_CERTIFICATE_LIFETIME)
    }

    /// The fields of a service's task whose default in the cluster was changed after its revision took it, or an
    /// earlier revision that live tasks have.
    pub fn earlier_defaults(&self, service: &Service) -> BTreeSet<&'static str> {
        let Some(cluster) = &self.cluster else { return BTreeSet::new() };
        let ClusterSettings { default_user_namespace, no_new_privileges, .. } = &cluster.settings;
        let is_live = |earlier: &&Arc<Revision>| {
            let users = self.index.revision_users.get(&(service.id, earlier.number));
            users.is_some_and(|users| users.live > 0)
        };
        let differing = |revision: &Arc<Revision>| {
            let Revision { task, user_namespace, default_no_new_privileges, .. } = &**revision;
            let takes_privileges = task.no_new_privileges == NoNewPrivileges::Default;
            [
                ("userNamespace", task.user_namespace.is_none() && user_namespace != default_user_namespace),
                ("noNewPrivileges", takes_privileges && default_no_new_privileges != no_new_privileges),
            ]
        };
        let revisions = service.history.iter().filter(is_live).chain([&service.revision]);
        let fields = revisions.flat_map(differing).filter(|(_, differs)| *differs);
        fields.map(|(field, _)| field).collect()
    }

    /// Services by name, from the first after `last`; all of them for `None`. `take` a page, and continue
    /// from its last name.
    pub fn services_after<'a>(
        &'a self,
        last: Option<&ServiceName>,
    ) -> impl Iterator<Item = &'a Arc<Service>> + use<'a> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.index.service_names.range::<_, ServiceName>((from, Bound::Unbounded));
        names.filter_map(|(_, id)| self.services.get(id))
    }

    /// Nodes by name, from the first after `last`.
    pub fn nodes_after<'a>(
        &'a self,
        last: Option<&NodeName>,
    ) -> impl Iterator<Item = &'a Arc<Node>> + use<'a> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.index.node_names.range::<_, NodeName>((from, Bound::Unbounded));
        names.filter_map(|(_, id)| self.nodes.get(id))
    }

    /// Tasks of all services by id, from the first after `last`.
    pub fn tasks_after(&self, last: Option<TaskId>) -> impl Iterator<Item = &Arc<Task>> {
        // No task has the number 0.
        self.tasks.after(last.unwrap_or(TaskId { service: ServiceId(Id(0)), number: 0 }))
    }

    /// Tasks of a service by number, records of terminal ones included. The iterator can be reversed.
    pub fn tasks_of<'a>(
        &'a self,
        service: &ServiceId,
    ) -> impl DoubleEndedIterator<Item = &'a Arc<Task>> + use<'a> {
        self.tasks.range(*service, ..).map(|(_, task)| task)
    }

    /// Join tokens by id, from the first after `last`.
    pub fn tokens_after(&self, last: Option<TokenId>) -> impl Iterator<Item = &Arc<Token>> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.tokens.range((from, Bound::Unbounded)).map(|(_, token)| token)
    }

    /// The token with that secret's hash.
    pub fn token_by_hash(&self, hash: &TokenHash) -> Option<&Arc<Token>> {
        self.index.token_hashes.get(hash).and_then(|id| self.tokens.get(id))
    }

    /// The tasks that occupy the slot: one, or the one that is replaced and then its replacement.
    pub fn live_tasks<'a>(
        &'a self,
        service: &ServiceId,
        slot: u32,
    ) -> impl Iterator<Item = &'a Arc<Task>> + use<'a> {
        self.index.slot_tasks(*service, slot).filter_map(|id| self.tasks.get(&id))
    }

    /// The task that occupies the slot; of two the one that is replaced, since it is the one that serves.
    pub fn live_task(&self, service: &ServiceId, slot: u32) -> Option<&Arc<Task>> {
        self.live_tasks(service, slot).next()
    }

    /// The live task that this one replaces.
    pub fn predecessor(&self, task: &Task) -> Option<&Arc<Task>> {
        self.live_task(&task.id.service, task.slot).filter(|other| other.id.number < task.id.number)
    }

    /// How many addresses for tasks the node has or can get.
    pub fn address_capacity(&self, node: &Node) -> u32 {
        let now = address_capacity(node);
        let further = match MAX_NODE_SUBNETS.saturating_sub(node.subnets.len()) {
            0 => 0,
            most => self.count_free_subnets().min(most as u64),
        };
        let size = node.subnets.first().map_or(0, |first| subnet_capacity(*first));
        now.saturating_add(size.saturating_mul(u32::try_from(further).unwrap_or(u32::MAX)))
    }

    fn count_free_subnets(&self) -> u64 {
        let taken = self.index.subnets.len() as u64 + self.index.withdrawn_subnets;
        self.cluster.as_ref().map_or(0, |cluster| cluster.count_subnets().saturating_sub(taken))
    }

    /// The desired number of tasks: its replicas, or the nodes (or values of its label) that have or should have a
    /// task. Zero for a service that is being removed.
    pub fn desired_tasks(&self, service: &Service) -> u32 {
        match service.spec.mode {
            _ if service.removing => 0,
            ServiceMode::Replicated { replicas } => replicas,
            ServiceMode::Global if let Some(label) = &service.spec.per => {
                let slots = self.value_slots(service, label);
                let has_task = |slot: u32| self.live_task(&service.id, slot).is_some();
                let desired = slots
                    .iter()
                    .filter(|(slot, it)| it.eligibility == NodeEligibility::Eligible || has_task(**slot));
                u32::try_from(desired.count()).unwrap_or(u32::MAX)
            }
            ServiceMode::Global => {
                let desired = self.nodes().filter(|node| match self.eligibility(service, node) {
                    NodeEligibility::Eligible => true,
                    NodeEligibility::KeepOnly => self.has_task_for(&service.id, node),
                    NodeEligibility::Excluded => false,
                });
                u32::try_from(desired.count()).unwrap_or(u32::MAX)
            }
        }
    }

    /// Whether a user who does not insist may give a service that has `current` replicas the `wanted` number.
    ///
    /// # Errors
    /// [`Refusal::TooManyReplicas`] above the limit, unless it is no more than now. What no user can confirm is
    /// left to `apply`, which names the field.
    pub fn check_replicas(&self, wanted: Option<u32>, current: Option<u32>) -> Result<(), Refusal> {
        let limit = self.cluster.as_ref().map_or(u32::MAX, |it| it.settings.max_replicas_per_service);
        match wanted {
            Some(wanted) if wanted > limit.max(current.unwrap_or(0)) && wanted <= MAX_REPLICAS => {
                Err(Refusal::TooManyReplicas { wanted, limit })
            }
            _ => Ok(()),
        }
    }

    /// The services whose tasks may have to change because the node did: those that have a task there, and
    /// the global ones.
    pub fn affected_services(&self, node: &NodeId) -> BTreeSet<ServiceId> {
        let global = self.services().filter(|service| service.spec.mode == ServiceMode::Global);
        self.tasks_on(node).map(|task| task.id.service).chain(global.map(|service| service.id)).collect()
    }

    /// Whether a live task of the service is on the node.
    pub(crate) fn has_task_on(&self, service: &ServiceId, node: &NodeId) -> bool {
        self.index.tasks_per_node.get(&(*service, *node)).is_some()
    }

    /// Whether a live task of the global service is on the node, or waits to be assigned to it.
    fn has_task_for(&self, service: &ServiceId, node: &Node) -> bool {
        self.live_task(service, node.number.into()).is_some()
    }

    /// How many live tasks of the task's service the node has, without the one that it replaces.
    pub(crate) fn count_other_tasks_on(&self, task: &Task, node: NodeId) -> u32 {
        let here = self.index.tasks_per_node.get(&(task.id.service, node)).copied().unwrap_or(0);
        let replaced = self.predecessor(task).is_some_and(|other| other.node == Some(node));
        here.saturating_sub(u32::from(replaced))
    }

    /// Tasks that hold the node: not yet reported as removed. Ordered by address.
    pub fn tasks_on<'a>(&'a self, node: &NodeId) -> impl Iterator<Item = &'a Arc<Task>> + use<'a> {
        let subnets = self.nodes.get(node).into_iter().flat_map(|node| &node.subnets);
        let held = subnets.flat_map(|subnet| {
            self.index.tasks_by_address.range(subnet.network().into()..=subnet.broadcast().into())
        });
        held.filter_map(|(_, task)| self.tasks.get(task))
    }

    /// Numbers of a service's tasks; zero if it does not exist.
    pub fn task_counts(&self, service: &ServiceId) -> TaskCounts {
        self.index.counts.get(service).copied().unwrap_or_default()
    }

    /// What is allocated on a node; zero if it does not exist.
    pub fn node_allocation(&self, node: &NodeId) -> NodeAllocation {
        self.index.allocations.get(node).copied().unwrap_or_default()
    }

    /// The assignment of the node. `None` if the node does not exist.
    pub fn assignment(&self, node: &NodeId) -> Option<Assignment> {
        let version = self.assignment_version(node)?;
        let mut tasks: Vec<_> = self.tasks_on(node).filter_map(|task| self.task_assignment(task)).collect();
        tasks.sort_unstable_by_key(|task| task.id);
        let retained = self.logs_retained_on(node).map(|task| retained_log(task)).collect();
        Some(Assignment { version, tasks, retained })
    }

    /// Ended tasks whose logs the node retains: not those of services that are being removed. Ordered by id.
    pub(crate) fn logs_retained_on<'a>(
        &'a self,
        node: &NodeId,
    ) -> impl Iterator<Item = &'a Arc<Task>> + use<'a> {
        let task = |service, number| TaskId { service, number };
        let (first, last) = (task(ServiceId(Id(0)), 0), task(ServiceId(Id(u128::MAX)), u64::MAX));
        let logs = self.index.retained_logs.range((*node, first)..=(*node, last));
        let kept = |id: &TaskId| self.services.get(&id.service).is_some_and(|service| !service.removing);
        logs.filter_map(move |(_, id)| self.tasks.get(id).filter(|_| kept(id)))
    }

    /// Version of the node's assignment; it rises with every change of it. `None` if the node does not exist.
    pub fn assignment_version(&self, node: &NodeId) -> Option<AssignmentVersion> {
        let incarnation = self.cluster.as_ref()?.incarnation;
        Some(AssignmentVersion { incarnation, index: self.nodes.get(node)?.assignment_index })
    }

    /// The assignment of a task for its worker. `None` until it has an address.
    pub fn task_assignment(&self, task: &Task) -> Option<TaskAssignment> {
        let service = self.services.get(&task.id.service)?;
        Some(TaskAssignment {
            id: task.id,
            service: service.spec.name.clone(),
            slot: task.slot,
            revision: task.revision.number,
            spec: task.revision.assigned_task().into_owned(),
            digest: service.pins.get(&task.revision.number).cloned(),
            ports: task.revision.ports.clone(),
            address: task.address?,
            desired: task.desired,
            service_labels: task.revision.labels.clone(),
            volumes: task.volumes().iter().map(|name| self.volume_assignment(name)).collect(),
            bootstrap: service.spec.bootstrap,
        })
    }

    fn volume_assignment(&self, name: &VolumeName) -> VolumeAssignment {
        let options = self.volume_by_name(name).map(|volume| volume.options.clone());
        VolumeAssignment { name: name.clone(), options: options.unwrap_or_default() }
    }

    /// The settings of the node that are not per task. `None` if the node does not exist.
    pub fn node_settings(&self, node: &NodeId) -> Option<NodeSettings> {
        let cluster = self.cluster.as_ref()?;
        let node = self.nodes.get(node)?;
        Some(NodeSettings {
            cluster: cluster.id,
            node: node.id,
            name: node.name.clone(),
            labels: node.labels.clone(),
            number: node.number,
            subnets: node.subnets.clone(),
            ranges: cluster.ranges.clone(),
            data_plane: cluster.settings.data_plane,
            heartbeat: HEARTBEAT_PERIOD,
            sync: SYNC_PERIOD,
            managers: self.manager_addresses(),
            authority: cluster.ca_rotation.as_ref().and_then(|rotation| rotation.trusted()),
            revoked_managers: self.departed_managers.keys().copied().collect(),
        })
    }

    /// Tasks of a service that are not live any more, on a node that is down, or waiting to replace another,
    /// oldest first.
    pub(crate) fn unsettled_tasks_of<'a>(
        &'a self,
        service: &ServiceId,
    ) -> impl DoubleEndedIterator<Item = &'a Arc<Task>> + use<'a> {
        self.index.unsettled.range(task_id_range(*service)).filter_map(|id| self.tasks.get(id))
    }
}

/// The log of an ended task, for its worker.
pub(crate) fn retained_log(task: &Task) -> RetainedLog {
    RetainedLog { task: task.id, slot: task.slot, limits: task.revision.task.logs }
}

/// Every possible task id of the service.
pub(crate) fn task_id_range(service: ServiceId) -> std::ops::RangeInclusive<TaskId> {
    TaskId { service, number: 0 }..=TaskId { service, number: u64::MAX }
}
