//! Secrets, configs and registry credentials. Their bytes are encrypted on arrival, and decrypted only for
//! permitted readers: the bytes of configs, and the user name of a credential.

use std::collections::BTreeMap;
use std::sync::Arc;

use tonic::{Code, Request, Response, Status};
use warren_core::state::ObjectKind;
use warren_core::{Command, State};
use warren_proto::convert::{check_secret_object_data, parse_field, secret_object_kind};
use warren_proto::status::Problem;
use warren_proto::v1::{self, secret_objects_server};
use warren_store::problem::{secret_object_unreadable, status_of};
use warren_types::secret_object::validate_registry_name;
use warren_types::spec::validate_labels;
use warren_types::{
    Login, SecretObject, SecretObjectId, SecretObjectKind, SecretObjectName, Timestamp, Violations,
};
use zeroize::Zeroize;

use super::Api;
use super::admission_policy::user_role;
use super::audited_call::AuditedCall;
use super::paging::Page;
use super::seccomp_profiles::check_profile_update;

/// A parsed create request without the bytes.
#[derive(Debug)]
pub(super) struct SecretObjectRequest {
    pub(super) id: SecretObjectId,
    pub(super) kind: SecretObjectKind,
    pub(super) name: SecretObjectName,
    pub(super) labels: BTreeMap<String, String>,
}

impl SecretObjectRequest {
    pub(super) fn parse(request: &v1::CreateSecretObjectRequest) -> Result<Self, Violations> {
        let v1::CreateSecretObjectRequest { id, kind, name, labels, data } = request;
        let mut wrong = Violations::default();
        let id = parse_field("id", id).map_err(|inner| wrong.0.extend(inner.0)).ok();
        let kind = secret_object_kind(*kind).map_err(|inner| wrong.nest("kind", inner)).ok();
        let name: Option<SecretObjectName> =
            parse_field("name", name).map_err(|inner| wrong.0.extend(inner.0)).ok();
        if let (Some(SecretObjectKind::Credential), Some(name)) = (kind, &name)
            && let Err(why) = validate_registry_name(name)
        {
            wrong.add("name", format!("{name} {why}"));
        }
        validate_labels(labels, &mut wrong);
        if let Err(violation) = check_secret_object_data(kind, data) {
            wrong.0.push(violation);
        }
        let parsed = || Some(Self { id: id?, kind: kind?, name: name?, labels: labels.clone() });
        let parsed = wrong.into_result(parsed())?;
        Ok(parsed.expect("missing fields are violations"))
    }
}

/// The kind named in a request.
pub(super) fn parse_kind(wire: i32) -> Result<SecretObjectKind, Problem> {
    secret_object_kind(wire).map_err(|inner| {
        let mut wrong = Violations::default();
        wrong.nest("kind", inner);
        wrong.into()
    })
}

fn not_readable(kind: SecretObjectKind) -> Status {
    let message = format!("{kind} values cannot be read back; only tasks that use the {kind} receive them");
    Problem::new(Code::PermissionDenied, "SECRET_NOT_READABLE", message).into()
}

fn version_not_kept(object: &SecretObject, number: u64) -> Status {
    let SecretObject { kind, name, versions, .. } = object;
    let kept: Vec<String> = versions.keys().map(ToString::to_string).collect();
    let message = format!("{kind} {name} has no version {number}; available: {}", kept.join(", "));
    Problem::new(Code::NotFound, "SECRET_OBJECT_VERSION_NOT_FOUND", message).into()
}

impl Api {
    /// The object without its bytes, with the names of the services that use it.
    fn show_secret_object(&self, state: &State, object: &SecretObject) -> v1::SecretObject {
        let mut services: Vec<String> =
            state.secret_object_users(&object.id).map(|service| service.spec.name.to_string()).collect();
        services.sort_unstable();
        let (user, token_only) = self.credential_user(object).unwrap_or_default();
        v1::SecretObject { services, user, token_only, ..object.into() }
    }

    /// The user name of a credential, and whether nodes never get its password.
    fn credential_user(&self, object: &SecretObject) -> Option<(String, bool)> {
        let (_, newest) =
            object.versions.last_key_value().filter(|_| object.kind == SecretObjectKind::Credential)?;
        let opened = self.secret_object_key.open(object.id, newest);
        // The failure is logged; the other fields are shown anyway.
        let opened = opened.map_err(|error| secret_object_unreadable(object.id, &error)).ok()?;
        let mut login = Login::from_data(&opened).ok()?;
        login.password.zeroize();
        Some((login.user, login.is_token_only))
    }

    /// Logs a write and returns the object as the write left it.
    fn log_and_show(
        &self,
        caller: &AuditedCall,
        object: &SecretObject,
        what: &str,
    ) -> Response<v1::SecretObject> {
        let SecretObject { id, kind, name, .. } = object;
        caller.identified(ObjectKind::SecretObject(*kind), id, name, object.version);
        tracing::info!(%caller, object = %id, %name, number = object.current_version(), "{kind} {what}");
        Response::new(self.show_secret_object(&self.store.read().state, object))
    }
}

#[tonic::async_trait]
impl secret_objects_server::SecretObjects for Api {
    async fn create(
        &self,
        request: Request<v1::CreateSecretObjectRequest>,
    ) -> Result<Response<v1::SecretObject>, Status> {
        let caller = AuditedCall::of(&request);
        let SecretObjectRequest { id, kind, name, labels } =
            SecretObjectRequest::parse(request.get_ref()).map_err(status_of)?;
        caller.named(ObjectKind::SecretObject(kind), name.as_str());
        let data = self.secret_object_key.seal(id, &request.get_ref().data);
        let at: Timestamp = self.clock.now();
        let command = Command::CreateSecretObject { id, kind, name, labels, data, at };
        let created: Arc<SecretObject> = self.write(command).await?;
        Ok(self.log_and_show(&caller, &created, "created"))
    }

    async fn update(
        &self,
        request: Request<v1::UpdateSecretObjectRequest>,
    ) -> Result<Response<v1::SecretObject>, Status> {
        let (caller, role) = (AuditedCall::of(&request), user_role(&request));
        let v1::UpdateSecretObjectRequest { kind, reference, version, data } = request.get_ref();
        let kind = parse_kind(*kind)?;
        caller.named(ObjectKind::SecretObject(kind), reference);
        check_secret_object_data(Some(kind), data).map_err(status_of)?;
        let published = self.read_latest().await?;
        let object = published.state.find_secret_object(kind, reference).map_err(status_of)?;
        check_profile_update(role, &published.state, object, data)?;
        let id = object.id;
        let data = self.secret_object_key.seal(id, data);
        let command = Command::UpdateSecretObject { id, version: *version, data, at: self.clock.now() };
        let updated: Arc<SecretObject> = self.write(command).await?;
        Ok(self.log_and_show(&caller, &updated, "updated"))
    }

    async fn get(
        &self,
        request: Request<v1::SecretObjectReference>,
    ) -> Result<Response<v1::SecretObject>, Status> {
        let v1::SecretObjectReference { kind, reference } = request.get_ref();
        let published = self.read(&request).await?;
        let content = published.state.find_secret_object(parse_kind(*kind)?, reference).map_err(status_of)?;
        Ok(Response::new(self.show_secret_object(&published.state, content)))
    }

    async fn read(
        &self,
        request: Request<v1::ReadSecretObjectRequest>,
    ) -> Result<Response<v1::SecretObjectData>, Status> {
        let v1::ReadSecretObjectRequest { kind, reference, version_number } = request.get_ref();
        let kind = parse_kind(*kind)?;
        let call = AuditedCall::of(&request);
        call.named(ObjectKind::SecretObject(kind), reference);
        if kind != SecretObjectKind::Config {
            return Err(not_readable(kind));
        }
        let published = self.read(&request).await?;
        let object = published.state.find_secret_object(kind, reference).map_err(status_of)?;
        call.identified(ObjectKind::SecretObject(kind), object.id, &object.name, object.version);
        let version_number = version_number.unwrap_or_else(|| object.current_version());
        let sealed =
            object.versions.get(&version_number).ok_or_else(|| version_not_kept(object, version_number))?;
        let opened = self.secret_object_key.open(object.id, sealed);
        let opened = opened.map_err(|error| secret_object_unreadable(object.id, &error))?;
        Ok(Response::new(v1::SecretObjectData { version_number, data: opened.to_vec().into() }))
    }

    async fn list(
        &self,
        request: Request<v1::ListSecretObjectsRequest>,
    ) -> Result<Response<v1::ListSecretObjectsResponse>, Status> {
        let v1::ListSecretObjectsRequest { kind, page_size, page_token } = request.get_ref();
        let kind = parse_kind(*kind)?;
        let page = Page::<SecretObjectName>::parse(*page_size, page_token)?;
        let published = self.read(&request).await?;
        let later = published.state.secret_objects_after(kind, page.after.as_ref());
        let (secret_objects, next_page_token) = page.cut(later, |object| object.name.clone());
        let secret_objects =
            secret_objects.iter().map(|object| self.show_secret_object(&published.state, object)).collect();
        Ok(Response::new(v1::ListSecretObjectsResponse { secret_objects, next_page_token }))
    }

    async fn remove(
        &self,
        request: Request<v1::SecretObjectReference>,
    ) -> Result<Response<v1::SecretObject>, Status> {
        let caller = AuditedCall::of(&request);
        let v1::SecretObjectReference { kind, reference } = request.get_ref();
        let (published, kind) = (self.read_latest().await?, parse_kind(*kind)?);
        caller.named(ObjectKind::SecretObject(kind), reference);
        let id = published.state.find_secret_object(kind, reference).map_err(status_of)?.id;
        let removed: Arc<SecretObject> =
            self.write(Command::RemoveSecretObject { id, at: self.clock.now() }).await?;
        Ok(self.log_and_show(&caller, &removed, "removed"))
    }
}

#[cfg(test)]
mod tests {
    use warren_types::Violation;

    use super::*;

    fn valid_request() -> v1::CreateSecretObjectRequest {
        v1::CreateSecretObjectRequest {
            id: "0".repeat(25),
            kind: v1::SecretObjectKind::Secret.into(),
            name: "db".into(),
            labels: BTreeMap::new(),
            data: vec![7; 32].into(),
        }
    }

    #[track_caller]
    fn assert_rejected(request: v1::CreateSecretObjectRequest, expected: &[&str]) -> Vec<Violation> {
        let wrong = SecretObjectRequest::parse(&request).unwrap_err().0;
        assert_eq!(wrong.iter().map(|violation| violation.path.as_str()).collect::<Vec<_>>(), expected);
        wrong
    }

    #[test]
    fn create_with_invalid_fields_names_each() {
        assert_eq!(SecretObjectRequest::parse(&valid_request()).unwrap().kind, SecretObjectKind::Secret);
        let labels = BTreeMap::from([("no key".to_owned(), String::new())]);
        let wrong = v1::CreateSecretObjectRequest {
            id: "!".into(),
            kind: 9,
            name: "a b".into(),
            labels,
            data: Default::default(),
        };
        assert_rejected(wrong, &["id", "kind", "name", "labels[\"no key\"]", "data"]);
        let large = v1::CreateSecretObjectRequest { data: vec![0; (1 << 20) + 1].into(), ..valid_request() };
        let wrong = assert_rejected(large, &["data"]);
        assert!(wrong[0].message.contains("has 1048577 bytes"), "{wrong:?}");
        let most = v1::CreateSecretObjectRequest { data: vec![0; 1 << 20].into(), ..valid_request() };
        assert!(SecretObjectRequest::parse(&most).is_ok());
    }

    #[test]
    fn credential_requires_registry_login() {
        let login = |name: &str, data: &'static [u8]| v1::CreateSecretObjectRequest {
            kind: v1::SecretObjectKind::Credential.into(),
            name: name.into(),
            data: data.into(),
            ..valid_request()
        };
        assert!(SecretObjectRequest::parse(&login("registry.lan:5000", b"ann\nhunter2")).is_ok());
        let wrong = assert_rejected(login("Registry", b"hunter2"), &["name", "data"]);
        assert!(!format!("{wrong:?}").contains("hunter2"), "{wrong:?}");
    }
}
