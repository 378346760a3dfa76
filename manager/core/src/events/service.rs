//! Events of services.

use warren_types::{ImageDigest, Service, ServiceId, ServiceMode};

use super::{Comparison, EventAction, FieldChanges, ObjectEvent, action_of};
use crate::rollout::{RolloutState, failure_text, rollout_state};
use crate::state::ObjectKind;

impl Comparison<'_> {
    pub(super) fn service(&self, id: &ServiceId) -> Option<(ObjectKind, EventAction, ObjectEvent)> {
        let (before, after) = (self.before.services.get(id), self.after.service(id));
        let action = action_of(before, after)?;
        let name = after.or(before).map(|service| service.spec.name.clone())?;
        let mut changes = FieldChanges::default();
        let mut reason = String::new();
        if let (Some(before), Some(after)) = (before, after) {
            compare_services(&mut changes, before, after);
            let failures = (before.rollout.failures.len(), after.rollout.failures.last());
            if let (known, Some(failure)) = failures
                && known < after.rollout.failures.len()
            {
                reason = failure_text(after, failure);
            }
            let image = &after.rollout.image_reason;
            if reason.is_empty() && *image != before.rollout.image_reason {
                reason = image.to_string();
            }
        }
        let found = ObjectEvent { reason: reason.into(), ..ObjectEvent::new(id, name, changes) };
        Some((ObjectKind::Service, action, found))
    }
}

fn compare_services(changes: &mut FieldChanges, before: &Service, after: &Service) {
    changes.compare("removing", before.removing, after.removing, bool::to_string);
    changes.compare("revision", before.revision.number, after.revision.number, u64::to_string);
    let image = |service: &Service| service.revision.task.image.to_string();
    changes.compare("image", image(before), image(after), String::clone);
    if let (Some(from), Some(to)) = (before.spec.replicas(), after.spec.replicas()) {
        changes.compare("replicas", from, to, u32::to_string);
    }
    changes.compare("rollout", state_of(before), state_of(after), |it| it.as_str().to_owned());
    let digest = |service: &Service| service.pins.get(&service.revision.number).cloned();
    if before.revision.number == after.revision.number {
        let text = |it: &Option<ImageDigest>| it.as_ref().map(ToString::to_string).unwrap_or_default();
        changes.compare("digest", digest(before), digest(after), text);
    }
    let (from, to) = (&before.spec, &after.spec);
    changes.compare_labels(&from.labels, &to.labels);
    // Policies are long; only that they differ is told.
    changes.compare("update", &from.update, &to.update, |_| String::new());
    changes.compare("rollback", &from.rollback, &to.rollback, |_| String::new());
    changes.compare("replaceAfter", from.replace_after, to.replace_after, |it| format!("{it:?}"));
    changes.compare("endpointMode", from.endpoint_mode, to.endpoint_mode, |it| it.as_str().to_owned());
}

/// The state of its rollout, as far as the service alone tells.
fn state_of(service: &Service) -> RolloutState {
    match service.spec.mode {
        ServiceMode::Replicated { replicas } => rollout_state(service, replicas),
        ServiceMode::Global => rollout_state(service, 1),
    }
}
