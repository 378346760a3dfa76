//! Delivers secrets, configs and credentials to a node: only those of its own tasks and of images that it was
//! asked to pull. They are sealed for one call of one node.

use std::pin::Pin;
use std::sync::Arc;

use tokio_stream::{Stream, StreamExt};
use tonic::{Code, Status};
use warren_core::State;
use warren_proto::Problem;
use warren_proto::convert::parse_field;
use warren_proto::v1;
use warren_proto::v1::fetch_secret_objects_request::Purpose;
use warren_security::SecretObjectKey;
use warren_security::delivery::DeliveryResponder;
use warren_store::problem::{secret_object_unreadable, status_of};
use warren_types::secret_object::registry_host;
use warren_types::{
    DesiredTaskState, ImageReference, NodeId, SealedData, SecretObject, SecretObjectKind,
    SecretObjectVersion, Task, TaskId, Violation,
};

use super::WorkerStreams;

/// The response to a node: each object is decrypted and sealed only when it is sent, so that few are in
/// memory.
pub type DeliveryStream = Pin<Box<dyn Stream<Item = Result<v1::SealedSecretObject, Status>> + Send>>;

/// One version of a secret object that the node may receive.
struct GrantedVersion {
    used: SecretObjectVersion,
    sealed: Arc<SealedData>,
}

/// The objects that `node` requests, sealed for this call.
///
/// # Errors
/// The node may not have them, an object is removed, or the public key is invalid.
pub(super) fn deliver(
    state: &State,
    worker_streams: &WorkerStreams,
    secret_object_key: &Arc<SecretObjectKey>,
    node: NodeId,
    request: v1::FetchSecretObjectsRequest,
) -> Result<DeliveryStream, Status> {
    let v1::FetchSecretObjectsRequest { key, purpose: need } = request;
    let granted = granted_versions(state, worker_streams, node, need)?;
    let refused = |error| status_of(Violation::new("key", error));
    let responder = DeliveryResponder::new(&key, node).map_err(refused)?;
    tracing::debug!(%node, objects = granted.len(), "delivering secret objects");
    let secret_object_key = Arc::clone(secret_object_key);
    let sealed = tokio_stream::iter(granted)
        .map(move |granted| seal_for_node(&secret_object_key, &responder, &granted));
    Ok(Box::pin(sealed))
}

fn granted_versions(
    state: &State,
    worker_streams: &WorkerStreams,
    node: NodeId,
    need: Option<Purpose>,
) -> Result<Vec<GrantedVersion>, Status> {
    match need {
        None => Err(status_of(Violation::new(
            "purpose",
            "is missing; give the task or stream that the objects are for",
        ))),
        Some(Purpose::TaskSecretObjects(id)) => {
            task_secret_objects(state, task_on(state, node, "need.taskContents", &id)?)
        }
        Some(Purpose::TaskCredential(id)) => {
            let task = task_on(state, node, "need.taskCredential", &id)?;
            Ok(registry_credential(state, &task.revision.task.image))
        }
        Some(Purpose::StreamCredential(id)) => {
            let image = worker_streams.image_of(&id, node).ok_or_else(not_granted)?;
            Ok(registry_credential(state, &image))
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

fn registry_credential(state: &State, image: &ImageReference) -> Vec<GrantedVersion> {
    let granted = newest_credential(state, image).map(|(object, number, sealed)| {
        let SecretObject { id, kind, name, .. } = &**object;
        let used = SecretObjectVersion { kind: *kind, name: name.clone(), id: *id, number };
        GrantedVersion { used, sealed: Arc::clone(sealed) }
    });
    granted.into_iter().collect()
}

fn seal_for_node(
    secret_object_key: &SecretObjectKey,
    responder: &DeliveryResponder,
    granted: &GrantedVersion,
) -> Result<v1::SealedSecretObject, Status> {
    let SecretObjectVersion { kind, name, id, number } = &granted.used;
    let plain = secret_object_key
        .open(*id, &granted.sealed)
        .map_err(|error| secret_object_unreadable(*id, &error))?;
    Ok(v1::SealedSecretObject {
        key: responder.public_key().to_vec().into(),
        kind: v1::SecretObjectKind::from(*kind).into(),
        name: name.to_string(),
        id: id.to_string(),
        version_number: *number,
        sealed: responder.seal(*id, *number, &plain).into(),
    })
}
