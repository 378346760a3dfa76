//! A manager without disk, raft or workers. What becomes of a service's tasks is said by its image:
//! `runs`, `rejected` (never runs), `pending` (no node fits).

use std::collections::BTreeMap;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status, Streaming};
use warren_proto::v1::watch_event::Change;
use warren_proto::{Problem, v1};
use warren_security::{LocalListener, serve_local};
use warren_types::{ServiceId, ServiceSpec};

type Stream<T> = Pin<Box<dyn tokio_stream::Stream<Item = Result<T, Status>> + Send>>;
type Watcher = mpsc::UnboundedSender<Result<v1::WatchEvent, Status>>;

#[derive(Default)]
struct State {
    index: u64,
    services: BTreeMap<String, v1::Service>,
    tasks: BTreeMap<String, v1::Task>,
    watchers: Vec<Watcher>,
    next_task: u64,
}

/// Runs until it is dropped.
pub struct Manager {
    state: Api,
    runtime: Option<Runtime>,
}

#[derive(Clone, Default)]
struct Api(Arc<Mutex<State>>);

impl Manager {
    pub fn serve(socket: &Path) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let state = Api::default();
        let entered = runtime.enter();
        let incoming = serve_local(LocalListener::bind(socket, None).unwrap());
        let router = Server::builder()
            .add_service(v1::services_server::ServicesServer::new(state.clone()))
            .add_service(v1::tasks_server::TasksServer::new(state.clone()))
            .add_service(v1::nodes_server::NodesServer::new(state.clone()))
            .add_service(v1::cluster_server::ClusterServer::new(state.clone()))
            .add_service(v1::images_server::ImagesServer::new(state.clone()));
        runtime.spawn(router.serve_with_incoming(incoming));
        drop(entered);
        Self { state, runtime: Some(runtime) }
    }

    /// How many replicas of the service are wanted now.
    pub fn replicas(&self, name: &str) -> Option<i64> {
        self.state.0.lock().unwrap().find(name).ok().map(|service| replicas(&service))
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

fn replicas(service: &v1::Service) -> i64 {
    let Some(v1::service_spec::Mode::Replicated(replicated)) = service.spec.as_ref().unwrap().mode else {
        panic!("{service:?} has no mode");
    };
    replicated.replicas
}

impl State {
    fn find(&self, reference: &str) -> Result<v1::Service, Status> {
        let known = |service: &&v1::Service| {
            service.id == reference || service.spec.as_ref().unwrap().name == reference
        };
        let message = format!("there is no service {reference}");
        let missing = || Problem::new(Code::NotFound, "NOT_FOUND", message).into();
        self.services.values().find(known).cloned().ok_or_else(missing)
    }

    fn tell(&mut self, change: Change) {
        self.index += 1;
        let event = v1::WatchEvent { index: self.index, change: Some(change) };
        self.watchers.retain(|watcher| watcher.send(Ok(event.clone())).is_ok());
    }

    fn put_task(&mut self, task: v1::Task) {
        self.tasks.insert(task.id.clone(), task.clone());
        self.tell(Change::Task(task));
    }

    /// Makes tasks for slots that have none, and lets go of those that are too many.
    fn settle(&mut self, service: &v1::Service) {
        let (id, wanted) = (&service.id, u32::try_from(replicas(service)).unwrap());
        let spec = service.spec.clone().unwrap();
        let extra = self.tasks.values().filter(|task| task.service_id == *id && task.slot > wanted);
        let extra: Vec<String> = extra.map(|task| task.id.clone()).collect();
        for task in extra {
            self.tasks.remove(&task);
            self.tell(Change::RemovedTask(task));
        }
        for slot in 1..=wanted {
            if self.tasks.values().any(|task| task.service_id == *id && task.slot == slot) {
                continue;
            }
            self.next_task += 1;
            let task = v1::Task {
                id: format!("{id}-{}", self.next_task),
                service_id: id.clone(),
                service_name: spec.name.clone(),
                slot,
                revision: 1,
                spec: spec.task.clone(),
                desired: v1::Desired::Running.into(),
                state: v1::TaskState::Pending.into(),
                reason: "0 of 1 nodes fit: 1 lacks memory".into(),
                ..Default::default()
            };
            self.put_task(task.clone());
            self.work(task, &spec.task.as_ref().unwrap().image);
        }
    }

    /// What the worker does.
    fn work(&mut self, mut task: v1::Task, image: &str) {
        if image == "pending" {
            return;
        }
        (task.node_name, task.address, task.attempt) = ("node-1".into(), "10.210.1.2".into(), 1);
        task.state = v1::TaskState::Starting.into();
        task.reason = String::new();
        self.put_task(task.clone());
        if image == "rejected" {
            task.state = v1::TaskState::Rejected.into();
            task.reason = "image rejected is not on this node".into();
        } else {
            task.state = v1::TaskState::Running.into();
            task.ready = true;
        }
        self.put_task(task);
    }
}

#[tonic::async_trait]
impl v1::services_server::Services for Api {
    async fn create(
        &self,
        request: Request<v1::CreateServiceRequest>,
    ) -> Result<Response<v1::Service>, Status> {
        let (id, spec): (ServiceId, ServiceSpec) = request.into_inner().try_into().map_err(Problem::from)?;
        let mut state = self.0.lock().unwrap();
        if state.find(spec.name.as_str()).is_ok() {
            let message = format!("there is a service {} already", spec.name);
            return Err(Problem::new(Code::AlreadyExists, "ALREADY_EXISTS", message).into());
        }
        let service =
            v1::Service { id: id.to_string(), revision: 1, spec: Some((&spec).into()), ..Default::default() };
        state.services.insert(service.id.clone(), service.clone());
        state.settle(&service);
        Ok(Response::new(service))
    }

    async fn get(&self, request: Request<v1::Reference>) -> Result<Response<v1::Service>, Status> {
        self.0.lock().unwrap().find(&request.into_inner().reference).map(Response::new)
    }

    async fn list(&self, _: Request<v1::ListRequest>) -> Result<Response<v1::ListServicesResponse>, Status> {
        let services = self.0.lock().unwrap().services.values().cloned().collect();
        Ok(Response::new(v1::ListServicesResponse { services, next_page_token: String::new() }))
    }

    async fn scale(
        &self,
        request: Request<v1::ScaleServiceRequest>,
    ) -> Result<Response<v1::Service>, Status> {
        let request = request.into_inner();
        let mut state = self.0.lock().unwrap();
        let mut service = state.find(&request.reference)?;
        let wanted = v1::Replicated { replicas: request.replicas };
        service.spec.as_mut().unwrap().mode = Some(v1::service_spec::Mode::Replicated(wanted));
        state.services.insert(service.id.clone(), service.clone());
        state.tell(Change::Service(service.clone()));
        state.settle(&service);
        Ok(Response::new(service))
    }

    async fn remove(
        &self,
        request: Request<v1::RemoveServiceRequest>,
    ) -> Result<Response<v1::Service>, Status> {
        let mut state = self.0.lock().unwrap();
        let service = state.find(&request.into_inner().reference)?;
        state.services.remove(&service.id);
        state.tasks.retain(|_, task| task.service_id != service.id);
        state.tell(Change::RemovedService(service.id.clone()));
        Ok(Response::new(v1::Service { removing: true, ..service }))
    }
}

#[tonic::async_trait]
impl v1::tasks_server::Tasks for Api {
    async fn get(&self, request: Request<v1::Reference>) -> Result<Response<v1::Task>, Status> {
        let reference = request.into_inner().reference;
        let state = self.0.lock().unwrap();
        let named = |task: &&v1::Task| format!("{}.{}", task.service_name, task.slot) == reference;
        let found = state.tasks.get(&reference).or_else(|| state.tasks.values().find(named)).cloned();
        let message = format!("there is no task {reference}");
        found.map(Response::new).ok_or_else(|| Problem::new(Code::NotFound, "NOT_FOUND", message).into())
    }

    async fn list(
        &self,
        request: Request<v1::ListTasksRequest>,
    ) -> Result<Response<v1::ListTasksResponse>, Status> {
        let v1::ListTasksRequest { service, .. } = request.into_inner();
        let state = self.0.lock().unwrap();
        let tasks = state.tasks.values().filter(|task| service.is_empty() || task.service_id == service);
        Ok(Response::new(v1::ListTasksResponse {
            tasks: tasks.cloned().collect(),
            next_page_token: String::new(),
        }))
    }
}

#[tonic::async_trait]
impl v1::nodes_server::Nodes for Api {
    async fn get(&self, _: Request<v1::Reference>) -> Result<Response<v1::Node>, Status> {
        Err(Problem::new(Code::PermissionDenied, "DENIED", "needs the role admin, this is a viewer").into())
    }

    async fn list(&self, _: Request<v1::ListRequest>) -> Result<Response<v1::ListNodesResponse>, Status> {
        let description = Some(v1::NodeDescription {
            resources: Some(v1::Resources { cpu_milli: 2000, memory_bytes: 1 << 30 }),
            ..Default::default()
        });
        let status = v1::NodeStatus::Ready.into();
        let node =
            v1::Node { id: "n".into(), name: "node-1".into(), description, status, ..Default::default() };
        Ok(Response::new(v1::ListNodesResponse { nodes: vec![node], next_page_token: String::new() }))
    }
}

#[tonic::async_trait]
impl v1::cluster_server::Cluster for Api {
    type WatchStream = Stream<v1::WatchEvent>;

    async fn watch(&self, _: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.0.lock().unwrap();
        let start = v1::WatchEvent { index: state.index, change: Some(Change::Resync(v1::Resync {})) };
        sender.send(Ok(start)).unwrap();
        state.watchers.push(sender);
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(receiver))))
    }

    async fn info(&self, _: Request<v1::InfoRequest>) -> Result<Response<v1::InfoResponse>, Status> {
        Ok(Response::new(v1::InfoResponse { cluster_id: "c1".into(), ..Default::default() }))
    }

    async fn loops(&self, _: Request<v1::LoopsRequest>) -> Result<Response<v1::LoopsResponse>, Status> {
        let named = |name: &str| v1::Loop { name: name.into(), ..Default::default() };
        Ok(Response::new(v1::LoopsResponse { loops: vec![named("planner"), named("liveness")] }))
    }
}

#[tonic::async_trait]
impl v1::images_server::Images for Api {
    type ImportStream = Stream<v1::ImportProgress>;

    /// Takes archives that say `good`; the node `full` takes none.
    async fn import(
        &self,
        request: Request<Streaming<v1::ImportRequest>>,
    ) -> Result<Response<Self::ImportStream>, Status> {
        use v1::import_progress::Event;
        use v1::import_request::Message;
        let (sender, receiver) = mpsc::channel(8);
        let mut messages = request.into_inner();
        tokio::spawn(async move {
            let (mut nodes, mut archive) = (Vec::new(), Vec::new());
            while let Ok(Some(v1::ImportRequest { message: Some(message) })) = messages.message().await {
                match message {
                    Message::Target(target) => nodes = target.nodes,
                    Message::Chunk(chunk) => archive.extend_from_slice(&chunk),
                }
            }
            if nodes.is_empty() {
                nodes.push("node-1".into());
            }
            for node in nodes {
                let tell = |event| Ok(v1::ImportProgress { node: node.clone(), event: Some(event) });
                let image =
                    v1::ImportedImage { reference: "web:1".into(), digest: "sha256:1".into(), size_bytes: 4 };
                let events = if archive != b"good" {
                    vec![Event::Failed("this is no image archive".into())]
                } else if node == "full" {
                    vec![Event::Failed("the disk is full".into())]
                } else {
                    vec![Event::ReceivedBytes(4), Event::Imported(image), Event::Done(v1::Done {})]
                };
                for event in events {
                    sender.send(tell(event)).await.unwrap();
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}
