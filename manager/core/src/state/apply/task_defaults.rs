//! The defaults of the cluster that a new revision takes for what its task does not say.

use warren_types::{NoNewPrivileges, TaskSpec, UserNamespace, Violations};

use crate::state::State;

/// What a new revision records of the defaults.
#[derive(Clone, Copy)]
pub(super) struct TaskDefaults {
    /// See [`warren_types::Revision::user_namespace`].
    pub user_namespace: UserNamespace,
    /// See [`warren_types::Revision::default_no_new_privileges`].
    pub no_new_privileges: bool,
}

/// What a new revision of the task gets.
pub(super) fn choose(state: &State, task: &TaskSpec, violations: &mut Violations) -> TaskDefaults {
    let is_on = state.cluster.as_ref().is_some_and(|cluster| cluster.settings.no_new_privileges);
    TaskDefaults {
        user_namespace: user_namespace(state, task, violations),
        no_new_privileges: is_on && task.no_new_privileges == NoNewPrivileges::Default,
    }
}

/// What it asks for, or the default.
fn user_namespace(state: &State, task: &TaskSpec, violations: &mut Violations) -> UserNamespace {
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
