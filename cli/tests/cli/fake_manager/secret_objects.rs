//! Secrets, configs and credentials, in the clear. What a service names is used by it.

use tonic::{Code, Request, Response, Status};
use warren_proto::convert::check_secret_object_data;
use warren_proto::{Problem, v1};

use super::{FakeApi, FakeState};

/// A content with every version of its bytes.
pub struct StoredSecretObject {
    pub object: v1::Content,
    pub versions: Vec<Vec<u8>>,
}

fn missing(kind: v1::ContentKind, reference: &str) -> Status {
    super::missing(kind_name(kind), reference)
}

fn kind_name(kind: v1::ContentKind) -> &'static str {
    match kind {
        v1::ContentKind::Secret => "secret",
        v1::ContentKind::Config => "config",
        _ => "registry credential",
    }
}

fn check(data: &[u8]) -> Result<(), Status> {
    check_secret_object_data(None, data)
        .map_err(|wrong| Problem::from(warren_types::Violations::from(wrong)).into())
}

/// Of a credential: the user.
fn user(kind: v1::ContentKind, data: &[u8]) -> String {
    let text = String::from_utf8_lossy(data);
    let user = text.split_once('\n').map(|(user, _)| user.to_owned());
    user.filter(|_| kind == v1::ContentKind::Credential).unwrap_or_default()
}

impl FakeState {
    fn stored(&mut self, kind: v1::ContentKind, reference: &str) -> Result<&mut StoredSecretObject, Status> {
        let known = |held: &&mut StoredSecretObject| {
            held.object.kind() == kind && (held.object.name == reference || held.object.id == reference)
        };
        self.contents.iter_mut().find(known).ok_or_else(|| missing(kind, reference))
    }

    /// Names of the services that use it.
    fn users_of(&self, content: &v1::Content) -> Vec<String> {
        let uses = |service: &&v1::Service| {
            let task = service.spec.as_ref().unwrap().task.as_ref().unwrap();
            let mounts =
                if content.kind() == v1::ContentKind::Secret { &task.secrets } else { &task.configs };
            mounts.iter().any(|mount| mount.source == content.name)
        };
        let services = self.services.values().filter(uses);
        services.map(|service| service.spec.as_ref().unwrap().name.clone()).collect()
    }

    fn with_service_names(&self, content: v1::Content) -> v1::Content {
        v1::Content { services: self.users_of(&content), ..content }
    }
}

#[tonic::async_trait]
impl v1::contents_server::Contents for FakeApi {
    async fn create(
        &self,
        request: Request<v1::CreateContentRequest>,
    ) -> Result<Response<v1::Content>, Status> {
        let request = request.into_inner();
        let kind = request.kind();
        let v1::CreateContentRequest { id, kind: number, name, labels, data } = request;
        check(&data)?;
        let mut state = self.0.lock().unwrap();
        if state.stored(kind, &name).is_ok() {
            let message = format!("there is a {} {name} already", kind_name(kind));
            return Err(Problem::new(Code::AlreadyExists, "ALREADY_EXISTS", message).into());
        }
        let content = v1::Content {
            id,
            kind: number,
            name,
            labels,
            version: 1,
            number: 1,
            size: u32::try_from(data.len()).unwrap(),
            kept: vec![1],
            user: user(kind, &data),
            ..Default::default()
        };
        state.contents.push(StoredSecretObject { object: content.clone(), versions: vec![data.to_vec()] });
        Ok(Response::new(content))
    }

    async fn update(
        &self,
        request: Request<v1::UpdateContentRequest>,
    ) -> Result<Response<v1::Content>, Status> {
        let request = request.into_inner();
        let kind = request.kind();
        check(&request.data)?;
        let mut state = self.0.lock().unwrap();
        let StoredSecretObject { object: content, versions } = state.stored(kind, &request.reference)?;
        if versions.last().is_none_or(|last| *last != request.data) {
            versions.push(request.data.to_vec());
            content.number += 1;
            content.version += 1;
            content.kept.push(content.number);
            content.size = u32::try_from(request.data.len()).unwrap();
            content.user = user(kind, &request.data);
        }
        let content = content.clone();
        Ok(Response::new(state.with_service_names(content)))
    }

    async fn get(&self, request: Request<v1::ContentReference>) -> Result<Response<v1::Content>, Status> {
        let request = request.into_inner();
        let mut state = self.0.lock().unwrap();
        let content = state.stored(request.kind(), &request.reference)?.object.clone();
        Ok(Response::new(state.with_service_names(content)))
    }

    async fn read(
        &self,
        request: Request<v1::ReadContentRequest>,
    ) -> Result<Response<v1::ContentBytes>, Status> {
        let request = request.into_inner();
        if request.kind() != v1::ContentKind::Config {
            return Err(Problem::new(Code::PermissionDenied, "SECRET", "it is never shown").into());
        }
        let mut state = self.0.lock().unwrap();
        let StoredSecretObject { object: content, versions } =
            state.stored(request.kind(), &request.reference)?;
        let number = request.number.unwrap_or(content.number);
        let data = versions[usize::try_from(number).unwrap() - 1].clone().into();
        Ok(Response::new(v1::ContentBytes { number, data }))
    }

    async fn list(
        &self,
        request: Request<v1::ListContentsRequest>,
    ) -> Result<Response<v1::ListContentsResponse>, Status> {
        let kind = request.into_inner().kind;
        let state = self.0.lock().unwrap();
        let wanted = state.contents.iter().filter(|held| held.object.kind == kind);
        let contents = wanted.map(|held| state.with_service_names(held.object.clone())).collect();
        Ok(Response::new(v1::ListContentsResponse { contents, next_page_token: String::new() }))
    }

    async fn remove(&self, request: Request<v1::ContentReference>) -> Result<Response<v1::Content>, Status> {
        let request = request.into_inner();
        let mut state = self.0.lock().unwrap();
        let content = state.stored(request.kind(), &request.reference)?.object.clone();
        let users = state.users_of(&content);
        if !users.is_empty() {
            let what = kind_name(request.kind());
            let message = format!("{what} {} is used by {}", content.name, users.join(", "));
            return Err(Problem::new(Code::FailedPrecondition, "CONTENT_IN_USE", message).into());
        }
        state.contents.retain(|held| held.object.id != content.id);
        Ok(Response::new(content))
    }
}
