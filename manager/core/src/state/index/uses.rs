//! Who uses contents and volumes.

use warren_types::template::is_template;
use warren_types::{Content, MountSource, Revision, ServiceId, VolumeName};

use super::{Index, lower};

/// Bytes of all versions of the content, sealed.
pub(in crate::state) fn bytes(content: &Content) -> u64 {
    content.versions.values().fold(0, |sum, version| sum.saturating_add(version.sealed.len() as u64))
}

/// The volumes of the revision as it names them, templates too.
pub(crate) fn volume_texts(revision: &Revision) -> impl Iterator<Item = &str> {
    revision.task.mounts.iter().filter_map(|mount| match &mount.source {
        MountSource::Volume { name, .. } => Some(name.as_str()),
        MountSource::Bind { .. } | MountSource::Tmpfs { .. } => None,
    })
}

/// The volumes of the revision that are called the same in all its tasks.
pub(in crate::state) fn fixed_volumes(revision: &Revision) -> impl Iterator<Item = VolumeName> {
    volume_texts(revision).filter(|name| !is_template(name)).filter_map(|name| name.parse().ok())
}

impl Index {
    pub(in crate::state) fn add_content(&mut self, content: &Content) {
        self.content_names.insert((content.kind, content.name.clone()), content.id);
        self.content_bytes = self.content_bytes.saturating_add(bytes(content));
    }

    pub(in crate::state) fn remove_content(&mut self, content: &Content) {
        self.content_names.remove(&(content.kind, content.name.clone()));
        self.give_back_bytes(content);
    }

    /// Another version of the content has taken its place.
    pub(in crate::state) fn give_back_bytes(&mut self, content: &Content) {
        self.content_bytes = self.content_bytes.saturating_sub(bytes(content));
    }

    /// The service has one more reason to use what the revision uses.
    pub(in crate::state) fn use_by(&mut self, service: ServiceId, revision: &Revision) {
        for used in &revision.contents {
            *self.content_users.entry((used.id, service)).or_default() += 1;
        }
        for name in fixed_volumes(revision) {
            *self.volume_users.entry((name, service)).or_default() += 1;
        }
        if volume_texts(revision).any(is_template) {
            *self.volume_makers.entry(service).or_default() += 1;
        }
    }

    /// The inverse of [`Self::use_by`].
    pub(in crate::state) fn unuse_by(&mut self, service: ServiceId, revision: &Revision) {
        revision.contents.iter().for_each(|used| lower(&mut self.content_users, (used.id, service)));
        fixed_volumes(revision).for_each(|name| lower(&mut self.volume_users, (name, service)));
        if volume_texts(revision).any(is_template) {
            lower(&mut self.volume_makers, service);
        }
    }
}
