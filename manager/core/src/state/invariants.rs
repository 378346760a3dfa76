//! The invariants of every state: used by tests, the simulator, and when a snapshot is restored.

mod members;
mod networks;
mod storage;

use std::collections::{BTreeMap, BTreeSet};

use warren_types::spec::validate_taints;
use warren_types::{
    ADMINISTRATOR, DesiredTaskState, Health, MAX_USER_KEYS, NoNewPrivileges, Node, NodeStatus, PublishedPort,
    RolloutRecord, Service, ServiceId, ServiceMode, Task, TaskState, Token, User, Violations,
};

use super::digest::DigestSum;
use super::{
    MAX_IMPORTED_IMAGES, MAX_REVOKED_KEYS, MAX_TOKENS, MAX_USERS, REVISION_HISTORY_LIMIT, State, StateIndex,
    WithdrawnAddress, address,
};

/// An invariant that does not hold. Always a defect, never caused by a user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("state invariant violated: {0}")]
pub struct InvariantViolation(pub String);

/// Fails with the message unless the condition holds.
fn ensure(holds: bool, message: impl FnOnce() -> String) -> Result<(), InvariantViolation> {
    if holds { Ok(()) } else { Err(InvariantViolation(message())) }
}

impl State {
    /// Checks the invariants of a single state. Takes time proportional to the state.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check(&self) -> Result<(), InvariantViolation> {
        self.check_objects()?;
        let rebuilt = StateIndex::of(self);
        ensure(rebuilt == self.index, || format!("index {:?} should be {rebuilt:?}", self.index))?;
        self.check_removing_volumes()?;
        let summed = DigestSum::of(self);
        ensure(summed == self.digest_sum, || {
            format!("the digest's {:?} should be {summed:?}", self.digest_sum)
        })
    }

    /// Checks that this state can follow `before`, the state one entry earlier: monotonic fields have not
    /// decreased.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check_after(&self, before: &State) -> Result<(), InvariantViolation> {
        ensure(self.applied >= before.applied, || format!("applied {:?} went back", before.applied))?;
        ensure(self.clock >= before.clock, || format!("the clock went back from {}", before.clock))?;
        ensure(self.feature_level >= before.feature_level, || {
            format!("level {} was lowered", before.feature_level)
        })?;
        for old in before.tasks() {
            match self.task(&old.id) {
                Some(new) => check_task_transition(old, new)?,
                None => ensure(!old.is_live() && !old.holds_resources(), || {
                    format!("task {} was deleted while desired or holding resources", old.id)
                })?,
            }
        }
        for task in self.tasks().filter(|task| before.task(&task.id).is_none()) {
            let next = before.service(&task.id.service).map_or(0, |service| service.next_task_number);
            ensure(task.id.number >= next, || format!("the number of task {} was given before", task.id))?;
        }
        for old in before.nodes() {
            let Some(new) = self.node(&old.id) else { continue };
            // A node that was removed and joined again in one step is a different one: see the subnets.
            let forward = new.session >= old.session && new.assignment_index >= old.assignment_index;
            ensure(forward && new.subnets.starts_with(&old.subnets) && new.number == old.number, || {
                format!("node {} went back to {new:?}", old.id)
            })?;
        }
        for (old, new) in before.secret_objects().filter_map(|old| Some((old, self.secret_object(&old.id)?)))
        {
            let kept = |(number, version)| new.versions.get(number).is_none_or(|now| now == version);
            let forward = new.current_version() >= old.current_version() && old.versions.iter().all(kept);
            ensure(forward, || format!("secret object {} went back to {new:?}", old.id))?;
        }
        for (old, new) in before.volumes().filter_map(|old| Some((old, self.volume(&old.id)?))) {
            let removed = new.removing >= old.removing || new.released.is_some();
            let stays = (old.node.is_none() || old.node == new.node) && removed;
            ensure(stays, || format!("volume {} went from {old:?} to {new:?}", old.id))?;
        }
        self.check_members_after(before)
    }

    pub(super) fn check_objects(&self) -> Result<(), InvariantViolation> {
        if let Some(cluster) = &self.cluster {
            cluster.validate().into_result(()).map_err(|wrong| InvariantViolation(wrong.to_string()))?;
        }
        self.check_services()?;
        self.check_networks()?;
        self.check_nodes()?;
        self.check_tokens()?;
        self.check_users()?;
        self.check_members()?;
        self.check_secret_objects()?;
        self.check_imported_images()?;
        let volumes = self.check_volumes()?;
        let mut slots: BTreeMap<_, u32> = BTreeMap::new();
        let (mut values, mut numbers) = (BTreeMap::new(), BTreeMap::new());
        let mut addresses = BTreeMap::new();
        for task in self.tasks() {
            self.check_task(task)?;
            self.check_mounts(task, &volumes)?;
            let live = slots.entry((task.id.service, task.slot)).or_default();
            *live += u32::from(task.is_live());
            // Only a replacement waits: a task next to another one is not desired to run at first.
            ensure(*live <= 2, || format!("task {} is the third live one of slot {}", task.id, task.slot))?;
            if let Some(value) = task.label_value() {
                let known = *values.entry((task.id.service, task.slot)).or_insert(value);
                let slot = *numbers.entry((task.id.service, value)).or_insert(task.slot);
                ensure((known, slot) == (value, task.slot), || {
                    format!("task {} for {value} is in slot {} of {known}, not {slot}", task.id, task.slot)
                })?;
            }
            if let Some(address) = task.address.filter(|_| task.holds_resources()) {
                let is_withdrawn = self.withdrawn.contains_key(&WithdrawnAddress::Address(address));
                ensure(!is_withdrawn, || format!("{address} of task {} was given too early", task.id))?;
                let other = addresses.insert(address, task.id);
                ensure(other.is_none(), || format!("{address} is held by {} and {other:?}", task.id))?;
            }
        }
        self.check_opened_ports()
    }

    fn check_services(&self) -> Result<(), InvariantViolation> {
        let mut names = BTreeSet::new();
        let mut published: BTreeMap<u16, Vec<(PublishedPort, ServiceId)>> = BTreeMap::new();
        for service in self.services() {
            let Service { id, spec, revision, version, .. } = &**service;
            ensure(names.insert(&spec.name), || format!("two services are called {}", spec.name))?;
            self.check_history(service)?;
            self.check_secret_object_versions(service)?;
            let current = revision.task == spec.task
                && revision.ports == spec.ports
                && revision.placement == spec.placement
                && spec.task.user_namespace.is_none_or(|asked| asked == revision.user_namespace)
                && (spec.task.no_new_privileges == NoNewPrivileges::Default
                    || !revision.default_no_new_privileges);
            ensure(current, || format!("service {id} has a revision that is not of its spec"))?;
            ensure(*version <= self.applied.index, || format!("service {id} is of a later entry"))?;
            ensure(self.cluster.is_some(), || format!("service {id} without a cluster"))?;
            for port in &spec.ports {
                let same = published.entry(port.host_port).or_default();
                let owner = same.iter().find(|(other, _)| other.conflicts_with(port));
                ensure(owner.is_none(), || format!("port {port} of service {id} is also of {owner:?}"))?;
                same.push((*port, *id));
            }
        }
        self.check_earlier_ports(&published)
    }

    fn check_imported_images(&self) -> Result<(), InvariantViolation> {
        let count = self.imported_images.len();
        ensure(count <= MAX_IMPORTED_IMAGES, || format!("{count} imported images are recorded"))?;
        let later = self.imported_images().find(|(_, imported)| imported.index > self.applied.index);
        ensure(later.is_none(), || format!("image {later:?} was imported by a later entry"))
    }

    /// Ports of tasks of earlier revisions still belong to their service.
    fn check_earlier_ports(
        &self,
        published: &BTreeMap<u16, Vec<(PublishedPort, ServiceId)>>,
    ) -> Result<(), InvariantViolation> {
        for task in self.tasks().filter(|task| task.is_live() || task.holds_resources()) {
            for port in &task.revision.ports {
                let mut others = published.get(&port.host_port).into_iter().flatten();
                let other = others.find(|(other, id)| *id != task.id.service && other.conflicts_with(port));
                ensure(other.is_none(), || format!("port {port} of task {} is also of {other:?}", task.id))?;
            }
        }
        Ok(())
    }

    /// Revisions are numbered up to the current one; the kept ones are those for rollbacks and those that
    /// tasks have; and only kept ones are pinned.
    fn check_history(&self, service: &Service) -> Result<(), InvariantViolation> {
        let Service { id, history, revision, pins, .. } = service;
        let all: Vec<u64> = history.iter().chain([revision]).map(|revision| revision.number).collect();
        ensure(all.is_sorted_by(|a, b| a < b), || format!("service {id} has the revisions {all:?}"))?;
        let strange = pins.keys().find(|number| !all.contains(number));
        ensure(strange.is_none(), || format!("service {id} pins {strange:?}, which it does not have"))?;
        let beyond = &history[..history.len().saturating_sub(REVISION_HISTORY_LIMIT)];
        let used = |number| self.tasks_of(id).any(|task| task.revision.number == number);
        let good = service.rollout.good_revision;
        let unused = beyond.iter().find(|revision| !used(revision.number) && revision.number != good);
        ensure(unused.is_none(), || format!("service {id} keeps {unused:?}, which nothing needs"))?;
        let RolloutRecord { failures, .. } = &service.rollout;
        ensure(good <= revision.number, || format!("revision {good} of service {id} is to come"))?;
        let in_order = failures.is_sorted_by(|a, b| a.revision < b.revision);
        ensure(failures.len() <= 2 && in_order, || format!("service {id} has the failures {failures:?}"))
    }

    fn check_tokens(&self) -> Result<(), InvariantViolation> {
        let mut hashes = BTreeSet::new();
        for token in self.tokens() {
            let Token { id, version, uses, max_uses, .. } = **token;
            ensure(hashes.insert(token.hash), || format!("token {id} has the secret of another"))?;
            ensure(max_uses.is_none_or(|most| uses <= most), || format!("token {id} was used {uses} times"))?;
            ensure(version <= self.applied.index, || format!("token {id} is of a later entry"))?;
        }
        let count = self.tokens.len();
        ensure(count <= MAX_TOKENS, || format!("there are {count} tokens"))
    }

    fn check_users(&self) -> Result<(), InvariantViolation> {
        let (mut names, mut keys, mut logins) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for user in self.users() {
            let User { id, name, version, login, keys: own, .. } = &**user;
            ensure(names.insert(name) && name.as_str() != ADMINISTRATOR, || {
                format!("two users are called {name}")
            })?;
            let distinct = own.keys().all(|key| keys.insert(key));
            ensure(distinct && own.len() <= MAX_USER_KEYS, || format!("the keys of user {id} are {own:?}"))?;
            let is_own = login.as_ref().is_none_or(|login| logins.insert(login.hash));
            ensure(is_own, || format!("user {id} has the login token of another"))?;
            ensure(*version <= self.applied.index, || format!("user {id} is of a later entry"))?;
        }
        let count = self.users.len();
        ensure(count <= MAX_USERS, || format!("there are {count} users"))?;
        let count = self.revoked_keys.len();
        ensure(count <= MAX_REVOKED_KEYS, || format!("{count} revoked keys are recorded"))?;
        for (key, revoked) in self.revoked_keys() {
            ensure(!keys.contains(key), || format!("key {key} is revoked and listed"))?;
            ensure(revoked.revoked_at <= self.clock, || format!("key {key} is revoked in the future"))?;
        }
        Ok(())
    }

    fn check_nodes(&self) -> Result<(), InvariantViolation> {
        let mut names = BTreeSet::new();
        let (mut subnets, mut numbers) = (BTreeSet::new(), BTreeSet::new());
        for node in self.nodes() {
            let Node { id, name, number, subnets: own, status, session, taints, .. } = &**node;
            ensure(names.insert(name), || format!("two nodes are called {name}"))?;
            ensure(*number > 0 && numbers.insert(*number), || format!("number {number} was given twice"))?;
            let is_withdrawn = self.withdrawn.contains_key(&WithdrawnAddress::NodeNumber(*number));
            ensure(!is_withdrawn, || format!("number {number} of node {id} was given too early"))?;
            ensure(!own.is_empty(), || format!("node {id} has no subnet"))?;
            for subnet in own {
                ensure(subnets.insert(*subnet), || format!("subnet {subnet} was given twice"))?;
                let known = self.cluster.as_ref().and_then(|cluster| cluster.subnet_number(subnet));
                ensure(known.is_some(), || format!("subnet {subnet} of node {id} is not of a range"))?;
                let is_withdrawn = self.withdrawn.contains_key(&WithdrawnAddress::Subnet(*subnet));
                ensure(!is_withdrawn, || format!("subnet {subnet} of node {id} was given too early"))?;
            }
            let mut wrong = Violations::default();
            validate_taints("taints", taints, &mut wrong);
            ensure(wrong.0.is_empty(), || format!("node {id}: {wrong}"))?;
            let connected = *status != NodeStatus::Unknown;
            ensure(connected == (*session > 0), || format!("node {id} is {status:?} in session {session}"))?;
            let newest = node.version.max(node.assignment_index);
            ensure(newest <= self.applied.index, || format!("node {id} is of a later entry"))?;
        }
        Ok(())
    }

    fn check_task(&self, task: &Task) -> Result<(), InvariantViolation> {
        let Task { id, slot, observed, .. } = task;
        let service = self
            .service(&id.service)
            .ok_or_else(|| InvariantViolation(format!("task {id} without a service")))?;
        ensure(id.number < service.next_task_number && id.number > 0, || {
            format!("task {id} has a number to come")
        })?;
        let mut known = service.history.iter().chain([&service.revision]);
        ensure(known.any(|known| *known == task.revision), || {
            format!("task {id} is of revision {}, which its service does not know", task.revision.number)
        })?;
        let per_node = service.spec.mode == ServiceMode::Global && service.spec.per.is_none();
        ensure(per_node == task.bound_to().is_some(), || {
            format!("task {id} is bound to {:?}", task.bound_to())
        })?;
        ensure(service.spec.per.is_some() == task.label_value().is_some(), || {
            format!("task {id} is for the value {:?}", task.label_value())
        })?;
        let astray = task.bound_to().is_some() && task.node.is_some() && task.bound_to() != task.node;
        ensure(!astray, || format!("task {id} is on {:?} and bound to {:?}", task.node, task.bound_to()))?;
        ensure(*slot > 0, || format!("task {id} has slot 0"))?;
        ensure(task.created_at <= self.clock, || format!("task {id} was created in the future"))?;
        ensure(observed.since <= self.clock, || format!("task {id} was observed in the future"))?;
        let ready = !observed.ready || observed.state == TaskState::Running;
        ensure(ready, || format!("task {id} is ready and {:?}", observed.state))?;
        let well = match observed.health {
            Health::None => true,
            Health::Healthy => observed.state == TaskState::Running,
            Health::Starting => observed.state == TaskState::Running && !observed.ready,
            // Its health when it was stopped stays.
            Health::Unhealthy => {
                let stopped = task.desired > DesiredTaskState::Running;
                (observed.state == TaskState::Running || stopped) && !observed.ready
            }
        };
        ensure(well, || format!("task {id} is {:?} and {:?}", observed.state, observed.health))?;
        let ended = !observed.removed || observed.state.is_terminal();
        ensure(ended, || format!("task {id} is removed and {:?}", observed.state))?;
        self.check_placement(task)
    }

    fn check_placement(&self, task: &Task) -> Result<(), InvariantViolation> {
        let id = task.id;
        let (node, address) = match (task.node, task.address) {
            (Some(node), Some(address)) => (node, address),
            (None, None) => {
                let untouched = task.observed.state < TaskState::Accepted && task.lost_since().is_none();
                return ensure(untouched, || format!("task {id} has no node, and {:?}", task.observed));
            }
            (node, address) => {
                return Err(InvariantViolation(format!("task {id} is on {node:?} with {address:?}")));
            }
        };
        let Some(node) = self.node(&node) else {
            let gone = task.observed.removed && task.lost_since().is_none();
            return ensure(gone, || format!("task {id} holds something on a node that was removed"));
        };
        // If a node was removed and joined again, its earlier resources are gone.
        if task.observed.removed {
            return ensure(task.lost_since().is_none(), || format!("task {id} is lost and removed"));
        }
        let inside = address::is_task_address(&node.subnets, address);
        ensure(inside, || format!("{address} of task {id} is not for tasks of {:?}", node.subnets))?;
        let lost = task.holds_resources() && node.status == NodeStatus::Down;
        ensure(lost == task.lost_since().is_some(), || {
            format!("task {id} is lost since {:?} on a node that is {:?}", task.lost_since(), node.status)
        })
    }

    /// On each node, a host port belongs to one service.
    fn check_opened_ports(&self) -> Result<(), InvariantViolation> {
        let mut opened: BTreeMap<_, BTreeMap<PublishedPort, ServiceId>> = BTreeMap::new();
        for task in self.tasks().filter(|task| task.holds_resources()) {
            for port in &task.revision.ports {
                let here = opened.entry((task.node, port.host_port)).or_default();
                let mut others = here.iter().filter(|(_, service)| **service != task.id.service);
                let other = others.find(|(other, _)| other.conflicts_with(port));
                ensure(other.is_none(), || format!("{port} of task {} is open for {other:?}", task.id))?;
                here.insert(*port, task.id.service);
            }
        }
        Ok(())
    }
}

/// A task's fields never revert.
fn check_task_transition(old: &Task, new: &Task) -> Result<(), InvariantViolation> {
    let (was, is) = (&old.observed, &new.observed);
    let same = old.slot == new.slot && old.revision == new.revision && old.created_at == new.created_at;
    ensure(same, || format!("task {} became another: {new:?}", old.id))?;
    let placed = old.node.is_none() || (old.node == new.node && old.address == new.address);
    ensure(placed, || format!("task {} moved to {new:?}", old.id))?;
    ensure(new.desired >= old.desired, || format!("what is desired of task {} went back", old.id))?;
    let forward = (is.attempt, is.state) >= (was.attempt, was.state) && is.since >= was.since;
    ensure(forward, || format!("task {} went from {was:?} back to {is:?}", old.id))?;
    let revived = was.state.is_terminal() && !is.state.is_terminal();
    ensure(!revived && is.removed >= was.removed, || format!("task {} left a terminal state", old.id))
}
