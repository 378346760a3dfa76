//! Why a volume, a network, a secret or a config is as it is.

use std::collections::{BTreeMap, BTreeSet};

use warren_types::{Network, NodeCondition, NodeId, NodeStatus, SecretObject, SecretObjectKind, Volume};

use super::{Cause, Inquiry, count, listed};

impl Inquiry<'_> {
    /// What is desired, and what is.
    pub(super) fn volume(&self, volume: &Volume) -> (String, Cause) {
        let name = &volume.name;
        let users = self.state.volume_users(name);
        let used = match users.is_empty() {
            true => "nothing uses it".to_owned(),
            false => format!("used by {}", listed(&users)),
        };
        let node = volume.node.and_then(|id| self.state.node(&id));
        if volume.removing {
            let cause = Cause::waiting(
                "volume-purging",
                format!("volume {name} is removed once its data is deleted"),
            )
            .action(format!(
                "if that does not end: `warren volume rm --purge {name}` repeats it and says why"
            ))
            .because(node.filter(|node| node.status != NodeStatus::Ready).map(|node| self.node(node)));
            return ("it is being removed with its data".to_owned(), cause.with_worst_severity());
        }
        if let Some(released) = volume.released {
            let cause = Cause::waiting(
                "volume-released",
                format!(
                    "volume {name} was removed, and its data is still on {}",
                    self.node_name(volume.node)
                ),
            );
            let cause = cause.since(released.at).action(format!(
                "use the data again with `warren volume create {name} --reuse`, or delete it with `warren volume purge \
                 {name}`"
            ));
            return ("it was removed, without its data".to_owned(), cause);
        }
        let cause = match (volume.node, node) {
            (None, _) => Cause::ok(
                "volume-unbound",
                format!("volume {name} has no node yet: it gets that of its first task"),
            ),
            (Some(_), None) => Cause::problem(
                "volume-lost",
                format!("the data of volume {name} is on a node that was removed from the cluster"),
            )
            .action(format!(
                "delete the record with `warren volume rm {name}`, so that its tasks start without the data"
            )),
            (Some(_), Some(node)) if node.status != NodeStatus::Ready => Cause::problem(
                "volume-unreachable",
                format!("volume {name} is on node {}, so its tasks can run nowhere else", node.name),
            )
            .because([self.node(node)]),
            (Some(_), Some(node)) => {
                Cause::ok("volume-ready", format!("volume {name} is on node {}", node.name))
            }
        };
        ("it keeps its data".to_owned(), cause.evidence(used))
    }

    /// What is desired, and what is.
    pub(super) fn network(&self, network: &Network) -> (String, Cause) {
        let name = &network.name;
        let services: BTreeSet<_> = self.state.network_services(name).collect();
        let mut nodes: BTreeMap<NodeId, u32> = BTreeMap::new();
        let tasks = services.iter().flat_map(|id| self.state.tasks_of(id));
        for node in tasks.filter(|task| task.holds_resources()).filter_map(|task| task.node) {
            *nodes.entry(node).or_default() += 1;
        }
        let on_nodes = nodes.keys().filter_map(|id| self.state.node(id));
        let is_unfit = |node: &&std::sync::Arc<warren_types::Node>| {
            let concerns = |it: &NodeCondition| {
                use NodeCondition::{NetworkDegraded, NetworkUnavailable, PeersUnreachable, RangeConflict};
                matches!(it, NetworkUnavailable | NetworkDegraded | PeersUnreachable | RangeConflict)
            };
            node.status != NodeStatus::Ready || node.conditions.iter().any(concerns)
        };
        let causes: Vec<Cause> = on_nodes.filter(is_unfit).map(|node| self.node(node)).collect();
        let unfit = causes.len() as u64;
        let users = self.state.network_users(name);
        let sentence = match unfit {
            0 => format!("network {name} works on all {} of its tasks", count(nodes.len() as u64, "node")),
            unfit => format!(
                "network {name} does not work fully on {} of {}",
                unfit,
                count(nodes.len() as u64, "node")
            ),
        };
        let cause = match causes.is_empty() {
            true => Cause::ok("network-ready", sentence),
            false => Cause::problem("network-degraded", sentence),
        };
        let cause = match users.is_empty() {
            true => cause.evidence("no service is in it"),
            false => cause.evidence(format!("services in it: {}", listed(&users))),
        };
        let desired = match network.internal {
            true => "its services reach each other, and nothing outside",
            false => "its services reach each other",
        };
        (desired.to_owned(), cause.because(causes))
    }

    /// What is desired, and what is. Says nothing of the data.
    pub(super) fn secret_object(&self, object: &SecretObject) -> (String, Cause) {
        let (name, kind) = (&object.name, object.kind);
        let newest = object.versions.keys().next_back().copied().unwrap_or(0);
        let users: Vec<_> = self.state.secret_object_users(&object.id).collect();
        let names: Vec<String> = users.iter().map(|service| service.spec.name.to_string()).collect();
        let tasks = users.iter().flat_map(|service| self.state.tasks_of(&service.id));
        let has_older = |task: &&std::sync::Arc<warren_types::Task>| {
            let mounted = task.revision.secret_objects.iter();
            mounted.filter(|used| used.id == object.id).any(|used| used.number < newest)
        };
        let older: Vec<String> = tasks
            .filter(|task| task.holds_resources())
            .filter(has_older)
            .map(|task| self.task_name(task))
            .collect();
        let cause = match older.is_empty() {
            true => {
                Cause::ok("up-to-date", format!("all tasks with {kind} {name} have its version {newest}"))
            }
            false => Cause::waiting(
                "older-version",
                format!(
                    "{kind} {name} is at version {newest}, with an earlier one in {}",
                    count(older.len() as u64, "task")
                ),
            )
            .evidence(listed(&older))
            .action("a service gets the new version by a rollout: ask `warren why service/NAME`"),
        };
        let cause = match names.is_empty() {
            true => cause.evidence("no service uses it"),
            false => cause.evidence(format!("used by {}", listed(&names))),
        };
        let desired = match kind {
            SecretObjectKind::Credential => "nodes use it for pulls from its registry".to_owned(),
            SecretObjectKind::Secret | SecretObjectKind::Config => format!("tasks have its version {newest}"),
        };
        (desired, cause.since(object.updated_at))
    }
}
