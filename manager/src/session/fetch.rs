//! Gives a node the secrets, configs and credentials that it needs, and no other: for tasks that are on it, and for
//! images that it was asked to pull. They leave this manager sealed for the one call of the one node.

use std::pin::Pin;
use std::sync::Arc;

use tokio_stream::{Stream, StreamExt};
use tonic::{Code, Status};
use warren_core::State;
use warren_proto::Problem;
use warren_proto::convert::parse_field;
use warren_proto::v1;
use warren_proto::v1::fetch_request::Need;
use warren_security::ContentKey;
use warren_security::delivery::Responder;
use warren_types::content::registry_of;
use warren_types::{
    Content, ContentKind, ContentUse, Desired, ImageReference, NodeId, SealedContent, Task, TaskId, Violation,
};

use super::server::SessionServer;
use crate::api::problem::{status_of, unreadable};

/// What a node is answered: each content is opened and sealed anew when its turn comes, so that few are in memory.
pub type Deliveries = Pin<Box<dyn Stream<Item = Result<v1::SealedDelivery, Status>> + Send>>;

/// One version of a content that the node may have.
struct Granted {
    used: ContentUse,
    sealed: Arc<SealedContent>,
}

impl SessionServer {
    /// What `node` asks for, sealed for this call.
    ///
    /// # Errors
    /// It may not have it, what it needs is gone, or its key is none.
    pub(super) fn deliver(&self, node: NodeId, request: v1::FetchRequest) -> Result<Deliveries, Status> {
        let v1::FetchRequest { key, need } = request;
        let granted = self.granted(node, need)?;
        let refused = |error| status_of(Violation::new("key", error));
        let responder = Responder::new(&key, node).map_err(refused)?;
        tracing::debug!(%node, contents = granted.len(), "contents are delivered");
        let keeper = Arc::clone(&self.content_key);
        let sealed = tokio_stream::iter(granted).map(move |granted| seal(&keeper, &responder, &granted));
        Ok(Box::pin(sealed))
    }

    fn granted(&self, node: NodeId, need: Option<Need>) -> Result<Vec<Granted>, Status> {
        let published = self.store.read();
        let state = &published.state;
        match need {
            None => Err(status_of(Violation::new("need", "is missing; say what the contents are for"))),
            Some(Need::TaskContents(id)) => {
                contents_of(state, task_on(state, node, "need.taskContents", &id)?)
            }
            Some(Need::TaskCredential(id)) => {
                let task = task_on(state, node, "need.taskCredential", &id)?;
                Ok(credential_for(state, &task.revision.task.image))
            }
            Some(Need::StreamCredential(id)) => {
                let image = self.streams.image_of(&id, node).ok_or_else(not_asked)?;
                Ok(credential_for(state, &image))
            }
        }
    }
}

/// The task, if the node may have what it needs: it is there, and is to run or to be prepared.
fn task_on<'a>(state: &'a State, node: NodeId, path: &str, id: &str) -> Result<&'a Arc<Task>, Status> {
    let id: TaskId = parse_field(path, id).map_err(status_of)?;
    let may_have = |task: &&Arc<Task>| {
        task.node == Some(node) && task.desired <= Desired::Running && !task.observed.removed
    };
    // Whoever is refused does not learn whether there is such a task.
    state.task(&id).filter(may_have).ok_or_else(|| {
        let message = format!("task {id} is not one that this node is to run, so it gets nothing for it");
        Problem::new(Code::PermissionDenied, "NOT_ITS_TASK", message).into()
    })
}

fn not_asked() -> Status {
    let message = "no image is being pulled in that stream of this node, so it gets no credential for it";
    Problem::new(Code::PermissionDenied, "NOT_ITS_STREAM", message).into()
}

/// All secrets and configs of the task.
fn contents_of(state: &State, task: &Task) -> Result<Vec<Granted>, Status> {
    let gone = |used: &ContentUse| {
        let ContentUse { kind, name, number, .. } = used;
        let message = format!(
            "version {number} of {kind} {name}, which revision {} of the task's service uses, is not kept any more; \
             update the service",
            task.revision.number
        );
        Status::from(Problem::new(Code::FailedPrecondition, "CONTENT_GONE", message))
    };
    let granted = state.task_contents(task).map(|(used, sealed)| {
        let sealed = sealed.ok_or_else(|| gone(used))?;
        Ok(Granted { used: used.clone(), sealed: Arc::clone(sealed) })
    });
    granted.collect()
}

/// What the image's registry wants to see, if anything is known for it.
fn credential_for(state: &State, image: &ImageReference) -> Vec<Granted> {
    let name = registry_of(image).parse().ok();
    let content = name.and_then(|name| state.content_named(ContentKind::Credential, &name));
    let newest =
        content.and_then(|content| content.versions.last_key_value().map(|newest| (content, newest)));
    let granted = newest.map(|(content, (number, sealed))| {
        let Content { id, kind, name, .. } = &**content;
        let used = ContentUse { kind: *kind, name: name.clone(), id: *id, number: *number };
        Granted { used, sealed: Arc::clone(sealed) }
    });
    granted.into_iter().collect()
}

fn seal(keeper: &ContentKey, responder: &Responder, granted: &Granted) -> Result<v1::SealedDelivery, Status> {
    let ContentUse { kind, name, id, number } = &granted.used;
    let plain = keeper.open(*id, &granted.sealed).map_err(|error| unreadable(*id, &error))?;
    Ok(v1::SealedDelivery {
        key: responder.public_key().to_vec().into(),
        kind: v1::ContentKind::from(*kind).into(),
        name: name.to_string(),
        id: id.to_string(),
        number: *number,
        sealed: responder.seal(*id, *number, &plain).into(),
    })
}
