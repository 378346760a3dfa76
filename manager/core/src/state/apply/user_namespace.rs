//! The user namespace of the containers of a revision.

use warren_types::{TaskSpec, UserNamespace, Violations};

use crate::state::State;

/// What a new revision of the task gets: what it asks for, or the default of the cluster.
pub(super) fn choose(state: &State, task: &TaskSpec, violations: &mut Violations) -> UserNamespace {
    if let Some(asked) = task.user_namespace {
        return asked;
    }
    let default = state.cluster.as_ref().map(|cluster| cluster.settings.default_user_namespace);
    let default = default.unwrap_or_default();
    if default == UserNamespace::Private
        && let Some(reason) = task.private_users_conflict()
    {
        let message = format!(
            "the default of the cluster is private, which is not possible {reason}; an administrator can set host"
        );
        violations.add("spec.task.userNamespace", message);
    }
    default
}
