//! Carrying out a command: deterministic, total, and all of it or nothing.
//!
//! People's commands are refused as a whole. Planners' commands are lists, and each item is checked again
//! against the state as it is now: an item that does not hold any more is left, and the next plan sees it.

mod cluster;
mod content;
mod life;
mod member;
mod node;
mod placement;
mod report;
mod revision;
mod service;
mod task;
mod token;
mod volume;

use std::sync::Arc;

use warren_types::{Node, NodeId, Service, ServiceId, Task, TaskId, Timestamp, Token};

pub use revision::HISTORY;

use super::index::Facets;
use super::{Answer, Applied, Change, Command, Outcome, Refusal, State, digest};

/// The raft entry under way.
struct Entry {
    index: u64,
    /// The command's time, never before that of an earlier one.
    now: Timestamp,
    /// What it altered so far. A command that is refused altered nothing.
    changes: Vec<Change>,
}

impl State {
    /// Carries out the command of the raft entry (`entry_term`, `index`). Never panics, and gives the same
    /// answer on every member. The entry counts as applied whatever the outcome, unless it was applied
    /// already.
    pub fn apply(&mut self, entry_term: u64, index: u64, command: &Command) -> Outcome {
        let applied = self.applied.index;
        if index <= applied {
            return Outcome::Rejected(Refusal::AlreadyApplied { index, applied });
        }
        self.advance(Applied { term: entry_term, index });
        let now = command.at().map_or(self.clock, |at| at.max(self.clock));
        let mut entry = Entry { index, now, changes: Vec::new() };
        let stale = command.planned_in().filter(|planned| *planned != entry_term);
        let result = match stale {
            Some(planned) => Err(Refusal::StalePlan { planned, current: entry_term }),
            None => self.carry_out(&mut entry, command),
        };
        match result {
            Ok(answer) if entry.changes.is_empty() => Outcome::Unchanged { answer },
            Ok(answer) => {
                self.clock = now;
                Outcome::Applied { answer, changes: entry.changes }
            }
            Err(refusal) => Outcome::Rejected(refusal),
        }
    }

    /// Notes a raft entry that carries no command: the empty one of a new leader, or a change of membership.
    pub fn advance(&mut self, applied: Applied) {
        let Applied { term, index } = self.applied;
        self.applied = Applied { term: applied.term.max(term), index: applied.index.max(index) };
    }

    fn carry_out(&mut self, entry: &mut Entry, command: &Command) -> Result<Answer, Refusal> {
        if let Command::CreateCluster { id, ranges, level, .. } = command {
            return cluster::create(self, entry, *id, ranges, *level);
        }
        if self.cluster.is_none() {
            return Err(Refusal::NoCluster);
        }
        match command {
            Command::CreateCluster { .. } => Ok(Answer::Done),
            Command::RaiseLevel { level, .. } => Ok(cluster::raise_level(self, entry, *level)),
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
            Command::RemoveService { id, version, .. } => service::remove(self, entry, *id, *version),
            Command::DeleteService { id, .. } => service::delete(self, entry, *id),
            Command::CreateTasks { service, revision, slots, .. } => {
                task::create(self, entry, *service, *revision, slots)
            }
            Command::SetDesired { tasks, desired, .. } => Ok(task::set_desired(self, entry, tasks, *desired)),
            Command::DeleteTasks { tasks, .. } => Ok(task::delete(self, entry, tasks)),
            Command::AssignTasks { placements, .. } => Ok(placement::assign(self, entry, placements)),
            Command::SetNodeStatus { node, session, status, .. } => {
                node::set_status(self, entry, *node, *session, *status)
            }
            Command::RegisterNode { id, name, role, description, .. } => {
                node::register(self, entry, *id, name, *role, description)
            }
            Command::UpdateNode { id, version, label_add, label_rm, availability, .. } => {
                node::update(self, entry, *id, *version, (label_add, label_rm), *availability)
            }
            Command::RemoveNode { id, force, .. } => node::remove(self, entry, *id, *force),
            Command::CreateToken { id, role, hash, expires_at, max_uses, .. } => {
                let (version, created_at, uses) = (entry.index, entry.now, 0);
                let (id, role, hash, expires_at, max_uses) = (*id, *role, *hash, *expires_at, *max_uses);
                token::create(
                    self,
                    entry,
                    Token { id, version, role, hash, created_at, expires_at, uses, max_uses },
                )
            }
            Command::RemoveToken { id, .. } => Ok(token::remove(self, entry, *id)),
            Command::DeleteTokens { tokens, .. } => Ok(token::delete(self, entry, tokens)),
            Command::JoinNode { hash, id, name, description, .. } => {
                token::join(self, entry, *hash, *id, name, description)
            }
            Command::CreateContent { id, kind, name, labels, content, .. } => {
                content::create(self, entry, *id, (*kind, name), labels, content)
            }
            Command::UpdateContent { id, version, content, .. } => {
                content::update(self, entry, *id, *version, content)
            }
            Command::RemoveContent { id, .. } => content::remove(self, entry, *id),
            Command::CreateVolume { id, name, driver, options, labels, node, .. } => {
                let wanted = volume::Wanted { name, driver: *driver, options, labels, node: *node };
                volume::create(self, entry, *id, wanted)
            }
            Command::RemoveVolume { id, purge, .. } => volume::remove(self, entry, *id, *purge),
            Command::DeleteVolume { id, .. } => volume::delete(self, entry, *id),
            Command::SetNodeConditions { node, session, conditions, .. } => {
                node::set_conditions(self, entry, *node, *session, conditions)
            }
            Command::OpenSession { node, description, manager, .. } => {
                node::open_session(self, entry, *node, description, *manager)
            }
            Command::ReportTasks { node, session, reports, .. } => {
                report::take(self, entry, *node, *session, reports)
            }
            Command::RegisterMember { .. }
            | Command::JoinManager { .. }
            | Command::UpdateMember { .. }
            | Command::RemoveMember { .. }
            | Command::DeleteMember { .. } => member::carry_out(self, entry, command),
        }
    }

    /// Changes a task and whatever is indexed by it.
    fn update_task(&mut self, entry: &mut Entry, id: TaskId, change: impl FnOnce(&mut Task)) {
        let Some(shared) = self.tasks.get_mut(&id) else { return };
        let before = Facets::of(shared);
        self.sum.remove(digest::task(shared));
        let task = Arc::make_mut(shared);
        change(task);
        self.sum.add(digest::task(task));
        self.index.change_task(task, Some(before), Some(Facets::of(task)));
        entry.changes.push(Change::Task(id));
    }

    /// Changes what no person said of a service: its version stays.
    fn update_standing(&mut self, entry: &mut Entry, id: ServiceId, change: impl FnOnce(&mut Service)) {
        let Some(shared) = self.services.get_mut(&id) else { return };
        self.sum.remove(digest::service(shared));
        let service = Arc::make_mut(shared);
        change(service);
        self.sum.add(digest::service(service));
        entry.changes.push(Change::Service(id));
    }

    /// Changes a node. What is indexed by it is for the caller.
    fn update_node(&mut self, id: NodeId, change: impl FnOnce(&mut Node)) {
        let Some(shared) = self.nodes.get_mut(&id) else { return };
        self.sum.remove(digest::node(shared));
        let node = Arc::make_mut(shared);
        change(node);
        self.sum.add(digest::node(node));
    }

    /// Notes that what the node should have is another thing from this entry on.
    fn touch_assignment(&mut self, entry: &mut Entry, id: NodeId) {
        if self.nodes.get(&id).is_some_and(|node| node.assignment != entry.index) {
            self.update_node(id, |node| node.assignment = entry.index);
            entry.changes.push(Change::Assignment(id));
        }
    }
}
