//! A task uses only secret versions that exist or existed.

use std::collections::BTreeSet;

use warren_types::{Revision, SecretObject, SecretObjectId, Task};

/// Every version that existed.
#[derive(Debug, Default)]
pub struct SecretVersionSet(BTreeSet<(SecretObjectId, u64)>);

impl SecretVersionSet {
    /// Records the current version of a secret.
    pub fn record_object(&mut self, content: &SecretObject) {
        self.0.extend(content.versions.keys().map(|number| (content.id, *number)));
    }

    /// Records the versions in a revision of a new incarnation.
    pub fn record_revision(&mut self, revision: &Revision) {
        self.0.extend(revision.secret_objects.iter().map(|used| (used.id, used.number)));
    }

    /// Checks a changed task.
    pub fn check_task(&self, task: &Task) -> Result<(), String> {
        let unknown =
            task.revision.secret_objects.iter().find(|used| !self.0.contains(&(used.id, used.number)));
        match unknown {
            None => Ok(()),
            Some(used) => Err(format!(
                "tasks see existing secret versions: {} uses {used:?}, which never existed",
                task.id
            )),
        }
    }
}
