//! Admission: which services a user may run, change and enter by the policy of the cluster. The signatures of images,
//! which it demands of everybody, are checked in `images/signatures.rs`.

use std::sync::Arc;

use tonic::{Code, Request};
use warren_core::State;
use warren_core::state::previous_revision;
use warren_proto::Problem;
use warren_types::{
    ClusterSettings, NoNewPrivileges, Revision, Service, ServiceId, ServiceSpec, UserNamespace, UserRole,
    Violations,
};

use super::methods::CallerRole;

/// The role of the user that calls.
pub(super) fn user_role<T>(request: &Request<T>) -> UserRole {
    match request.extensions().get::<CallerRole>() {
        Some(CallerRole::User(role)) => *role,
        // Other callers are admitted to no method of users.
        _ => UserRole::Viewer,
    }
}

/// Refuses a spec that this role may not run.
///
/// # Errors
/// `PermissionDenied`, reason `NOT_ADMITTED`.
pub(super) fn check_admission(role: UserRole, state: &State, spec: &ServiceSpec) -> Result<(), Problem> {
    let refused = with_settings(state, |settings| {
        let mut refused = settings.admission_policy.violations(role, spec);
        check_defaults(role, settings, spec, &mut refused);
        refused
    });
    not_admitted(spec, refused, "run")
}

/// Refuses a service that gives power over nodes, as it is or in an earlier revision, unless this role may run it. What
/// is weaker by an earlier default is no such service: its next change takes the default of now.
///
/// # Errors
/// As [`check_admission`].
pub(super) fn check_service_admission(role: UserRole, state: &State, id: &ServiceId) -> Result<(), Problem> {
    let Some(service) = state.service(id) else { return Ok(()) };
    // Before the specs of its revisions are copied.
    if role == UserRole::Admin {
        return Ok(());
    }
    let check = |spec: &ServiceSpec| {
        let refused = with_settings(state, |settings| {
            let mut refused = settings.admission_policy.privilege_violations(role, spec);
            check_defaults(role, settings, spec, &mut refused);
            refused
        });
        not_admitted(spec, refused, "run, change or enter")
    };
    check(&service.spec)?;
    // It keeps every revision that a task has.
    service.history.iter().try_for_each(|revision| check(&spec_of_revision(service, revision)))
}

/// Refuses a rollback to a revision that this role may not run.
///
/// # Errors
/// As [`check_admission`].
pub(super) fn check_rollback(
    role: UserRole,
    state: &State,
    service: &Service,
    revision: Option<u64>,
) -> Result<(), Problem> {
    let target = rollback_target(service, revision);
    target.map_or(Ok(()), |target| check_admission(role, state, &spec_of_rollback(service, target)))
}

/// The revision that a rollback makes the current one: of that number, or the previous one.
pub(super) fn rollback_target(service: &Service, revision: Option<u64>) -> Option<&Arc<Revision>> {
    match revision {
        Some(number) => service.history.iter().find(|revision| revision.number == number),
        None => previous_revision(service),
    }
}

/// Refuses images of archives if the images of this role have to come from certain registries: an archive says itself
/// what the names of its images are.
///
/// # Errors
/// As [`check_admission`].
pub(super) fn check_import(role: UserRole, state: &State) -> Result<(), Problem> {
    let is_limited = |settings: &ClusterSettings| {
        settings.admission_policy.rules(role).is_some_and(|rules| !rules.registries.is_empty())
    };
    if !with_settings(state, is_limited) {
        return Ok(());
    }
    let message = "an archive is of none of the registries in operator.registries of the admission policy; only \
                   administrators may import it";
    Err(Problem::new(Code::PermissionDenied, "NOT_ADMITTED", message))
}

fn with_settings<T>(state: &State, read: impl FnOnce(&ClusterSettings) -> T) -> T {
    match state.cluster() {
        Some(cluster) => read(&cluster.settings),
        None => read(&ClusterSettings::default()),
    }
}

/// Only administrators choose what is weaker than a default of the cluster: the users of the node while it is private,
/// and new privileges while it is without.
fn check_defaults(role: UserRole, settings: &ClusterSettings, spec: &ServiceSpec, refused: &mut Violations) {
    if role == UserRole::Admin {
        return;
    }
    let is_private = settings.default_user_namespace == UserNamespace::Private;
    if is_private && spec.task.user_namespace == Some(UserNamespace::Host) {
        refused.add("task.userNamespace", "is host, and the default of the cluster is private");
    }
    if settings.no_new_privileges && spec.task.no_new_privileges == NoNewPrivileges::Off {
        refused.add("task.noNewPrivileges", "is false, and the default of the cluster is on");
    }
}

fn spec_of_revision(service: &Service, revision: &Revision) -> ServiceSpec {
    ServiceSpec { task: revision.task.clone(), ..(*service.spec).clone() }
}

/// As [`spec_of_revision`], with what the revision got when the defaults may have been others: a rollback gives it the
/// same again.
fn spec_of_rollback(service: &Service, target: &Revision) -> ServiceSpec {
    let mut spec = spec_of_revision(service, target);
    spec.task.user_namespace = Some(target.user_namespace);
    if spec.task.no_new_privileges == NoNewPrivileges::Default {
        spec.task.no_new_privileges = target.default_no_new_privileges.into();
    }
    spec
}

fn not_admitted(spec: &ServiceSpec, refused: Violations, action: &str) -> Result<(), Problem> {
    if refused.0.is_empty() {
        return Ok(());
    }
    let message = format!(
        "service {}: {refused}; only administrators may {action} such services; see `warren cluster policy show`",
        spec.name
    );
    Err(Problem { violations: refused, ..Problem::new(Code::PermissionDenied, "NOT_ADMITTED", message) })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use warren_types::{Id, Placement, RolloutRecord, TaskSpec, Timestamp};

    #[test]
    fn operators_may_not_leave_a_private_default() {
        let task = TaskSpec::new("nginx:1.27".parse().unwrap());
        let mut spec = ServiceSpec::new("web".parse().unwrap(), task);
        for (asked, default, is_admitted) in [
            (None, UserNamespace::Private, true),
            (Some(UserNamespace::Private), UserNamespace::Private, true),
            (Some(UserNamespace::Host), UserNamespace::Host, true),
            (Some(UserNamespace::Host), UserNamespace::Private, false),
        ] {
            spec.task.user_namespace = asked;
            let settings = ClusterSettings { default_user_namespace: default, ..ClusterSettings::default() };
            for (role, is_admitted) in [(UserRole::Operator, is_admitted), (UserRole::Admin, true)] {
                let mut refused = Violations::default();
                check_defaults(role, &settings, &spec, &mut refused);
                assert_eq!(refused.0.is_empty(), is_admitted, "{asked:?} {default:?}: {refused}");
            }
        }
    }

    #[test]
    fn operators_do_not_leave_a_private_default_by_a_rollback() {
        let spec = ServiceSpec::new("web".parse().unwrap(), TaskSpec::new("nginx:1.27".parse().unwrap()));
        let revision = |number, user_namespace| Revision {
            number,
            created_at: Timestamp(0),
            task: spec.task.clone(),
            ports: Vec::new(),
            placement: Placement::default(),
            force_count: 0,
            secret_objects: Vec::new(),
            labels: BTreeMap::new(),
            user_namespace,
            default_no_new_privileges: user_namespace == UserNamespace::Private,
        };
        // The default was another one at that time.
        let service = Service {
            id: ServiceId(Id(1)),
            version: 1,
            created_at: Timestamp(0),
            updated_at: Timestamp(0),
            spec: Arc::new(spec.clone()),
            revision: Arc::new(revision(3, UserNamespace::Private)),
            history: vec![
                Arc::new(revision(1, UserNamespace::Host)),
                Arc::new(revision(2, UserNamespace::Private)),
            ],
            pins: BTreeMap::new(),
            removing: false,
            next_task_number: 1,
            rollout: RolloutRecord::default(),
            virtual_addresses: BTreeMap::new(),
        };
        let violations = |role, default_user_namespace, target| {
            let settings = ClusterSettings { default_user_namespace, ..ClusterSettings::default() };
            let mut refused = Violations::default();
            check_defaults(role, &settings, &spec_of_rollback(&service, target), &mut refused);
            refused.0.len()
        };
        let (host, private) = (&*service.history[0], &*service.history[1]);
        assert_eq!(violations(UserRole::Operator, UserNamespace::Private, host), 1);
        assert_eq!(violations(UserRole::Operator, UserNamespace::Private, private), 0);
        assert_eq!(violations(UserRole::Operator, UserNamespace::Host, host), 0);
        assert_eq!(violations(UserRole::Admin, UserNamespace::Private, host), 0);
        let settings = ClusterSettings { no_new_privileges: true, ..ClusterSettings::default() };
        for (target, expected) in [(host, 1), (private, 0)] {
            let mut refused = Violations::default();
            check_defaults(UserRole::Operator, &settings, &spec_of_rollback(&service, target), &mut refused);
            assert_eq!(refused.0.len(), expected, "{refused}");
        }
    }

    #[test]
    fn operators_may_not_allow_what_the_default_prevents() {
        let task = TaskSpec::new("nginx:1.27".parse().unwrap());
        let mut spec = ServiceSpec::new("web".parse().unwrap(), task);
        for (asked, is_on, is_admitted) in [
            (NoNewPrivileges::Default, true, true),
            (NoNewPrivileges::On, true, true),
            (NoNewPrivileges::Off, false, true),
            (NoNewPrivileges::Off, true, false),
        ] {
            spec.task.no_new_privileges = asked;
            let settings = ClusterSettings { no_new_privileges: is_on, ..ClusterSettings::default() };
            for (role, is_admitted) in [(UserRole::Operator, is_admitted), (UserRole::Admin, true)] {
                let mut refused = Violations::default();
                check_defaults(role, &settings, &spec, &mut refused);
                assert_eq!(refused.0.is_empty(), is_admitted, "{asked:?} {is_on}: {refused}");
            }
        }
    }
}
