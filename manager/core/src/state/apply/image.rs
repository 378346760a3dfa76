//! The images of revisions: their pins, and what users imported.

use std::sync::Arc;

use warren_types::{
    CanonicalImage, ImageDigest, ImageReference, ImageResolver, NodeId, Service, ServiceId, Task, TaskReport,
    TaskState,
};

use super::ApplyContext;
use crate::state::{CommandResponse, ImportedImage, MAX_IMPORTED_IMAGES, State, StateChange, digest};

/// What the image digest in a worker's report does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReportedImage {
    /// It pins the image of the task's revision: that is resolved by workers, and this is the first report.
    Pins,
    /// The task is rejected: managers resolved another digest.
    Rejects,
    /// Nothing.
    Ignored,
}

/// What the digest `image` that the node of `task` reported does.
pub(crate) fn reported_image(state: &State, task: &Task, image: &ImageDigest) -> ReportedImage {
    let Some(service) = state.services.get(&task.id.service) else { return ReportedImage::Ignored };
    let pin = service.pins.get(&task.revision.number);
    // Other terminal states are final.
    let is_rejectable = !task.observed.state.is_terminal() || task.observed.state == TaskState::Rejected;
    match (task.revision.task.image_resolver(), pin) {
        (ImageResolver::Worker, None) => ReportedImage::Pins,
        (ImageResolver::Manager, Some(pin)) if pin != image && is_rejectable => ReportedImage::Rejects,
        (ImageResolver::Worker | ImageResolver::Manager, _) => ReportedImage::Ignored,
    }
}

/// The report as a rejection of its task.
pub(super) fn rejection(state: &State, task: &Task, image: &ImageDigest, report: &TaskReport) -> TaskReport {
    let service = state.services.get(&task.id.service);
    let pin = service.and_then(|service| service.pins.get(&task.revision.number));
    let pin = pin.map(ToString::to_string).unwrap_or_default();
    let node = task.node.and_then(|id| state.nodes.get(&id));
    let node = node.map(|node| node.name.to_string()).unwrap_or_default();
    let name = &task.revision.task.image;
    let reason = format!(
        "node {node} reported {image} as image {name}, which managers resolved to {pin}; check who controls the node"
    );
    TaskReport { state: TaskState::Rejected, ready: false, next_attempt: None, reason, ..report.clone() }
}

/// Pins the image of a revision: from then on every task of it runs that digest, and the nodes with such tasks get
/// it. A pin is never replaced.
pub(super) fn pin(
    state: &mut State,
    entry: &mut ApplyContext,
    id: ServiceId,
    revision: u64,
    image: &ImageDigest,
) {
    let desired = |service: &Arc<Service>| {
        let mut known = service.history.iter().chain([&service.revision]);
        known.any(|known| known.number == revision) && !service.pins.contains_key(&revision)
    };
    if !state.services.get(&id).is_some_and(desired) {
        return;
    }
    state.update_service_status(entry, id, |service| {
        service.pins.insert(revision, image.clone());
        if service.revision.number == revision {
            service.rollout.image_reason = Arc::default();
        }
    });
    let nodes: Vec<NodeId> = state.index.tasks_per_node.range(id, ..).map(|(node, _)| *node).collect();
    nodes.into_iter().for_each(|node| state.bump_assignment(entry, node));
}

/// Records what an import gave a name, or that the name was removed.
pub(super) fn record_import(
    state: &mut State,
    entry: &mut ApplyContext,
    image: &ImageReference,
    digest: Option<&ImageDigest>,
) -> CommandResponse {
    let name = CanonicalImage::of(image);
    if state.imported_images.get(&name).map(|imported| &imported.digest) == digest {
        return CommandResponse::Done;
    }
    remove_import(state, &name);
    if let Some(digest) = digest {
        let imported = ImportedImage { digest: digest.clone(), index: entry.index };
        state.digest_sum.add(digest::imported_image(&name, &imported));
        state.imported_images.insert(name, imported);
    }
    if state.imported_images.len() > MAX_IMPORTED_IMAGES {
        let oldest = state.imported_images.iter().min_by_key(|(_, imported)| imported.index);
        if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
            remove_import(state, &oldest);
        }
    }
    entry.changes.push(StateChange::ImportedImages);
    CommandResponse::Done
}

fn remove_import(state: &mut State, name: &CanonicalImage) {
    if let Some(before) = state.imported_images.remove(name) {
        state.digest_sum.remove(digest::imported_image(name, &before));
    }
}
