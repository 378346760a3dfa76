//! What a task sees of secrets is a version that there is or was.

use std::collections::BTreeSet;

use warren_types::{Content, ContentId, Revision, Task};

/// Every version that there has been.
#[derive(Debug, Default)]
pub struct Versions(BTreeSet<(ContentId, u64)>);

impl Versions {
    /// A content as it is now.
    pub fn made(&mut self, content: &Content) {
        self.0.extend(content.versions.keys().map(|number| (content.id, *number)));
    }

    /// A revision of a cluster whose life begins.
    pub fn used(&mut self, revision: &Revision) {
        self.0.extend(revision.contents.iter().map(|used| (used.id, used.number)));
    }

    /// A task that changed.
    pub fn known(&self, task: &Task) -> Result<(), String> {
        let unknown = task.revision.contents.iter().find(|used| !self.0.contains(&(used.id, used.number)));
        match unknown {
            None => Ok(()),
            Some(used) => Err(format!("what tasks see exists: {} sees {used:?}, which never was", task.id)),
        }
    }
}
