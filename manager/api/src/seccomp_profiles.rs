//! Seccomp profiles in configs: a service names only configs that have one, and such a config keeps one. Nodes check it
//! again.

use tonic::Code;
use warren_core::State;
use warren_proto::Problem;
use warren_types::{
    SeccompProfile, SecretObject, SecretObjectKind, ServiceSpec, UserRole, Violation, Violations,
};

use super::Api;
use super::admission_policy::check_service_admission;

impl Api {
    /// Refuses a spec that names a config without a valid profile. The write refuses a config that does not exist.
    ///
    /// # Errors
    /// `InvalidArgument`; `DataLoss` if the config cannot be decrypted.
    pub(super) fn check_seccomp_profile(&self, state: &State, spec: &ServiceSpec) -> Result<(), Problem> {
        let name = spec.task.seccomp.config();
        let config = name.and_then(|name| state.secret_object_by_name(SecretObjectKind::Config, name));
        let newest = config.and_then(|config| Some((config, config.versions.last_key_value()?.1)));
        let Some((config, sealed)) = newest else { return Ok(()) };
        let json = self.secret_object_key.open(config.id, sealed).map_err(|error| {
            let message = format!("config {}: {error}", config.name);
            Problem::new(Code::DataLoss, "SECRET_OBJECT_UNREADABLE", message)
        })?;
        check_profile("spec.task.seccomp", config, &json)
    }
}

/// Refuses data that makes a profile of services invalid, and changes of a profile of a service that this role may not
/// change.
///
/// # Errors
/// `InvalidArgument`; `PermissionDenied`, reason `NOT_ADMITTED`.
pub(super) fn check_profile_update(
    role: UserRole,
    state: &State,
    object: &SecretObject,
    data: &[u8],
) -> Result<(), Problem> {
    if object.kind != SecretObjectKind::Config {
        return Ok(());
    }
    let users = state.secret_object_users(&object.id);
    let mut restricted =
        users.filter(|user| user.spec.task.seccomp.config() == Some(&object.name)).peekable();
    if restricted.peek().is_some() {
        check_profile("data", object, data)?;
    }
    restricted.try_for_each(|service| check_service_admission(role, state, &service.id))
}

fn check_profile(path: &str, config: &SecretObject, json: &[u8]) -> Result<(), Problem> {
    let checked = SeccompProfile::parse(json).map(drop);
    checked.map_err(|wrong| {
        let message = format!("the seccomp profile in config {}: {wrong}", config.name);
        Violations::from(Violation::new(path, message)).into()
    })
}
