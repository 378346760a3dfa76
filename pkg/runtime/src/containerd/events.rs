//! What containerd tells us, turned into [`RuntimeEvent`]s, and the connection that tells it kept up.
//!
//! A subscription answers only with its first event, so nobody can know when it began. We publish an event
//! of our own until it comes back: from then on nothing is missed.

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
use warren_image::{Connection, Fault, within};

use super::look::time;
use super::{ASK, RECORD};
use crate::cgroup::Hierarchies;
use crate::container::{ContainerId, Exit, RuntimeEvent};
use crate::spec::cgroup_path;

const EXIT: &str = "/tasks/exit";
const OOM: &str = "/tasks/oom";
const HELLO: &str = "/warren/hello";
/// Events kept for a slow reader; one that is slower still learns that it lost some.
const BUFFER: usize = 1024;
/// Ends remembered so that one that is told twice, by containerd and by the kernel, is passed on once.
const REMEMBERED: usize = 4096;
const HELLO_EVERY: Duration = Duration::from_millis(50);
const SUBSCRIBE: Duration = Duration::from_secs(15);
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Passes events on to everyone who asked for them.
pub(super) struct Announcer {
    sender: broadcast::Sender<RuntimeEvent>,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    set: HashSet<(ContainerId, u32)>,
    order: VecDeque<(ContainerId, u32)>,
}

impl Default for Announcer {
    fn default() -> Self {
        Self { sender: broadcast::Sender::new(BUFFER), told: Mutex::default() }
    }
}

impl Announcer {
    pub fn subscribe(&self) -> broadcast::Receiver<RuntimeEvent> {
        self.sender.subscribe()
    }

    /// Tells of a process's end, once for each process.
    pub fn exited(&self, id: ContainerId, pid: u32, exit: Exit) {
        let mut told = self.told.lock().expect("no holder panics");
        if !told.set.insert((id.clone(), pid)) {
            return;
        }
        told.order.push_back((id.clone(), pid));
        if told.order.len() > REMEMBERED
            && let Some(oldest) = told.order.pop_front()
        {
            told.set.remove(&oldest);
        }
        drop(told);
        self.tell(RuntimeEvent::Exited { id, exit });
    }

    fn tell(&self, event: RuntimeEvent) {
        // Nobody listening is fine: whoever comes later lists first.
        let _ = self.sender.send(event);
    }
}

/// Knows where the kernel leaves the trace of a memory kill.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    pub cgroups: Hierarchies,
    pub parent: String,
}

impl Memory {
    pub fn ran_out(&self, id: &ContainerId) -> bool {
        self.cgroups.oom_kills(&cgroup_path(&self.parent, id)) > 0
    }
}

/// Subscribes, passes on, and subscribes again, for ever.
pub(super) async fn pump(connection: Connection, announcer: std::sync::Arc<Announcer>, memory: Memory) {
    let mut pause = BACK_OFF.0;
    loop {
        match subscribe(&connection).await {
            Ok(mut stream) => {
                pause = BACK_OFF.0;
                announcer.tell(RuntimeEvent::Resumed);
                let status = pass_on(&mut stream, &announcer, &memory).await;
                announcer.tell(RuntimeEvent::Lost);
                tracing::info!(error = status.message(), "containerd's events broke off");
            }
            Err(status) => {
                tracing::debug!(error = status.message(), "cannot subscribe to containerd's events")
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(BACK_OFF.1);
    }
}

/// Reads until the stream ends and says why it did. Never waits for a reader: containerd would buffer
/// without bound.
async fn pass_on(stream: &mut Streaming<Envelope>, announcer: &Announcer, memory: &Memory) -> Status {
    loop {
        match stream.next().await {
            Some(Ok(envelope)) => interpret(&envelope, announcer, memory),
            Some(Err(status)) => return status,
            None => return Status::unavailable("the stream ended"),
        }
    }
}

fn interpret(envelope: &Envelope, announcer: &Announcer, memory: &Memory) {
    let Some(event) = &envelope.event else { return };
    match envelope.topic.as_str() {
        EXIT => {
            let Ok(exit) = TaskExit::decode(event.value.as_slice()) else { return };
            let Ok(id) = ContainerId::parse(&exit.container_id) else { return };
            // Other ids belong to programs started beside the first process.
            if exit.id == exit.container_id {
                let out_of_memory = memory.ran_out(&id);
                let how = Exit { code: exit.exit_status, at: time(exit.exited_at), out_of_memory };
                announcer.exited(id, exit.pid, how);
            }
        }
        OOM => {
            let Ok(oom) = TaskOom::decode(event.value.as_slice()) else { return };
            let Ok(id) = ContainerId::parse(&oom.container_id) else { return };
            announcer.tell(RuntimeEvent::OutOfMemory { id });
        }
        _ => {}
    }
}

/// A stream that is known to have begun.
async fn subscribe(connection: &Connection) -> Result<Streaming<Envelope>, Status> {
    ensure_namespace(connection).await?;
    let nonce = format!("{}-{:?}", std::process::id(), SystemTime::now());
    let namespace = connection.namespace();
    let filters = vec![
        format!("topic~=\"/tasks/(exit|oom)\",namespace=={namespace}"),
        format!("topic==\"{HELLO}\",namespace=={namespace}"),
    ];
    let mut client = connection.events();
    let attempt = async {
        let mut hello = tokio::time::interval(HELLO_EVERY);
        let mut opening = Box::pin(client.subscribe(connection.request(SubscribeRequest { filters })));
        let mut stream = loop {
            tokio::select! {
                opened = &mut opening => break opened?.into_inner(),
                _ = hello.tick() => say_hello(connection, &nonce).await?,
            }
        };
        loop {
            match stream.next().await {
                Some(Ok(envelope)) if is_hello(&envelope, &nonce) => return Ok(stream),
                // What comes before is covered by the list that the caller makes on `Resumed`.
                Some(Ok(_)) => {}
                Some(Err(status)) => return Err(status),
                None => return Err(Status::unavailable("the stream ended")),
            }
        }
    };
    let late = || Status::deadline_exceeded(format!("no event within {SUBSCRIBE:?}"));
    tokio::time::timeout(SUBSCRIBE, attempt).await.unwrap_or_else(|_| Err(late()))
}

async fn ensure_namespace(connection: &Connection) -> Result<(), Status> {
    let namespace = Namespace { name: connection.namespace().to_owned(), labels: Default::default() };
    let request = connection.request(CreateNamespaceRequest { namespace: Some(namespace) });
    match within(RECORD, connection.namespaces().create(request)).await {
        Err(status) if Fault::of(&status) != Fault::AlreadyExists => Err(status),
        _ => Ok(()),
    }
}

async fn say_hello(connection: &Connection, nonce: &str) -> Result<(), Status> {
    let event = prost_types::Any { type_url: "warren.Hello".to_owned(), value: nonce.as_bytes().to_vec() };
    let request = connection.request(PublishRequest { topic: HELLO.to_owned(), event: Some(event) });
    within(ASK, connection.events().publish(request)).await
}

fn is_hello(envelope: &Envelope, nonce: &str) -> bool {
    envelope.topic == HELLO && envelope.event.as_ref().is_some_and(|event| event.value == nonce.as_bytes())
}
