//! All paths of the API: those that are served, and those of Docker that Warren answers with a sentence.

use std::sync::Arc;

use hyper::{Method, StatusCode};
use warren_client::Client;
use warren_types::SecretObjectKind::{Config, Secret};

use crate::docker_error::DockerError;
use crate::exit_codes::ExitCodes;
use crate::programs::{self, Programs};
use crate::request::DockerRequest;
use crate::response::Answer;
use crate::{
    archive, attach, containers, disk_usage, events, images, lifecycle, logs, networks, nodes, secret_objects,
};
use crate::{processes, services, stats, swarm, system, tasks, volumes};

/// Parts of Docker's API that are not served, with what to use.
const UNSUPPORTED: [(&str, &str); 12] = [
    ("auth", "logins are of the cluster: use `warren registry login`"),
    (
        "build",
        "Warren builds no images: use `warren deploy --build`, or build elsewhere and push to a registry",
    ),
    ("commit", "containers are not made images: build the image from a file"),
    ("configs", "there is no such operation on configs"),
    (
        "containers",
        "there is no such operation on containers: a container keeps its name and limits, and is not paused or \
         exported; use `docker run|start|stop|kill|rm|top`, `docker service create|update|scale|rm`, exec, cp or logs",
    ),
    ("exec", "there is no such operation on programs"),
    ("grpc", "Warren builds no images: build elsewhere and push to a registry"),
    ("images", "images of nodes get no other names: use `warren image copy`, or push to a registry"),
    ("networks", "there is no such operation on networks: tasks are members by the spec of their service"),
    ("plugins", "Warren has no plugins"),
    ("session", "Warren builds no images: build elsewhere and push to a registry"),
    ("volumes", "there is no such operation on volumes"),
];

/// What the server remembers between requests.
#[derive(Debug, Default)]
pub struct ServerMemory {
    programs: Arc<Programs>,
    exit_codes: Arc<ExitCodes>,
}

/// Answers a request.
pub async fn answer(client: &Client, memory: &ServerMemory, request: &DockerRequest) -> Answer {
    let ServerMemory { programs, exit_codes } = memory;
    let path: Vec<&str> = request.path.iter().map(String::as_str).collect();
    match (request.method.as_str(), path.as_slice()) {
        ("GET" | "HEAD", ["_ping"]) => system::ping(client).await,
        ("GET", ["version"]) => system::version(client).await,
        ("GET", ["info"]) => system::info(client).await,
        ("GET", ["system", "df"]) => disk_usage::read(client).await,
        ("GET", ["events"]) => events::stream(client, request).await,
        ("GET", ["swarm"]) => swarm::inspect(client).await,
        ("POST", ["swarm", operation]) => swarm::refuse(operation),
        ("GET", ["swarm", "unlockkey"]) => swarm::unlock_key(client).await,

        ("GET", ["nodes"]) => nodes::list(client, request).await,
        ("GET", ["nodes", node]) => nodes::inspect(client, node).await,
        ("DELETE", ["nodes", node]) => nodes::remove(client, node, request).await,
        ("POST", ["nodes", node, "update"]) => nodes::update(client, node, request).await,

        ("GET", ["services"]) => services::list(client, request).await,
        ("POST", ["services", "create"]) => services::create(client, request).await,
        ("GET", ["services", service]) => services::inspect(client, service).await,
        ("DELETE", ["services", service]) => services::remove(client, service).await,
        ("POST", ["services", service, "update"]) => services::update(client, service, request).await,
        ("GET", ["services", service, "logs"]) => logs::of_service(client, service, request).await,

        ("GET", ["tasks"]) => tasks::list(client, request).await,
        ("GET", ["tasks", task]) => tasks::inspect(client, task).await,
        ("GET", ["tasks", task, "logs"]) => logs::of_task(client, task, request).await,

        (_, ["secrets", rest @ ..]) => secret_objects(client, Secret, rest, request).await,
        (_, ["configs", rest @ ..]) => secret_objects(client, Config, rest, request).await,

        ("GET", ["networks"]) => networks::list(client, request).await,
        ("POST", ["networks", "create"]) => networks::create(client, request).await,
        ("GET", ["networks", network]) => networks::inspect(client, network, request).await,
        ("DELETE", ["networks", network]) => networks::remove(client, network).await,

        ("GET", ["volumes"]) => volumes::list(client, request).await,
        ("POST", ["volumes", "create"]) => volumes::create(client, request).await,
        ("GET", ["volumes", volume]) => volumes::inspect(client, volume).await,
        ("DELETE", ["volumes", volume]) => volumes::remove(client, volume).await,

        ("GET", ["containers", "json"]) => containers::list(client, request).await,
        ("GET" | "HEAD", ["containers", name, "json"]) => containers::inspect(client, name).await,
        ("GET", ["containers", name, "logs"]) => containers::logs(client, name, request).await,
        ("GET", ["containers", name, "stats"]) => stats::read(client, name, request).await,
        ("POST", ["containers", "create"]) => lifecycle::create(client, request).await,
        ("POST", ["containers", "prune"]) => lifecycle::prune(client, request).await,
        ("GET", ["containers", name, "top"]) => processes::list(client, name, request).await,
        ("POST", ["containers", name, "start"]) => lifecycle::start(client, exit_codes, name).await,
        ("POST", ["containers", name, "stop"]) => lifecycle::stop(client, name, request).await,
        ("POST", ["containers", name, "kill"]) => lifecycle::kill(client, name, request).await,
        ("POST", ["containers", name, "wait"]) => lifecycle::wait(client, exit_codes, name, request).await,
        ("POST", ["containers", name, "attach"]) => attach::attach(client, name, request).await,
        ("POST", ["containers", name, "resize"]) => attach::resize(client, name, request).await,
        ("DELETE", ["containers", name]) => lifecycle::remove(client, name, request).await,
        ("POST", ["containers", name, "restart"]) => {
            lifecycle::restart(client, exit_codes, name, request).await
        }
        ("HEAD", ["containers", name, "archive"]) => archive::stat(client, name, request).await,
        ("GET", ["containers", name, "archive"]) => archive::read(client, name, request).await,
        ("PUT", ["containers", name, "archive"]) => archive::write(client, name, request).await,
        ("POST", ["containers", name, "exec"]) => programs::create(client, programs, name, request).await,
        ("POST", ["exec", id, "start"]) => programs::start(client, programs, id, request).await,
        ("POST", ["exec", id, "resize"]) => programs::resize(programs, id, request).await,
        ("GET", ["exec", id, "json"]) => programs::inspect(programs, id, request),

        ("GET", ["images", "json"]) => images::list(client, request).await,
        ("GET", ["images", name @ .., "json"]) => images::inspect(client, &name.join("/")).await,
        ("POST", ["images", "create"]) => images::pull(client, request).await,
        ("POST", ["images", "load"]) => images::load(client, request).await,
        ("POST", ["images", "prune"]) => images::prune(client, request).await,
        ("DELETE", ["images", name @ ..]) => images::remove(client, &name.join("/"), request).await,
        ("GET", ["distribution", name @ .., "json"]) => images::resolve(client, &name.join("/")).await,

        // `docker inspect` looks for a name among objects of all kinds.
        ("GET", ["plugins", name, "json"]) => {
            Err(DockerError::not_found(format!("plugin {name:?} not found")))
        }
        ("GET", ["plugins"]) => crate::response::ok(&serde_json::json!([])),
        _ => Err(not_served(&request.method, &path)),
    }
}

async fn secret_objects(
    client: &Client,
    kind: warren_types::SecretObjectKind,
    rest: &[&str],
    request: &DockerRequest,
) -> Answer {
    match (request.method.as_str(), rest) {
        ("GET", []) => secret_objects::list(client, kind, request).await,
        ("POST", ["create"]) => secret_objects::create(client, kind, request).await,
        ("GET", [name]) => secret_objects::inspect(client, kind, name).await,
        ("DELETE", [name]) => secret_objects::remove(client, kind, name).await,
        ("POST", [name, "update"]) => secret_objects::update(client, kind, name, request).await,
        _ => Err(not_served(&request.method, &request.path)),
    }
}

fn not_served(method: &Method, path: &[impl AsRef<str>]) -> DockerError {
    let first = path.first().map_or("", AsRef::as_ref);
    match UNSUPPORTED.iter().find(|(part, _)| *part == first) {
        Some((_, message)) => DockerError::unsupported(message),
        None => DockerError::new(StatusCode::NOT_FOUND, format!("page not found: {method} /{first}")),
    }
}
