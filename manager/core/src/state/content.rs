//! Secrets, configs and credentials: how many there may be, and which versions a revision uses.

use std::collections::BTreeSet;

use warren_types::{ContentKind, ContentMount, ContentUse, Revision, ServiceName, TaskSpec, Violations};

use super::{Refusal, State};

/// How many there may be.
pub const MAX_CONTENTS: usize = 10_000;
/// How many bytes all of them may have, sealed, their kept versions too: snapshots carry them.
pub const MAX_CONTENT_BYTES: u64 = 256 << 20;

/// What the task names, with its path.
fn mounts(task: &TaskSpec) -> impl Iterator<Item = (String, ContentKind, &ContentMount)> {
    let secrets = task.secrets.iter().enumerate();
    let secrets = secrets.map(|(i, it)| (format!("secrets[{i}]"), ContentKind::Secret, it));
    let configs = task.configs.iter().enumerate();
    secrets.chain(configs.map(|(i, it)| (format!("configs[{i}]"), ContentKind::Config, it)))
}

impl State {
    /// The current versions of the secrets and configs that the task names, sorted.
    ///
    /// # Errors
    /// Those that do not exist; paths are relative to the task.
    pub(super) fn resolve(&self, task: &TaskSpec) -> Result<Vec<ContentUse>, Violations> {
        let mut found = BTreeSet::new();
        let mut wrong = Violations::default();
        for (path, kind, mount) in mounts(task) {
            let name = &mount.source;
            let Some(content) = self.content_named(kind, name) else {
                let message =
                    format!("there is no {kind} {name}; create it with `warren {kind} create {name} FILE`");
                wrong.add(format!("{path}.source"), message);
                continue;
            };
            let (id, number) = (content.id, content.number());
            found.insert(ContentUse { kind, name: name.clone(), id, number });
        }
        wrong.into_result(found.into_iter().collect())
    }

    /// The versions of secrets and configs that the revision uses are still kept.
    pub(super) fn keeps(&self, service: &ServiceName, revision: &Revision) -> Result<(), Refusal> {
        let gone = |used: &&ContentUse| self.content_version(&used.id, used.number).is_none();
        match revision.contents.iter().find(gone).cloned() {
            None => Ok(()),
            Some(ContentUse { kind, name, number, .. }) => {
                let (service, revision) = (service.clone(), revision.number);
                Err(Refusal::ContentGone { service, revision, kind, name, number })
            }
        }
    }
}
