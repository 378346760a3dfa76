//! Admission: which services a user may run, change and enter by the policy of the cluster.

use std::sync::Arc;

use tonic::{Code, Request};
use warren_core::State;
use warren_core::state::previous_revision;
use warren_proto::Problem;
use warren_types::{AdmissionPolicy, Revision, Service, ServiceId, ServiceSpec, UserRole, Violations};

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
    let refused = with_policy(state, |policy| policy.violations(role, spec));
    not_admitted(spec, refused, "run")
}

/// Refuses a service that gives power over nodes, as it is or in an earlier revision, unless this role may run it.
///
/// # Errors
/// As [`check_admission`].
pub(super) fn check_service_admission(role: UserRole, state: &State, id: &ServiceId) -> Result<(), Problem> {
    let Some(service) = state.service(id) else { return Ok(()) };
    // Before the specs of its revisions are copied.
    if with_policy(state, |policy| policy.rules(role).is_none()) {
        return Ok(());
    }
    let check = |spec: &ServiceSpec| {
        let refused = with_policy(state, |policy| policy.privilege_violations(role, spec));
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
    let target: Option<&Arc<Revision>> = match revision {
        Some(number) => service.history.iter().find(|revision| revision.number == number),
        None => previous_revision(service),
    };
    target.map_or(Ok(()), |target| check_admission(role, state, &spec_of_revision(service, target)))
}

/// Refuses images of archives if the images of this role have to come from certain registries: an archive says itself
/// what the names of its images are.
///
/// # Errors
/// As [`check_admission`].
pub(super) fn check_import(role: UserRole, state: &State) -> Result<(), Problem> {
    let is_limited =
        |policy: &AdmissionPolicy| policy.rules(role).is_some_and(|rules| !rules.registries.is_empty());
    if !with_policy(state, is_limited) {
        return Ok(());
    }
    let message = "an archive is of none of the registries in operator.registries of the admission policy; only \
                   administrators may import it";
    Err(Problem::new(Code::PermissionDenied, "NOT_ADMITTED", message))
}

fn with_policy<T>(state: &State, read: impl FnOnce(&AdmissionPolicy) -> T) -> T {
    match state.cluster() {
        Some(cluster) => read(&cluster.settings.admission_policy),
        None => read(&AdmissionPolicy::default()),
    }
}

fn spec_of_revision(service: &Service, revision: &Revision) -> ServiceSpec {
    ServiceSpec { task: revision.task.clone(), ..(*service.spec).clone() }
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
