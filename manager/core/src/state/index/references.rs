//! The users of secret objects, volumes and networks.

use warren_types::spec::NetworkAttachment;
use warren_types::template::is_template;
use warren_types::{MountSource, Revision, SecretObject, ServiceId, VolumeName};

use super::{StateIndex, decrement};

/// Bytes of all versions of the secret object, sealed.
pub(in crate::state) fn total_size(content: &SecretObject) -> u64 {
    content.versions.values().fold(0, |sum, version| sum.saturating_add(version.sealed.len() as u64))
}

/// The volumes of the revision as it names them, templates too.
pub(crate) fn volume_templates(revision: &Revision) -> impl Iterator<Item = &str> {
    revision.task.mounts.iter().filter_map(|mount| match &mount.source {
        MountSource::Volume { name, .. } => Some(name.as_str()),
        MountSource::Bind { .. } | MountSource::Tmpfs { .. } => None,
    })
}

/// The volumes of the revision whose names are the same in all its tasks.
pub(in crate::state) fn fixed_volumes(revision: &Revision) -> impl Iterator<Item = VolumeName> {
    volume_templates(revision).filter(|name| !is_template(name)).filter_map(|name| name.parse().ok())
}

impl StateIndex {
    pub(in crate::state) fn add_secret_object(&mut self, content: &SecretObject) {
        self.secret_object_names.insert((content.kind, content.name.clone()), content.id);
        self.secret_object_bytes = self.secret_object_bytes.saturating_add(total_size(content));
    }

    pub(in crate::state) fn remove_secret_object(&mut self, content: &SecretObject) {
        self.secret_object_names.remove(&(content.kind, content.name.clone()));
        self.release_bytes(content);
    }

    /// Another version of the secret object has replaced it.
    pub(in crate::state) fn release_bytes(&mut self, content: &SecretObject) {
        self.secret_object_bytes = self.secret_object_bytes.saturating_sub(total_size(content));
    }

    /// Adds one use of what the revision uses by the service.
    pub(in crate::state) fn add_user(&mut self, service: ServiceId, revision: &Revision) {
        for used in &revision.secret_objects {
            *self.secret_object_users.entry((used.id, service)).or_default() += 1;
        }
        for NetworkAttachment { network, aliases } in revision.task.network.attachments() {
            *self.network_users.entry((network.clone(), service)).or_default() += 1;
            for alias in aliases {
                *self.aliases.entry((network.clone(), alias.clone(), service)).or_default() += 1;
            }
        }
        for name in fixed_volumes(revision) {
            *self.volume_users.entry((name, service)).or_default() += 1;
        }
        if volume_templates(revision).any(is_template) {
            *self.templated_volume_users.entry(service).or_default() += 1;
        }
    }

    /// The inverse of [`Self::add_user`].
    pub(in crate::state) fn remove_user(&mut self, service: ServiceId, revision: &Revision) {
        revision
            .secret_objects
            .iter()
            .for_each(|used| decrement(&mut self.secret_object_users, (used.id, service)));
        for NetworkAttachment { network, aliases } in revision.task.network.attachments() {
            decrement(&mut self.network_users, (network.clone(), service));
            for alias in aliases {
                decrement(&mut self.aliases, (network.clone(), alias.clone(), service));
            }
        }
        fixed_volumes(revision).for_each(|name| decrement(&mut self.volume_users, (name, service)));
        if volume_templates(revision).any(is_template) {
            decrement(&mut self.templated_volume_users, service);
        }
    }
}
