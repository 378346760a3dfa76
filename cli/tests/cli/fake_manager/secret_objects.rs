//! Secrets, configs and credentials, in the clear. What a service names is used by it.

use tonic::{Code, Request, Response, Status};
use warren_proto::convert::check_secret_object_data;
use warren_proto::{Problem, v1};
use warren_types::Login;

use super::{FakeApi, FakeState};

/// A content with every version of its bytes.
pub struct StoredSecretObject {
    pub object: v1::SecretObject,
    pub versions: Vec<Vec<u8>>,
}

fn missing(kind: v1::SecretObjectKind, reference: &str) -> Status {
    super::missing(kind_name(kind), reference)
}

fn kind_name(kind: v1::SecretObjectKind) -> &'static str {
    match kind {
        v1::SecretObjectKind::Secret => "secret",
        v1::SecretObjectKind::Config => "config",
        _ => "registry credential",
    }
}

fn check(data: &[u8]) -> Result<(), Status> {
    check_secret_object_data(None, data)
        .map_err(|wrong| Problem::from(warren_types::Violations::from(wrong)).into())
}

/// Of a credential: the user, and whether nodes never get the password.
fn user(kind: v1::SecretObjectKind, data: &[u8]) -> (String, bool) {
    match Login::from_data(data) {
        Ok(login) if kind == v1::SecretObjectKind::Credential => (login.user, login.is_token_only),
        _ => Default::default(),
    }
}

impl FakeState {
    fn stored(
        &mut self,
        kind: v1::SecretObjectKind,
        reference: &str,
    ) -> Result<&mut StoredSecretObject, Status> {
        let known = |held: &&mut StoredSecretObject| {
            held.object.kind() == kind && (held.object.name == reference || held.object.id == reference)
        };
        self.contents.iter_mut().find(known).ok_or_else(|| missing(kind, reference))
    }

    /// Names of the services that use it.
    fn users_of(&self, content: &v1::SecretObject) -> Vec<String> {
        let uses = |service: &&v1::Service| {
            let task = service.spec.as_ref().unwrap().task.as_ref().unwrap();
            let mounts =
                if content.kind() == v1::SecretObjectKind::Secret { &task.secrets } else { &task.configs };
            mounts.iter().any(|mount| mount.source == content.name)
        };
        let services = self.services.values().filter(uses);
        services.map(|service| service.spec.as_ref().unwrap().name.clone()).collect()
    }

    fn with_service_names(&self, content: v1::SecretObject) -> v1::SecretObject {
        v1::SecretObject { services: self.users_of(&content), ..content }
    }
}

#[tonic::async_trait]
impl v1::secret_objects_server::SecretObjects for FakeApi {
    async fn create(
        &self,
        request: Request<v1::CreateSecretObjectRequest>,
    ) -> Result<Response<v1::SecretObject>, Status> {
        let request = request.into_inner();
        let kind = request.kind();
        let v1::CreateSecretObjectRequest { id, kind: number, name, labels, data } = request;
        check(&data)?;
        let mut state = self.0.lock().unwrap();
        if state.stored(kind, &name).is_ok() {
            let message = format!("there is a {} {name} already", kind_name(kind));
            return Err(Problem::new(Code::AlreadyExists, "ALREADY_EXISTS", message).into());
        }
        let (user, token_only) = user(kind, &data);
        let content = v1::SecretObject {
            id,
            kind: number,
            name,
            labels,
            version: 1,
            version_number: 1,
            size: u32::try_from(data.len()).unwrap(),
            stored_versions: vec![1],
            user,
            token_only,
            ..Default::default()
        };
        state.contents.push(StoredSecretObject { object: content.clone(), versions: vec![data.to_vec()] });
        Ok(Response::new(content))
    }

    async fn update(
        &self,
        request: Request<v1::UpdateSecretObjectRequest>,
    ) -> Result<Response<v1::SecretObject>, Status> {
        let request = request.into_inner();
        let kind = request.kind();
        check(&request.data)?;
        let mut state = self.0.lock().unwrap();
        let StoredSecretObject { object, versions } = state.stored(kind, &request.reference)?;
        if versions.last().is_none_or(|last| *last != request.data) {
            versions.push(request.data.to_vec());
            object.version_number += 1;
            object.version += 1;
            object.stored_versions.push(object.version_number);
            object.size = u32::try_from(request.data.len()).unwrap();
            (object.user, object.token_only) = user(kind, &request.data);
        }
        let object = object.clone();
        Ok(Response::new(state.with_service_names(object)))
    }

    async fn get(
        &self,
        request: Request<v1::SecretObjectReference>,
    ) -> Result<Response<v1::SecretObject>, Status> {
        let request = request.into_inner();
        let mut state = self.0.lock().unwrap();
        let content = state.stored(request.kind(), &request.reference)?.object.clone();
        Ok(Response::new(state.with_service_names(content)))
    }

    async fn read(
        &self,
        request: Request<v1::ReadSecretObjectRequest>,
    ) -> Result<Response<v1::SecretObjectData>, Status> {
        let request = request.into_inner();
        if request.kind() != v1::SecretObjectKind::Config {
            return Err(Problem::new(Code::PermissionDenied, "SECRET", "it is never shown").into());
        }
        let mut state = self.0.lock().unwrap();
        let StoredSecretObject { object, versions } = state.stored(request.kind(), &request.reference)?;
        let version_number = request.version_number.unwrap_or(object.version_number);
        let data = versions[usize::try_from(version_number).unwrap() - 1].clone().into();
        Ok(Response::new(v1::SecretObjectData { version_number, data }))
    }

    async fn list(
        &self,
        request: Request<v1::ListSecretObjectsRequest>,
    ) -> Result<Response<v1::ListSecretObjectsResponse>, Status> {
        let kind = request.into_inner().kind;
        let state = self.0.lock().unwrap();
        let of_kind = state.contents.iter().filter(|held| held.object.kind == kind);
        let secret_objects = of_kind.map(|held| state.with_service_names(held.object.clone())).collect();
        Ok(Response::new(v1::ListSecretObjectsResponse { secret_objects, next_page_token: String::new() }))
    }

    async fn remove(
        &self,
        request: Request<v1::SecretObjectReference>,
    ) -> Result<Response<v1::SecretObject>, Status> {
        let request = request.into_inner();
        let mut state = self.0.lock().unwrap();
        let content = state.stored(request.kind(), &request.reference)?.object.clone();
        let users = state.users_of(&content);
        if !users.is_empty() {
            let what = kind_name(request.kind());
            let message = format!("{what} {} is used by {}", content.name, users.join(", "));
            return Err(Problem::new(Code::FailedPrecondition, "SECRET_OBJECT_IN_USE", message).into());
        }
        state.contents.retain(|held| held.object.id != content.id);
        Ok(Response::new(content))
    }
}
