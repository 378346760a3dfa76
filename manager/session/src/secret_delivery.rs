//! Delivers secrets and configs to a node, and access to registries: only what its own tasks need, and the images that
//! it was asked to pull. All of it is sealed for one call of one node.

use std::pin::Pin;
use std::sync::Arc;

use tokio_stream::{Stream, StreamExt};
use tonic::{Code, Status};
use warren_core::State;
use warren_proto::Problem;
use warren_proto::convert::parse_field;
use warren_proto::status::NO_REGISTRY_ACCESS;
use warren_proto::v1;
use warren_proto::v1::fetch_secret_objects_request::Purpose;
use warren_registry::{Reference, RegistryCredentials};
use warren_security::SecretObjectKey;
use warren_security::delivery::DeliveryResponder;
use warren_store::problem::{secret_object_unreadable, status_of};
use warren_types::secret_object::registry_host;
use warren_types::{
    DesiredTaskState, ImageReference, Login, NodeId, SealedData, SecretObject, SecretObjectKind,
    SecretObjectName, SecretObjectVersion, Task, TaskId, Violation,
};
use zeroize::Zeroizing;

use super::WorkerStreams;
use super::repository_tokens::{PullCredential, RepositoryTokens};

/// The response to a node: each object is decrypted and sealed only when it is sent, so that few are in
/// memory.
pub type DeliveryStream = Pin<Box<dyn Stream<Item = Result<v1::SealedSecretObject, Status>> + Send>>;

/// One version of a secret object that the node may receive.
struct GrantedVersion {
    used: SecretObjectVersion,
    sealed: Arc<SealedData>,
}

/// What a request of a node is granted.
enum Grant {
    /// These objects.
    Objects(Vec<GrantedVersion>),
    /// Access to the registry of this image, for pulls of it.
    RegistryOf(ImageReference),
}

/// Delivers what nodes may have.
#[derive(Clone)]
pub struct SecretDelivery {
    /// Decrypts secrets, configs and credentials.
    pub secret_object_key: Arc<SecretObjectKey>,
    /// Gives nodes access to registries.
    pub repository_tokens: RepositoryTokens,
}

impl SecretDelivery {
    /// What `node` requests, sealed for this call.
    ///
    /// # Errors
    /// The node may not have it, an object is removed, the public key is invalid, or there is no access to the
    /// registry.
    pub(super) async fn deliver(
        &self,
        state: &State,
        worker_streams: &WorkerStreams,
        node: NodeId,
        request: v1::FetchSecretObjectsRequest,
    ) -> Result<DeliveryStream, Status> {
        let v1::FetchSecretObjectsRequest { key, purpose, is_renewal } = request;
        let granted = granted(state, worker_streams, node, purpose)?;
        let refused = |error| status_of(Violation::new("key", error));
        let responder = DeliveryResponder::new(&key, node).map_err(refused)?;
        match granted {
            Grant::Objects(objects) => {
                tracing::debug!(%node, objects = objects.len(), "delivering secret objects");
                let secret_object_key = Arc::clone(&self.secret_object_key);
                let sealed = tokio_stream::iter(objects)
                    .map(move |granted| seal_for_node(&secret_object_key, &responder, &granted));
                Ok(Box::pin(sealed))
            }
            Grant::RegistryOf(image) => {
                let access = self.registry_access(state, &image, node, is_renewal).await?;
                let sealed =
                    access.map(|(used, plain)| Ok::<_, Status>(sealed_object(&responder, &used, &plain)));
                Ok(Box::pin(tokio_stream::iter(sealed)))
            }
        }
    }

    /// Access to the registry of the image by its newest credential, not sealed; `None` if there is no credential, or
    /// none is needed.
    async fn registry_access(
        &self,
        state: &State,
        image: &ImageReference,
        node: NodeId,
        is_renewal: bool,
    ) -> Result<Option<(SecretObjectVersion, Zeroizing<Vec<u8>>)>, Status> {
        let Some((object, number, sealed)) = newest_credential(state, image) else { return Ok(None) };
        let SecretObject { id, kind, name, .. } = &**object;
        let used = SecretObjectVersion { kind: *kind, name: name.clone(), id: *id, number };
        let plain = self.secret_object_key.open(*id, sealed);
        let plain = plain.map_err(|error| secret_object_unreadable(*id, &error))?;
        let invalid = |reason| Problem::new(Code::FailedPrecondition, NO_REGISTRY_ACCESS, reason);
        let Login { user, password, is_token_only } = parse_login(name, &plain).map_err(invalid)?;
        let reference = Reference::parse(image.as_str());
        let reference = reference.map_err(|error| status_of(Violation::new("image", error)))?;
        let credentials = RegistryCredentials { user, password };
        let credential = PullCredential { version: (*id, number), credentials, is_token_only, reference };
        let access = self.repository_tokens.access(node, &credential, is_renewal).await?;
        Ok(access.map(|access| (used, access)))
    }
}

fn granted(
    state: &State,
    worker_streams: &WorkerStreams,
    node: NodeId,
    purpose: Option<Purpose>,
) -> Result<Grant, Status> {
    match purpose {
        None => Err(status_of(Violation::new(
            "purpose",
            "is missing; give the task or stream that the objects are for",
        ))),
        Some(Purpose::TaskSecretObjects(id)) => {
            task_secret_objects(state, task_on(state, node, "taskSecretObjects", &id)?).map(Grant::Objects)
        }
        Some(Purpose::TaskCredential(id)) => {
            let task = task_on(state, node, "taskCredential", &id)?;
            Ok(Grant::RegistryOf(task.revision.task.image.clone()))
        }
        Some(Purpose::StreamCredential(id)) => {
            worker_streams.image_of(&id, node).map(Grant::RegistryOf).ok_or_else(not_granted)
        }
    }
}

/// The task, if the node may have its secret objects: it is assigned to the node and desired to be running or
/// prepared.
fn task_on<'a>(state: &'a State, node: NodeId, path: &str, id: &str) -> Result<&'a Arc<Task>, Status> {
    let id: TaskId = parse_field(path, id).map_err(status_of)?;
    let is_granted = |task: &&Arc<Task>| {
        task.node == Some(node) && task.desired <= DesiredTaskState::Running && !task.observed.removed
    };
    // The rejection does not reveal whether the task exists.
    state.task(&id).filter(is_granted).ok_or_else(|| {
        let message =
            format!("task {id} is not assigned to this node, so its secret objects are not delivered");
        Problem::new(Code::PermissionDenied, "TASK_NOT_ON_NODE", message).into()
    })
}

fn not_granted() -> Status {
    let message = "this node has no stream with that id that needs a registry, so no credential is delivered";
    Problem::new(Code::PermissionDenied, "STREAM_NOT_OF_NODE", message).into()
}

/// All secrets and configs of the task.
fn task_secret_objects(state: &State, task: &Task) -> Result<Vec<GrantedVersion>, Status> {
    let gone = |used: &SecretObjectVersion| {
        let SecretObjectVersion { kind, name, number, .. } = used;
        let message = format!(
            "version {number} of {kind} {name}, used by revision {} of the task's service, is removed; \
             update the service",
            task.revision.number
        );
        Status::from(Problem::new(Code::FailedPrecondition, "SECRET_OBJECT_VERSION_GONE", message))
    };
    let granted = state.task_secret_objects(task).map(|(used, sealed)| {
        let sealed = sealed.ok_or_else(|| gone(used))?;
        Ok(GrantedVersion { used: used.clone(), sealed: Arc::clone(sealed) })
    });
    granted.collect()
}

/// The credential of the image's registry, with the number and the data of its newest version, if there is one.
pub fn newest_credential<'a>(
    state: &'a State,
    image: &ImageReference,
) -> Option<(&'a Arc<SecretObject>, u64, &'a Arc<SealedData>)> {
    let name = registry_host(image).parse().ok()?;
    let object = state.secret_object_by_name(SecretObjectKind::Credential, &name)?;
    let (number, sealed) = object.versions.last_key_value()?;
    Some((object, *number, sealed))
}

/// The login in the data of the credential for a registry.
///
/// # Errors
/// A sentence: it has none.
pub fn parse_login(registry: &SecretObjectName, plain: &[u8]) -> Result<Login, String> {
    Login::from_data(plain).map_err(|_| {
        format!("the credential for {registry} is invalid; `warren registry login {registry}` replaces it")
    })
}

fn seal_for_node(
    secret_object_key: &SecretObjectKey,
    responder: &DeliveryResponder,
    granted: &GrantedVersion,
) -> Result<v1::SealedSecretObject, Status> {
    let GrantedVersion { used, sealed } = granted;
    let plain = secret_object_key.open(used.id, sealed);
    let plain = plain.map_err(|error| secret_object_unreadable(used.id, &error))?;
    Ok(sealed_object(responder, used, &plain))
}

fn sealed_object(
    responder: &DeliveryResponder,
    used: &SecretObjectVersion,
    plain: &[u8],
) -> v1::SealedSecretObject {
    let SecretObjectVersion { kind, name, id, number } = used;
    v1::SealedSecretObject {
        key: responder.public_key().to_vec().into(),
        kind: v1::SecretObjectKind::from(*kind).into(),
        name: name.to_string(),
        id: id.to_string(),
        version_number: *number,
        sealed: responder.seal(*id, *number, plain).into(),
    }
}
