//! What the images of services stand for, as managers resolve them.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_types::{
    CanonicalImage, ImageDigest, ImageReference, ImageResolver, PullPolicy, Revision, ServiceId, ServiceName,
    TaskSpec, Timestamp,
};

use crate::state::{Command, RolloutStep, State, awaits_managers};

/// The most characters of a reason that the state keeps.
const MAX_REASON: usize = 1000;

/// How managers learn what the image of a service's current revision is. [`pin_command`] records it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageStep {
    /// Number of the revision.
    pub revision: u64,
    /// The image.
    pub image: ImageReference,
    /// What a user's import gave its name, which is used as long as a node has it; `None`: its registry is asked.
    pub import: Option<ImageDigest>,
}

/// The next step for the image of the service's current revision; `None` if that is pinned, or workers resolve it.
pub fn image_step(state: &State, id: &ServiceId) -> Option<ImageStep> {
    let service = state.service(id).filter(|service| awaits_managers(service))?;
    let (revision, task) = (service.revision.number, &service.revision.task);
    Some(ImageStep { revision, image: task.image.clone(), import: usable_import(state, task).cloned() })
}

/// The digest that a user's import gave the name of the task's image, unless the task wants that of the registry.
pub fn usable_import<'s>(state: &'s State, task: &TaskSpec) -> Option<&'s ImageDigest> {
    let imported = state.imported_image(&CanonicalImage::of(&task.image));
    imported.filter(|_| task.pull != PullPolicy::Always).map(|imported| &imported.digest)
}

/// The digest that an earlier revision of the service had for the same image.
pub fn earlier_pin(state: &State, id: &ServiceId) -> Option<ImageDigest> {
    let service = state.service(id).filter(|service| awaits_managers(service))?;
    let mut same = service.history.iter().rev().filter(|earlier| is_same_image(earlier, &service.revision));
    same.find_map(|earlier| service.pins.get(&earlier.number)).cloned()
}

/// The newest digest that managers resolved for each image in any revision of a service, with the name of that service.
pub fn known_pins(state: &State) -> BTreeMap<CanonicalImage, (ServiceName, ImageDigest)> {
    let pins = state.services().flat_map(|service| {
        let revisions = service.history.iter().chain([&service.revision]);
        let resolved = revisions.filter(|revision| is_of_managers(revision));
        resolved.filter_map(move |revision| {
            Some((revision, &service.spec.name, service.pins.get(&revision.number)?))
        })
    });
    let mut pins: Vec<_> = pins.collect();
    // The map keeps the last one of each image.
    pins.sort_by_key(|(revision, ..)| revision.created_at);
    let by_image = pins.into_iter().map(|(revision, name, digest)| {
        (CanonicalImage::of(&revision.task.image), (name.clone(), digest.clone()))
    });
    by_image.collect()
}

/// Whether a user wants the digest that the registry has now, while an earlier one is known.
pub fn is_refresh(state: &State, id: &ServiceId) -> bool {
    let service = state.service(id).filter(|service| awaits_managers(service));
    service.is_some_and(|service| service.revision.task.pull == PullPolicy::Always)
        || earlier_pin(state, id).is_some()
}

fn is_same_image(one: &Arc<Revision>, other: &Arc<Revision>) -> bool {
    let name = |revision: &Revision| CanonicalImage::of(&revision.task.image);
    is_of_managers(one) && is_of_managers(other) && name(one) == name(other)
}

fn is_of_managers(revision: &Revision) -> bool {
    revision.task.image_resolver() == ImageResolver::Manager
}

/// The command that pins the image of a revision of the service.
pub fn pin_command(
    state: &State,
    service: ServiceId,
    revision: u64,
    digest: ImageDigest,
    now: Timestamp,
) -> Command {
    let (term, step) = (state.applied().term, RolloutStep::ImagePinned(digest));
    Command::AdvanceRollout { term, service, revision, step, at: now }
}

/// The command that records why the image of the service's revision is not resolved; `None` if the state says so
/// already. Texts that differ only in digits and letters of hexadecimal numbers are the same: registries put ids of
/// requests into their messages.
pub fn unresolved_command(
    state: &State,
    service: ServiceId,
    revision: u64,
    reason: &str,
    now: Timestamp,
) -> Option<Command> {
    let known = state.service(&service).filter(|known| known.revision.number == revision)?;
    let reason: Arc<str> = reason.chars().take(MAX_REASON).collect::<String>().into();
    let words = |text: &str| text.chars().filter(|it| !it.is_ascii_hexdigit()).collect::<String>();
    if words(&known.rollout.image_reason) == words(&reason) {
        return None;
    }
    let (term, step) = (state.applied().term, RolloutStep::ImageUnresolved(reason));
    Some(Command::AdvanceRollout { term, service, revision, step, at: now })
}
