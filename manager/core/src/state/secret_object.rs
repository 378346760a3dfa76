//! Which versions of secrets and configs a revision uses.

use std::collections::BTreeSet;

use warren_types::{
    Revision, SecretObjectKind, SecretObjectName, SecretObjectVersion, ServiceName, TaskSpec, Violations,
};

use super::{Refusal, State};

/// The secret objects that the task names, with their paths.
pub(super) fn named_secret_objects(
    task: &TaskSpec,
) -> impl Iterator<Item = (String, SecretObjectKind, &SecretObjectName)> {
    let secrets = task.secrets.iter().enumerate();
    let secrets =
        secrets.map(|(i, it)| (format!("secrets[{i}].source"), SecretObjectKind::Secret, &it.source));
    let configs = task.configs.iter().enumerate();
    let configs =
        configs.map(|(i, it)| (format!("configs[{i}].source"), SecretObjectKind::Config, &it.source));
    let profile = task.seccomp.config().map(|name| ("seccomp".to_owned(), SecretObjectKind::Config, name));
    secrets.chain(configs).chain(profile)
}

impl State {
    /// The current versions of the secrets and configs that the task names, sorted.
    ///
    /// # Errors
    /// Those that do not exist; paths are relative to the task.
    pub(super) fn resolve_secret_objects(
        &self,
        task: &TaskSpec,
    ) -> Result<Vec<SecretObjectVersion>, Violations> {
        let mut found = BTreeSet::new();
        let mut violations = Violations::default();
        for (path, kind, name) in named_secret_objects(task) {
            let Some(content) = self.secret_object_by_name(kind, name) else {
                let message =
                    format!("there is no {kind} {name}; create it with `warren {kind} create {name} FILE`");
                violations.add(path, message);
                continue;
            };
            let (id, number) = (content.id, content.current_version());
            found.insert(SecretObjectVersion { kind, name: name.clone(), id, number });
        }
        violations.into_result(found.into_iter().collect())
    }

    /// The versions of secrets and configs that the revision uses are still kept.
    pub(super) fn check_kept_versions(
        &self,
        service: &ServiceName,
        revision: &Revision,
    ) -> Result<(), Refusal> {
        let gone = |used: &&SecretObjectVersion| self.secret_object_data(&used.id, used.number).is_none();
        match revision.secret_objects.iter().find(gone).cloned() {
            None => Ok(()),
            Some(SecretObjectVersion { kind, name, number, .. }) => {
                let (service, revision) = (service.clone(), revision.number);
                Err(Refusal::SecretObjectVersionGone { service, revision, kind, name, number })
            }
        }
    }
}
