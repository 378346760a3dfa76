//! Converts containerd's events to [`RuntimeEvent`]s, and keeps the subscription alive.
//!
//! A subscription answers only with its first event, so its start is unknown. This module publishes its own
//! event until it receives it: from then on no event is missed.

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use containerd_client::events::{TaskExit, TaskOom};
use containerd_client::services::v1::{CreateNamespaceRequest, Namespace, PublishRequest, SubscribeRequest};
use containerd_client::types::Envelope;
use futures::StreamExt;
use prost::Message;
use tokio::sync::broadcast;
use tonic::{Status, Streaming};
use warren_image::{CallError, ContainerdConnection, with_deadline};

use super::inspect::system_time;
use super::{RECORD_TIMEOUT, STATE_TIMEOUT};
use crate::cgroup::CgroupHierarchies;
use crate::container::{ContainerId, ProcessExit, RuntimeEvent};
use crate::spec::cgroup_path;

const EXIT_TOPIC: &str = "/tasks/exit";
const OOM_TOPIC: &str = "/tasks/oom";
const PROBE_TOPIC: &str = "/warren/hello";
/// Buffered events for slow readers; a slower one gets `Lost`.
const BUFFER: usize = 1024;
/// Recent exits, so that one reported by both containerd and the kernel is forwarded once.
const MAX_SEEN_EXITS: usize = 4096;
const PROBE_INTERVAL: Duration = Duration::from_millis(50);
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(15);
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Forwards events to all subscribers.
pub(super) struct EventBroadcaster {
    sender: broadcast::Sender<RuntimeEvent>,
    seen_exits: Mutex<SeenExits>,
}

#[derive(Default)]
struct SeenExits {
    set: HashSet<(ContainerId, u32)>,
    order: VecDeque<(ContainerId, u32)>,
}

impl Default for EventBroadcaster {
    fn default() -> Self {
        Self { sender: broadcast::Sender::new(BUFFER), seen_exits: Mutex::default() }
    }
}

impl EventBroadcaster {
    pub fn subscribe(&self) -> broadcast::Receiver<RuntimeEvent> {
        self.sender.subscribe()
    }

    /// Reports the end of a process, once per process.
    pub fn broadcast_exit(&self, id: ContainerId, pid: u32, exit: ProcessExit) {
        let mut seen = self.seen_exits.lock().expect("no holder panics");
        if !seen.set.insert((id.clone(), pid)) {
            return;
        }
        seen.order.push_back((id.clone(), pid));
        if seen.order.len() > MAX_SEEN_EXITS
            && let Some(oldest) = seen.order.pop_front()
        {
            seen.set.remove(&oldest);
        }
        drop(seen);
        self.broadcast(RuntimeEvent::Exited { id, exit });
    }

    fn broadcast(&self, event: RuntimeEvent) {
        // No subscriber is fine: later ones list first.
        let _ = self.sender.send(event);
    }
}

/// Finds OOM kills in the cgroup of a container.
#[derive(Clone, Debug)]
pub(super) struct OomDetector {
    pub cgroups: CgroupHierarchies,
    pub cgroup_parent: String,
}

impl OomDetector {
    pub fn had_oom_kill(&self, id: &ContainerId) -> bool {
        self.cgroups.oom_kills(&cgroup_path(&self.cgroup_parent, id)) > 0
    }
}

/// Subscribes, forwards, and subscribes again, until it is dropped.
pub(super) async fn forward_events(
    connection: ContainerdConnection,
    broadcaster: std::sync::Arc<EventBroadcaster>,
    memory: OomDetector,
) {
    let mut pause = BACK_OFF.0;
    loop {
        match subscribe(&connection).await {
            Ok(mut stream) => {
                pause = BACK_OFF.0;
                broadcaster.broadcast(RuntimeEvent::Resumed);
                let status = forward_stream(&mut stream, &broadcaster, &memory).await;
                broadcaster.broadcast(RuntimeEvent::Lost);
                tracing::info!(error = status.message(), "containerd's event stream ended");
            }
            Err(status) => {
                tracing::debug!(error = status.message(), "cannot subscribe to containerd's events")
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(BACK_OFF.1);
    }
}

/// Reads until the stream ends, and returns the cause. Never waits for a reader: containerd would buffer
/// without bound.
async fn forward_stream(
    stream: &mut Streaming<Envelope>,
    broadcaster: &EventBroadcaster,
    memory: &OomDetector,
) -> Status {
    loop {
        match stream.next().await {
            Some(Ok(envelope)) => forward_envelope(&envelope, broadcaster, memory),
            Some(Err(status)) => return status,
            None => return Status::unavailable("the stream ended"),
        }
    }
}

fn forward_envelope(envelope: &Envelope, broadcaster: &EventBroadcaster, memory: &OomDetector) {
    let Some(event) = &envelope.event else { return };
    match envelope.topic.as_str() {
        EXIT_TOPIC => {
            let Ok(exit) = TaskExit::decode(event.value.as_slice()) else { return };
            let Ok(id) = ContainerId::parse(&exit.container_id) else { return };
            // Other ids belong to additional processes of the container.
            if exit.id == exit.container_id {
                let out_of_memory = memory.had_oom_kill(&id);
                let how =
                    ProcessExit { code: exit.exit_status, at: system_time(exit.exited_at), out_of_memory };
                broadcaster.broadcast_exit(id, exit.pid, how);
            }
        }
        OOM_TOPIC => {
            let Ok(oom) = TaskOom::decode(event.value.as_slice()) else { return };
            let Ok(id) = ContainerId::parse(&oom.container_id) else { return };
            broadcaster.broadcast(RuntimeEvent::OutOfMemory { id });
        }
        _ => {}
    }
}

/// A stream that has started.
async fn subscribe(connection: &ContainerdConnection) -> Result<Streaming<Envelope>, Status> {
    ensure_namespace(connection).await?;
    let nonce = format!("{}-{:?}", std::process::id(), SystemTime::now());
    let namespace = connection.namespace();
    let filters = vec![
        format!("topic~=\"/tasks/(exit|oom)\",namespace=={namespace}"),
        format!("topic==\"{PROBE_TOPIC}\",namespace=={namespace}"),
    ];
    let mut client = connection.events();
    let attempt = async {
        let mut hello = tokio::time::interval(PROBE_INTERVAL);
        let mut opening = Box::pin(client.subscribe(connection.request(SubscribeRequest { filters })));
        let mut stream = loop {
            tokio::select! {
                opened = &mut opening => break opened?.into_inner(),
                _ = hello.tick() => publish_probe(connection, &nonce).await?,
            }
        };
        loop {
            match stream.next().await {
                Some(Ok(envelope)) if is_probe(&envelope, &nonce) => return Ok(stream),
                // Earlier events are covered by the list after `Resumed`.
                Some(Ok(_)) => {}
                Some(Err(status)) => return Err(status),
                None => return Err(Status::unavailable("the stream ended")),
            }
        }
    };
    let late = || Status::deadline_exceeded(format!("no event within {SUBSCRIBE_TIMEOUT:?}"));
    tokio::time::timeout(SUBSCRIBE_TIMEOUT, attempt).await.unwrap_or_else(|_| Err(late()))
}

async fn ensure_namespace(connection: &ContainerdConnection) -> Result<(), Status> {
    let namespace = Namespace { name: connection.namespace().to_owned(), labels: Default::default() };
    let request = connection.request(CreateNamespaceRequest { namespace: Some(namespace) });
    match with_deadline(RECORD_TIMEOUT, connection.namespaces().create(request)).await {
        Err(status) if CallError::from_status(&status) != CallError::AlreadyExists => Err(status),
        _ => Ok(()),
    }
}

async fn publish_probe(connection: &ContainerdConnection, nonce: &str) -> Result<(), Status> {
    let event = prost_types::Any { type_url: "warren.Hello".to_owned(), value: nonce.as_bytes().to_vec() };
    let request = connection.request(PublishRequest { topic: PROBE_TOPIC.to_owned(), event: Some(event) });
    with_deadline(STATE_TIMEOUT, connection.events().publish(request)).await
}

fn is_probe(envelope: &Envelope, nonce: &str) -> bool {
    envelope.topic == PROBE_TOPIC
        && envelope.event.as_ref().is_some_and(|event| event.value == nonce.as_bytes())
}
