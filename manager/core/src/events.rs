//! Events: what each applied entry changed, as users see it.
//!
//! A pure function of the objects before an entry and the state after it, so every manager derives the same events
//! for the same entry. An event has no bytes of secrets: it names versions.

mod cluster;
mod node;
mod service;
mod storage;
mod task;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use warren_types::{NodeId, TaskExit, Timestamp};

use crate::state::{ObjectKind, State, StateChange, StateObjects};

/// The place of an event in the sequence of all events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct EventPosition {
    /// Raft index of the entry.
    pub index: u64,
    /// Its number among the events of the entry, from 0.
    pub number: u32,
}

impl EventPosition {
    /// After all events of the entry.
    pub fn end_of(index: u64) -> Self {
        Self { index, number: u32::MAX }
    }
}

/// A change of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterEvent {
    /// Where it stands in the sequence.
    pub position: EventPosition,
    /// The time of the command, set by the leader.
    pub at: Timestamp,
    /// The kind of the object.
    pub kind: ObjectKind,
    /// The object's id; empty for the cluster.
    pub id: String,
    /// The object's name: `web.1` for a task, the id of a token.
    pub name: String,
    /// What happened.
    pub action: EventAction,
    /// What differs, for an update.
    pub changes: Vec<FieldChange>,
    /// Why, if that is known.
    pub reason: Arc<str>,
    /// Of a task.
    pub task: Option<TaskEventContext>,
}

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventAction {
    /// It exists from now on.
    Created,
    /// It differs.
    Updated,
    /// It does not exist any more.
    Removed,
}

impl EventAction {
    /// As in documents: `updated`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Removed => "removed",
        }
    }
}

/// A field that differs. The values are empty for fields that are not shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldChange {
    /// Its name, in camelCase.
    pub field: Cow<'static, str>,
    /// Its value before.
    pub from: String,
    /// Its value now.
    pub to: String,
}

/// Where a task belongs, and how its process last exited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskEventContext {
    /// Name of its service.
    pub service: String,
    /// Its slot.
    pub slot: u32,
    /// Name of its node, if it has one.
    pub node: Option<String>,
    /// How its process last exited.
    pub exit: Option<TaskExit>,
}

/// What one object's comparison found, before it has its place.
struct ObjectEvent {
    id: String,
    name: String,
    changes: FieldChanges,
    reason: Arc<str>,
    task: Option<TaskEventContext>,
}

impl ObjectEvent {
    fn new(id: impl ToString, name: impl ToString, changes: FieldChanges) -> Self {
        Self { id: id.to_string(), name: name.to_string(), changes, reason: Arc::default(), task: None }
    }
}

/// Collects the fields that differ.
#[derive(Default)]
struct FieldChanges(Vec<FieldChange>);

impl FieldChanges {
    /// Adds the field if its values differ.
    fn compare<T: PartialEq>(&mut self, field: &'static str, from: T, to: T, show: impl Fn(&T) -> String) {
        if from != to {
            self.add(field, show(&from), show(&to));
        }
    }

    fn add(&mut self, field: impl Into<Cow<'static, str>>, from: String, to: String) {
        self.0.push(FieldChange { field: field.into(), from, to });
    }

    /// Adds the labels that differ, as `labels.KEY`.
    fn compare_labels(
        &mut self,
        from: &std::collections::BTreeMap<String, String>,
        to: &std::collections::BTreeMap<String, String>,
    ) {
        let keys: BTreeSet<&String> = from.keys().chain(to.keys()).collect();
        for key in keys {
            let value = |labels: &std::collections::BTreeMap<String, String>| labels.get(key).cloned();
            let (from, to) = (value(from), value(to));
            if from != to {
                self.add(format!("labels.{key}"), from.unwrap_or_default(), to.unwrap_or_default());
            }
        }
    }
}

/// Both sides of an entry.
struct Comparison<'a> {
    before: &'a StateObjects,
    after: &'a State,
}

impl Comparison<'_> {
    /// The name of a node, also of one that the entry removed.
    fn node_name(&self, id: NodeId) -> String {
        let node = self.after.node(&id).or_else(|| self.before.nodes.get(&id));
        node.map_or_else(|| id.to_string(), |node| node.name.to_string())
    }

    fn compare(&self, change: &StateChange) -> Option<(ObjectKind, EventAction, ObjectEvent)> {
        match change {
            StateChange::Cluster => self.cluster(),
            StateChange::Service(id) => self.service(id),
            StateChange::Task(id) => self.task(id),
            StateChange::Node(id) => self.node(id),
            StateChange::Token(id) => self.token(id),
            StateChange::User(id) => self.user(id),
            StateChange::SecretObject(id) => self.secret_object(id),
            StateChange::Volume(id) => self.volume(id),
            StateChange::Network(id) => self.network(id),
            StateChange::Member(id) => self.member(*id),
            // Nothing that users see.
            StateChange::Assignment(_)
            | StateChange::Addresses
            | StateChange::ImportedImages
            | StateChange::CaRenewals
            | StateChange::KeyRotation => None,
        }
    }
}

/// What happened to an object with these two sides; `None` if there is none on either side.
fn action_of<T>(before: Option<&T>, after: Option<&T>) -> Option<EventAction> {
    match (before, after) {
        (None, None) => None,
        (None, Some(_)) => Some(EventAction::Created),
        (Some(_), Some(_)) => Some(EventAction::Updated),
        (Some(_), None) => Some(EventAction::Removed),
    }
}

/// The events of the entry after which the state is `after`: one for each object that differs, in the order of
/// `changes`.
pub fn events_of(before: &StateObjects, after: &State, changes: &[StateChange]) -> Vec<ClusterEvent> {
    let comparison = Comparison { before, after };
    let (index, at) = (after.applied().index, after.clock());
    let mut seen = BTreeSet::new();
    let mut events = Vec::new();
    for change in changes.iter().filter(|change| seen.insert(**change)) {
        let Some((kind, action, found)) = comparison.compare(change) else { continue };
        let ObjectEvent { id, name, changes, reason, task } = found;
        let is_same = changes.0.is_empty() && reason.is_empty();
        if action == EventAction::Updated && is_same {
            continue;
        }
        let number = u32::try_from(events.len()).unwrap_or(u32::MAX);
        let position = EventPosition { index, number };
        events.push(ClusterEvent { position, at, kind, id, name, action, changes: changes.0, reason, task });
    }
    events
}
