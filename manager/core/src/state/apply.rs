//! Applies commands: deterministic, total, and atomic.
//!
//! Users' commands are rejected as a whole. Planners' commands are lists, and each item is checked again
//! against the current state: an item that is not valid any more is skipped, and the next plan handles it.

mod address;
mod ca_rotation;
mod cluster;
mod image;
mod incarnation;
mod key;
mod member;
mod network;
mod node;
mod placement;
mod ports;
mod report;
mod revision;
mod rollout;
mod secret_object;
mod service;
mod task;
mod task_defaults;
mod token;
mod user;
mod verification;
mod volume;

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_types::{LoginToken, Node, NodeId, Service, ServiceId, Task, TaskId, Timestamp, Token};

pub(crate) use image::{ReportedImage, reported_image};
pub(super) use network::{default_network, first_virtual_addresses};
pub use revision::{REVISION_HISTORY_LIMIT, kept_pin, previous_revision};

use super::index::Facets;
use super::{AppliedIndex, ApplyOutcome, Command, CommandResponse, Refusal, State, StateChange, digest};

/// The raft entry being applied.
struct ApplyContext {
    index: u64,
    /// The command's time, never before that of an earlier one.
    now: Timestamp,
    /// What it changed so far. A command that is rejected changed nothing.
    changes: Vec<StateChange>,
}

impl State {
    /// Applies the command of the raft entry (`entry_term`, `index`). Never panics, and gives the same result
    /// on every member. The entry counts as applied whatever the outcome, unless it was applied already.
    pub fn apply(&mut self, entry_term: u64, index: u64, command: &Command) -> ApplyOutcome {
        let applied = self.applied.index;
        if index <= applied {
            return ApplyOutcome::Rejected(Refusal::AlreadyApplied { index, applied });
        }
        self.advance_to(AppliedIndex { term: entry_term, index });
        let now = command.at().map_or(self.clock, |at| at.max(self.clock));
        let mut entry = ApplyContext { index, now, changes: Vec::new() };
        let stale = command.planner_term().filter(|planned| *planned != entry_term);
        let result = match stale {
            Some(planned) => Err(Refusal::StalePlan { planned, current: entry_term }),
            None => self.execute(&mut entry, command),
        };
        match result {
            Ok(answer) if entry.changes.is_empty() => ApplyOutcome::Unchanged { answer },
            Ok(answer) => {
                self.clock = now;
                ApplyOutcome::Applied { response: answer, changes: entry.changes }
            }
            Err(refusal) => ApplyOutcome::Rejected(refusal),
        }
    }

    /// Records a raft entry that has no command: the empty one of a new leader, or a membership change.
    pub fn advance_to(&mut self, applied: AppliedIndex) {
        let AppliedIndex { term, index } = self.applied;
        self.applied = AppliedIndex { term: applied.term.max(term), index: applied.index.max(index) };
    }

    fn execute(&mut self, entry: &mut ApplyContext, command: &Command) -> Result<CommandResponse, Refusal> {
        if let Command::CreateCluster { id, ranges, feature_level: level, .. } = command {
            return cluster::create(self, entry, *id, ranges, *level);
        }
        if self.cluster.is_none() {
            return Err(Refusal::NoCluster);
        }
        match command {
            Command::CreateCluster { .. } => Ok(CommandResponse::Done),
            Command::UpdateCluster { version, change, .. } => cluster::update(self, entry, *version, change),
            Command::RaiseFeatureLevel { level, .. } => Ok(cluster::raise_feature_level(self, entry, *level)),
            Command::CreateService { id, spec, .. } => service::create(self, entry, *id, spec),
            Command::ScaleService { id, version, replicas, .. } => {
                service::scale(self, entry, *id, *version, *replicas)
            }
            Command::UpdateService { id, version, spec, force, .. } => {
                revision::update(self, entry, *id, *version, spec, *force)
            }
            Command::RollbackService { id, version, revision, .. } => {
                revision::rollback(self, entry, *id, *version, *revision)
            }
            Command::AdvanceRollout { service, revision, step, .. } => {
                rollout::advance(self, entry, *service, *revision, step)
            }
            Command::ResumeRollout { id, version, .. } => rollout::resume(self, entry, *id, *version),
            Command::RemoveService { id, version, force, .. } => {
                service::remove(self, entry, *id, *version, *force)
            }
            Command::DeleteService { id, .. } => service::delete(self, entry, *id),
            Command::RecordImport { image, digest, .. } => {
                Ok(image::record_import(self, entry, image, digest.as_ref()))
            }
            Command::CreateTasks { service, revision, slots, .. } => {
                task::create(self, entry, *service, *revision, slots)
            }
            Command::SetDesiredTaskState { tasks, desired, .. } => {
                Ok(task::set_desired(self, entry, tasks, *desired))
            }
            Command::DeleteTasks { tasks, .. } => Ok(task::delete(self, entry, tasks)),
            Command::AssignTasks { placements, .. } => Ok(placement::assign(self, entry, placements)),
            Command::SetNodeStatus { node, session, status, .. } => {
                node::set_status(self, entry, *node, *session, *status)
            }
            Command::RegisterNode { id, name, role, description, taints, .. } => {
                let new = node::NewNode { description, labels: &BTreeMap::new(), taints };
                node::register(self, entry, *id, name, *role, new)
            }
            Command::UpdateNode {
                id,
                version,
                label_add,
                label_rm,
                availability,
                taint_add,
                taint_rm,
                ..
            } => {
                let (labels, taints) = ((label_add, label_rm), (taint_add, taint_rm));
                node::update(self, entry, *id, *version, labels, *availability, taints)
            }
            Command::RemoveNode { id, force, .. } => node::remove(self, entry, *id, *force),
            Command::RequestVerification { nodes, .. } => verification::request(self, entry, nodes),
            Command::BeginVerification { node, .. } => verification::begin(self, entry, *node),
            Command::RecordVerification { node, answered, results, .. } => {
                verification::record(self, entry, *node, *answered, results)
            }
            Command::CreateToken { id, role, hash, expires_at, max_uses, labels, .. } => {
                let (version, created_at, uses) = (entry.index, entry.now, 0);
                let (id, role, hash, expires_at, max_uses) = (*id, *role, *hash, *expires_at, *max_uses);
                let labels = labels.clone();
                let token = Token { id, version, role, hash, created_at, expires_at, uses, max_uses, labels };
                token::create(self, entry, token)
            }
            Command::RemoveToken { id, .. } => Ok(token::remove(self, entry, *id)),
            Command::DeleteTokens { tokens, .. } => Ok(token::delete(self, entry, tokens)),
            Command::CreateUser { id, name, role, login_hash, login_expires_at, expires_at, .. } => {
                let login = LoginToken { hash: *login_hash, expires_at: *login_expires_at, used_by: None };
                let expected = user::DesiredUser { name, role: *role, login, expires_at: *expires_at };
                user::create(self, entry, *id, expected)
            }
            Command::UpdateUser { id, version, role, login_hash, login_expires_at, remove_keys, .. } => {
                let login = login_hash.zip(*login_expires_at);
                user::update(self, entry, (*id, *version), *role, login, *remove_keys)
            }
            Command::RemoveUser { id, .. } => Ok(user::remove(self, entry, *id)),
            Command::LoginUser { hash, key, .. } => user::login(self, entry, hash, *key),
            Command::SetAdministratorKey { member, key, .. } => {
                member::set_administrator_key(self, entry, *member, *key)
            }
            Command::SetNodeKey { id, key, .. } => node::set_key(self, entry, *id, *key),
            Command::Ca(command) => ca_rotation::execute(self, entry, command),
            Command::Key(command) => key::execute(self, entry, command),
            Command::JoinNode { hash, id, name, description, taints, .. } => {
                token::join(self, entry, *hash, *id, name, (description, taints))
            }
            Command::CreateSecretObject { id, kind, name, labels, data, .. } => {
                secret_object::create(self, entry, *id, (*kind, name), labels, data)
            }
            Command::UpdateSecretObject { id, version, data, .. } => {
                secret_object::update(self, entry, *id, *version, data)
            }
            Command::RemoveSecretObject { id, .. } => secret_object::remove(self, entry, *id),
            Command::CreateVolume { id, name, driver, options, labels, node, reuse, .. } => {
                let expected = volume::DesiredVolume { name, driver: *driver, options, labels, node: *node };
                volume::create(self, entry, *id, expected, *reuse)
            }
            Command::RemoveVolume { id, purge, data, .. } => volume::remove(self, entry, *id, *purge, *data),
            Command::CreateNetwork { id, name, labels, internal, .. } => {
                let expected = network::DesiredNetwork { name, labels, internal: *internal };
                network::create(self, entry, *id, expected)
            }
            Command::RemoveNetwork { id, .. } => network::remove(self, entry, *id),
            Command::ReleaseAddresses { acknowledged, .. } => {
                Ok(address::release(self, entry, *acknowledged))
            }
            Command::DeleteVolume { id, .. } => volume::delete(self, entry, *id),
            Command::SetNodeConditions { node, session, conditions, .. } => {
                node::set_conditions(self, entry, *node, *session, conditions)
            }
            Command::ReportVolumes { node, session, held, .. } => {
                volume::report(self, entry, *node, *session, held)
            }
            Command::OpenSession { node, description, manager, .. } => {
                node::open_session(self, entry, *node, description, *manager)
            }
            Command::ReportTasks { node, session, reports, .. } => {
                report::apply_reports(self, entry, *node, *session, reports)
            }
            Command::RegisterMember { .. }
            | Command::JoinManager { .. }
            | Command::UpdateMember { .. }
            | Command::RemoveMember { .. }
            | Command::DeleteMember { .. } => member::execute(self, entry, command),
        }
    }

    /// Changes a task and its index entries.
    fn update_task(&mut self, entry: &mut ApplyContext, id: TaskId, change: impl FnOnce(&mut Task)) {
        let Some(shared) = self.tasks.get_mut(&id) else { return };
        let before = Facets::of(shared);
        self.digest_sum.remove(digest::task(shared));
        let task = Arc::make_mut(shared);
        change(task);
        self.digest_sum.add(digest::task(task));
        self.index.change_task(task, Some(before), Some(Facets::of(task)));
        entry.changes.push(StateChange::Task(id));
    }

    /// Changes the status of a service, not its spec: its version stays.
    fn update_service_status(
        &mut self,
        entry: &mut ApplyContext,
        id: ServiceId,
        change: impl FnOnce(&mut Service),
    ) {
        let Some(shared) = self.services.get_mut(&id) else { return };
        self.digest_sum.remove(digest::service(shared));
        let service = Arc::make_mut(shared);
        change(service);
        self.digest_sum.add(digest::service(service));
        entry.changes.push(StateChange::Service(id));
    }

    /// Changes a node. The caller updates the indexes.
    fn update_node(&mut self, id: NodeId, change: impl FnOnce(&mut Node)) {
        let Some(shared) = self.nodes.get_mut(&id) else { return };
        self.digest_sum.remove(digest::node(shared));
        let node = Arc::make_mut(shared);
        change(node);
        self.digest_sum.add(digest::node(node));
    }

    /// Records that the node's assignment changed with this entry.
    fn bump_assignment(&mut self, entry: &mut ApplyContext, id: NodeId) {
        if self.nodes.get(&id).is_some_and(|node| node.assignment_index != entry.index) {
            self.update_node(id, |node| node.assignment_index = entry.index);
            entry.changes.push(StateChange::Assignment(id));
        }
    }
}
