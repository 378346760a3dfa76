//! Which revision new tasks of a service have.

use std::sync::Arc;

use warren_types::{ImageResolver, Revision, Service};

use super::State;

/// Whether tasks of the current revision wait until managers know its image.
pub fn awaits_managers(service: &Service) -> bool {
    !service.removing && !is_image_known(service, &service.revision)
}

fn is_image_known(service: &Service, revision: &Revision) -> bool {
    revision.task.image_resolver() == ImageResolver::Worker || service.pins.contains_key(&revision.number)
}

impl State {
    /// The revision of new tasks: the current one. While managers do not know its image, it is the last good one, or
    /// the newest other one whose image is known: so the service does not lose tasks to an image that is missing.
    pub fn new_task_revision<'a>(&self, service: &'a Service) -> &'a Arc<Revision> {
        match awaits_managers(service) {
            true => self.usable_revision(service).unwrap_or(&service.revision),
            false => &service.revision,
        }
    }

    /// The revision of new tasks after an update to an image that managers do not know; `None`: that of the update.
    pub fn usable_revision<'a>(&self, service: &'a Service) -> Option<&'a Arc<Revision>> {
        let usable = |revision: &&Arc<Revision>| {
            is_image_known(service, revision) && self.check_restorable(service, revision).is_ok()
        };
        let good = |revision: &&Arc<Revision>| revision.number == service.rollout.good_revision;
        let newest_first =
            || std::iter::once(&service.revision).chain(service.history.iter().rev()).filter(usable);
        newest_first().find(good).or_else(|| newest_first().next())
    }
}
