//! Admission: what services of operators may not do. Each of these fields gives power over the node.

use tonic::{Code, Request, Status};
use warren_core::State;
use warren_proto::Problem;
use warren_types::{ServiceId, ServiceSpec, UserRole};

use super::methods::CallerRole;

/// The role of the user that calls.
pub(super) fn user_role<T>(request: &Request<T>) -> UserRole {
    match request.extensions().get::<CallerRole>() {
        Some(CallerRole::User(role)) => *role,
        // Other callers are admitted to no method of users.
        _ => UserRole::Viewer,
    }
}

/// Refuses a spec that this role may not run, or change, or enter.
///
/// # Errors
/// `PermissionDenied`, reason `NOT_ADMITTED`.
pub(super) fn check_admission(role: UserRole, spec: &ServiceSpec) -> Result<(), Status> {
    if role == UserRole::Admin {
        return Ok(());
    }
    let fields = spec.administrator_fields();
    if fields.is_empty() {
        return Ok(());
    }
    let message = format!(
        "service {} sets {}, which gives power over nodes; only administrators may run, change or enter such services",
        spec.name,
        fields.join(", ")
    );
    Err(Problem::new(Code::PermissionDenied, "NOT_ADMITTED", message).into())
}

/// As [`check_admission`], for the service as it is, and for an earlier revision of it.
///
/// # Errors
/// As [`check_admission`].
pub(super) fn check_service_admission(role: UserRole, state: &State, id: &ServiceId) -> Result<(), Status> {
    let Some(service) = state.service(id) else { return Ok(()) };
    check_admission(role, &service.spec)?;
    // It keeps every revision that a task has.
    service.history.iter().try_for_each(|revision| {
        let mut earlier = (*service.spec).clone();
        earlier.task = revision.task.clone();
        check_admission(role, &earlier)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_types::spec::{Device, Mount, MountSource};
    use warren_types::{Seccomp, TaskNetworkMode, TaskSpec};

    #[test]
    fn fields_with_power_over_nodes_are_for_administrators() {
        let task = TaskSpec::new("nginx:1.27".parse().unwrap());
        let plain = ServiceSpec::new("web".parse().unwrap(), task);
        let changes: [fn(&mut ServiceSpec); 9] = [
            |spec| spec.task.privileged = true,
            |spec| spec.task.cap_add = vec!["NET_ADMIN".parse().unwrap()],
            |spec| spec.task.seccomp = Seccomp::Unconfined,
            |spec| spec.task.network = TaskNetworkMode::Host,
            |spec| spec.task.allow_metadata = true,
            |spec| spec.bootstrap = true,
            |spec| spec.task.oom_score_adj = Some(-1),
            |spec| {
                let access = "r".parse().unwrap();
                spec.task.devices =
                    vec![Device { source: "/dev/kvm".into(), target: "/dev/kvm".into(), access }];
            },
            |spec| {
                let source = MountSource::Bind {
                    path: "/srv".into(),
                    propagation: Default::default(),
                    recursive: false,
                };
                spec.task.mounts = vec![Mount { target: "/srv".into(), source, read_only: true }];
            },
        ];
        check_admission(UserRole::Operator, &plain).unwrap();
        for change in changes {
            let mut spec = plain.clone();
            change(&mut spec);
            let refused = check_admission(UserRole::Operator, &spec).unwrap_err();
            assert_eq!(refused.code(), Code::PermissionDenied);
            check_admission(UserRole::Admin, &spec).unwrap();
        }
    }
}
