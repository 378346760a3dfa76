//! Events of tasks.

use std::sync::Arc;

use warren_types::{Health, Task, TaskId};

use super::{Comparison, EventAction, FieldChanges, ObjectEvent, TaskEventContext, action_of};
use crate::explain::explain_task;
use crate::state::ObjectKind;

impl Comparison<'_> {
    pub(super) fn task(&self, id: &TaskId) -> Option<(ObjectKind, EventAction, ObjectEvent)> {
        let (before, after) = (self.before.task(id), self.after.task(id));
        let action = action_of(before, after)?;
        let newest = after.or(before)?;
        let services = (self.after.service(&id.service), self.before.services.get(&id.service));
        let service = services.0.or(services.1);
        let service = service.map_or_else(|| id.service.to_string(), |service| service.spec.name.to_string());
        let mut changes = FieldChanges::default();
        let mut reason = Arc::default();
        match (before, after) {
            (Some(before), Some(after)) => {
                self.compare_tasks(&mut changes, before, after);
                let is_new = before.observed.reason() != after.observed.reason();
                if is_new || !changes.0.is_empty() {
                    reason = self.task_reason(after);
                }
            }
            (None, Some(after)) if after.not_before().is_some() => reason = self.task_reason(after),
            _ => {}
        }
        let context = TaskEventContext {
            slot: newest.slot,
            node: newest.node.map(|node| self.node_name(node)),
            exit: newest.observed.exit(),
            service,
        };
        let name = format!("{}.{}", context.service, newest.slot);
        let found = ObjectEvent { reason, task: Some(context), ..ObjectEvent::new(newest.id, name, changes) };
        Some((ObjectKind::Task, action, found))
    }

    fn compare_tasks(&self, changes: &mut FieldChanges, before: &Task, after: &Task) {
        let node = |task: &Task| task.node.map(|id| self.node_name(id)).unwrap_or_default();
        let health = |health: &Health| match health {
            Health::None => "none".to_owned(),
            other => other.as_str().to_owned(),
        };
        if before.node != after.node {
            changes.add("node", node(before), node(after));
        }
        changes.compare("desired", before.desired, after.desired, |it| it.as_str().to_owned());
        changes.compare("state", before.state(), after.state(), |it| it.as_str().to_owned());
        let attempts = (before.observed.attempt, after.observed.attempt);
        if attempts.0 > 0 {
            changes.compare("attempt", attempts.0, attempts.1, u32::to_string);
        }
        changes.compare("ready", before.observed.ready, after.observed.ready, bool::to_string);
        changes.compare("health", before.observed.health, after.observed.health, health);
        let lost = (before.lost_since().is_some(), after.lost_since().is_some());
        changes.compare("lost", lost.0, lost.1, bool::to_string);
        changes.compare("removedFromNode", before.observed.removed, after.observed.removed, bool::to_string);
    }

    fn task_reason(&self, task: &Task) -> Arc<str> {
        let is_told = task.node.is_some() || task.not_before().is_some();
        match is_told {
            true => explain_task(self.after, None, task, self.after.clock()).into(),
            false => Arc::default(),
        }
    }
}
