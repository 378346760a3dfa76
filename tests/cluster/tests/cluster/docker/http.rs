//! Requests as bytes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::ClientConfig;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use warren_docker_api::swarm_import::SwarmObjects;
use warren_documents::service_document;
use warren_proto::convert::stored_service_spec;
use warren_security::{ConnectError, Role};
use warren_testkit::wait::eventually_async;
use warren_types::NodeDescription;

use super::run_worker;
use crate::dial::handshake;
use crate::fixture::{CallerKind, ManagerFixture, WAIT_DEADLINE, description, rollout_completed};
use crate::worker::ScriptedWorker;

pub struct DockerClient {
    pub socket: PathBuf,
    /// Instead of the socket, an address with TLS.
    pub tls: Option<(SocketAddr, Arc<ClientConfig>)>,
}

#[derive(Debug)]
pub struct DockerReply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl DockerReply {
    fn parse(read: &[u8]) -> Self {
        let end = read.windows(4).position(|window| window == b"\r\n\r\n").expect("a response has a head");
        let head = String::from_utf8(read[..end].to_vec()).unwrap().to_ascii_lowercase();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Self { status, head, body: read[end + 4..].to_vec() }
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The message of an error with this status.
    #[track_caller]
    pub fn refused(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        self.json()["message"].as_str().expect("an error has a message").to_owned()
    }
}

/// A response of which only the head has been read.
pub struct OpenDockerReply {
    stream: UnixStream,
    /// What has been read.
    read: Vec<u8>,
}

impl OpenDockerReply {
    /// Reads the response to its end.
    pub async fn end(mut self) -> DockerReply {
        let rest = self.stream.read_to_end(&mut self.read);
        let _ = timeout(WAIT_DEADLINE, rest).await.expect("a response ends");
        DockerReply::parse(&self.read)
    }
}

/// The head of a response, with the empty line at its end.
pub async fn read_head(stream: &mut UnixStream) -> Vec<u8> {
    let mut head = Vec::new();
    let read = async {
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
    };
    timeout(WAIT_DEADLINE, read).await.expect("the head of a response comes");
    head
}

/// All that comes back.
async fn read_response(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &[u8]) -> Vec<u8> {
    // A server that refuses a long request need not read all of it.
    let _ = stream.write_all(request).await;
    let mut read = Vec::new();
    let _ = stream.read_to_end(&mut read).await;
    read
}

impl DockerClient {
    /// Sends bytes and reads the response to its end.
    pub async fn exchange(&self, request: &[u8]) -> DockerReply {
        let read = match &self.tls {
            None => read_response(UnixStream::connect(&self.socket).await.unwrap(), request).await,
            Some((address, config)) => {
                let attempt = |stream| {
                    let connecting =
                        TlsConnector::from(Arc::clone(config)).connect(address.ip().into(), stream);
                    async { connecting.await.map_err(ConnectError::Handshake) }
                };
                read_response(handshake(*address, attempt).await.unwrap(), request).await
            }
        };
        DockerReply::parse(&read)
    }

    /// Of HTTP/1.0: streams are not in chunks, and the connection ends with the response.
    pub async fn send(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> DockerReply {
        let head = format!(
            "{method} {path} HTTP/1.0\r\nHost: docker\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.exchange(&[head.as_bytes(), body].concat()).await
    }

    pub async fn call(&self, method: &str, path: &str, body: Option<Value>) -> DockerReply {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        self.send(method, path, "application/json", body.as_bytes()).await
    }

    /// Sends a POST without a body over the socket, and returns when the head of the response has come.
    pub async fn open(&self, path: &str) -> OpenDockerReply {
        let mut stream = UnixStream::connect(&self.socket).await.unwrap();
        let request = format!(
            "POST {path} HTTP/1.0\r\nHost: docker\r\nContent-Type: application/json\r\nContent-Length: 0\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let read = read_head(&mut stream).await;
        OpenDockerReply { stream, read }
    }

    /// The JSON of a response with success.
    pub async fn get(&self, path: &str) -> Value {
        let response = self.call("GET", path, None).await;
        assert_eq!(response.status, 200, "{path}: {}", String::from_utf8_lossy(&response.body));
        response.json()
    }

    /// Sends JSON, and returns that of the response if there is any.
    pub async fn post(&self, path: &str, body: Value) -> Value {
        let response = self.call("POST", path, Some(body)).await;
        assert!(response.status < 300, "{path}: {}", String::from_utf8_lossy(&response.body));
        if response.body.is_empty() { Value::Null } else { response.json() }
    }

    async fn delete(&self, path: &str) {
        let response = self.call("DELETE", path, None).await;
        assert!(response.status < 300, "{path}: {}", String::from_utf8_lossy(&response.body));
    }
}

pub async fn world() -> (ManagerFixture, DockerClient) {
    let world = ManagerFixture::new().await;
    let socket = world.docker_socket();
    (world, DockerClient { socket, tls: None })
}

fn names(list: &Value) -> Vec<&str> {
    let name = |item| Value::pointer(item, "/Spec/Name").or(Value::pointer(item, "/Name"));
    list.as_array().unwrap().iter().map(|item| name(item).and_then(Value::as_str).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_negotiate_and_errors_have_the_form_of_docker() {
    let (world, docker) = world().await;
    let mode = std::fs::metadata(&docker.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    for method in ["GET", "HEAD"] {
        let ping = docker.call(method, "/_ping", None).await;
        assert_eq!(ping.status, 200);
        for header in
            ["api-version: 1.44", "ostype: linux", "docker-experimental: false", "swarm: active/manager"]
        {
            assert!(ping.head.contains(header), "{}", ping.head);
        }
        assert_eq!(ping.body, if method == "GET" { &b"OK"[..] } else { b"" });
    }
    assert_eq!(docker.get("/v1.24/version").await["ApiVersion"], "1.44");
    let swarm = &docker.get("/v1.44/info").await["Swarm"];
    assert_eq!((&swarm["LocalNodeState"], &swarm["ControlAvailable"]), (&json!("active"), &json!(true)));
    let too_new = docker.call("GET", "/v1.45/info", None).await.refused(400);
    assert_eq!(too_new, "client version 1.45 is too new. Maximum supported API version is 1.44");
    assert!(docker.call("GET", "/v1.23/info", None).await.refused(400).contains("is too old"));
    docker.call("GET", "/nothing", None).await.refused(404);
    docker.call("GET", "/containers/web/json", None).await.refused(404);
    docker.call("POST", "/containers/create", None).await.refused(400);
    docker.call("POST", "/containers/web/rename?name=other", None).await.refused(501);
    docker.call("POST", "/build", None).await.refused(501);
    assert!(
        docker
            .call("POST", "/swarm/init", Some(json!({})))
            .await
            .refused(503)
            .contains("warren manager init")
    );
    docker.call("GET", "/services/missing", None).await.refused(404);
    let filter = docker.call("GET", "/services?filters=%7B%22x%22%3A%5B%5D%7D", None).await.refused(400);
    assert!(filter.starts_with("invalid filter 'x'"), "{filter}");

    let create = "/services/create";
    let kind = docker.send("POST", create, "text/plain", b"{}").await.refused(400);
    assert_eq!(kind, "unsupported Content-Type header (text/plain): must be 'application/json'");
    docker.send("POST", create, "application/json", b"{").await.refused(400);
    docker.send("POST", create, "application/json", b"").await.refused(400);
    let secret =
        docker.send("POST", "/secrets/create", "application/json", br#"{"Name": {"x": "hunter2"}}"#).await;
    assert!(!secret.refused(400).contains("hunter2"));
    docker.send("POST", create, "application/json", &vec![b' '; (4 << 20) + 1]).await.refused(413);
    let large = json!({"Name": "x", "Data": "AAAA".repeat(180_000)});
    assert!(
        docker
            .call("POST", "/secrets/create", Some(large))
            .await
            .refused(400)
            .contains("at most 512000 bytes")
    );
    assert_eq!(docker.exchange(b"NO HTTP\r\n\r\n").await.status, 400);
    // A request that is broken off, and then one that is not.
    let mut broken = UnixStream::connect(&docker.socket).await.unwrap();
    broken
        .write_all(b"POST /services/create HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        .await
        .unwrap();
    drop(broken);
    assert_eq!(docker.get("/services").await, json!([]));
    drop(world);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_secrets_networks_and_volumes_are_managed() {
    let (world, docker) = world().await;
    let labels = BTreeMap::from([("rack".to_owned(), "7".to_owned())]);
    let described = NodeDescription { labels, ..description() };
    let channel = world.channel(CallerKind::Certified(Role::Worker)).await;
    let _worker = ScriptedWorker::connect_as(channel, &described, None).await.welcomed().await;
    let node = &docker.get("/nodes").await[0];
    let id = node["ID"].as_str().unwrap();
    assert_eq!(
        (&node["Spec"]["Labels"], &node["Description"]["Engine"]["Labels"]),
        (&json!({}), &json!({"rack": "7"}))
    );
    assert_eq!(docker.get("/nodes?filters=%7B%22node.label%22:%5B%22rack%22%5D%7D").await, json!([]));
    assert_eq!(
        (&node["Description"]["Hostname"], &node["ManagerStatus"]["Leader"]),
        (&json!("n1"), &json!(true))
    );
    assert_eq!(docker.get("/info").await["Swarm"]["NodeID"], id);
    let update = |node: &Value| format!("/nodes/{id}/update?version={}", node["Version"]["Index"]);
    let mut spec = node["Spec"].clone();
    spec["Labels"] = json!({"zone": "a"});
    spec["Availability"] = json!("drain");
    docker.post(&update(node), spec.clone()).await;
    let changed = docker.get("/nodes/n1").await;
    assert_eq!(changed["Spec"], spec);
    docker.call("POST", &update(node), Some(spec.clone())).await.refused(409);
    spec["Role"] = json!("worker");
    let role = docker.call("POST", &update(&changed), Some(spec)).await.refused(501);
    assert!(role.contains("warren manager rm"), "{role}");

    for (kind, data) in [("secrets", None), ("configs", Some("aHVudGVyMg=="))] {
        let spec = json!({"Name": "token", "Labels": {"a": "b"}, "Data": "aHVudGVyMg=="});
        let id =
            docker.post(&format!("/{kind}/create"), spec.clone()).await["ID"].as_str().unwrap().to_owned();
        docker.call("POST", &format!("/{kind}/create"), Some(spec.clone())).await.refused(409);
        let shown = docker.get(&format!("/{kind}/{}", &id[..12])).await;
        assert_eq!((&shown["ID"], &shown["Spec"]["Labels"]), (&json!(id), &json!({"a": "b"})));
        assert_eq!(shown["Spec"]["Data"].as_str(), data);
        let path = format!("/{kind}/token/update?version={}", shown["Version"]["Index"]);
        let mut other = spec;
        other["Data"] = json!("b3RoZXI=");
        docker.post(&path, other.clone()).await;
        docker.call("POST", &path, Some(other.clone())).await.refused(409);
        other["Labels"] = json!({});
        docker.call("POST", &path, Some(other)).await.refused(501);
        assert_eq!(names(&docker.get(&format!("/{kind}")).await), ["token"]);
        docker.delete(&format!("/{kind}/token")).await;
        assert_eq!(docker.get(&format!("/{kind}")).await, json!([]));
    }

    docker.post("/networks/create", json!({"Name": "back", "Driver": "overlay", "Internal": true})).await;
    let shown = docker.get("/networks/back").await;
    assert_eq!((&shown["Internal"], &shown["Scope"]), (&json!(true), &json!("swarm")));
    let custom = docker.get("/networks?filters=%7B%22type%22%3A%5B%22custom%22%5D%7D").await;
    assert_eq!(names(&custom), ["back"]);
    docker
        .call("POST", "/networks/create", Some(json!({"Name": "x", "Driver": "bridge"})))
        .await
        .refused(400);
    docker.delete("/networks/back").await;
    docker.call("GET", "/networks/back", None).await.refused(404);

    let volume = json!({"Name": "data", "Labels": {"a": "b"}});
    let created = docker.post("/volumes/create", volume.clone()).await;
    assert_eq!(docker.post("/volumes/create", volume).await, created);
    assert_eq!(names(&docker.get("/volumes").await["Volumes"]), ["data"]);
    docker.delete("/volumes/data").await;
    docker.call("GET", "/volumes/data", None).await.refused(404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_lives_through_the_api() {
    let (world, docker) = world().await;
    let worker = run_worker(&world).await;
    let spec = json!({
        "Name": "web", "Labels": {"tier": "front"},
        "TaskTemplate": {"ContainerSpec": {"Image": "nginx:1.27", "Env": ["A=1"]}},
        "Mode": {"Replicated": {"Replicas": 2}},
        "UpdateConfig": {"Parallelism": 0, "Monitor": 1_000_000, "Order": "start-first"},
        "EndpointSpec": {"Ports": [{"TargetPort": 80, "PublishedPort": 8080}]},
    });
    let id = docker.post("/v1.44/services/create", spec).await["ID"].as_str().unwrap().to_owned();
    let created = docker.get("/services/web").await;
    assert_eq!(created["ID"], id);
    assert_eq!(created["Spec"]["TaskTemplate"]["ContainerSpec"]["Env"], json!(["A=1"]));
    assert_eq!(created["UpdateStatus"], Value::Null);
    let running = |image: &'static str| {
        let docker = &docker;
        move || async move {
            let filters =
                "filters=%7B%22service%22%3A%5B%22web%22%5D%2C%22_up-to-date%22%3A%5B%22true%22%5D%7D";
            let tasks = docker.get(&format!("/tasks?{filters}")).await;
            let is_running = |task: &&Value| {
                task["Status"]["State"] == "running" && task["Spec"]["ContainerSpec"]["Image"] == image
            };
            match tasks.as_array().unwrap().iter().filter(is_running).count() {
                2 => Ok(()),
                _ => Err(tasks.to_string()),
            }
        }
    };
    eventually_async(WAIT_DEADLINE, "two tasks", running("nginx:1.27")).await;
    let tasks = docker.get("/tasks").await;
    let task = tasks[0]["ID"].as_str().unwrap();
    assert_eq!(docker.get(&format!("/tasks/{}", &task[..12])).await["ID"], task);
    let listed = docker.get("/services?status=true").await;
    assert_eq!(listed[0]["ServiceStatus"]["DesiredTasks"], 2);
    let restart = |service: &Value| service["Spec"]["TaskTemplate"]["RestartPolicy"]["Condition"].clone();
    assert_eq!((restart(&listed[0]), restart(&created)), (Value::Null, json!("any")));
    assert_eq!(listed[0]["Spec"]["UpdateConfig"], created["Spec"]["UpdateConfig"]);

    let logs = docker.call("GET", "/services/web/logs?stdout=1&details=1&timestamps=1", None).await;
    assert!(logs.head.contains("application/vnd.docker.multiplexed-stream"), "{}", logs.head);
    let text = String::from_utf8_lossy(&logs.body);
    assert_eq!(text.matches("hello from a task\n").count(), 2, "{text}");
    assert!(
        logs.body.starts_with(b"\x01\0\0\0\0\0\0") && text.contains(&format!("swarm.task.id={task}")),
        "{text}"
    );
    docker.call("GET", "/services/web/logs", None).await.refused(400);

    let update = |of: &Value| format!("/services/{id}/update?version={}", of["Version"]["Index"]);
    // Until then managers change its version.
    rollout_completed(&world.local().await, "web").await;
    let current = docker.get("/services/web").await;
    let mut spec = current["Spec"].clone();
    spec["TaskTemplate"]["ContainerSpec"]["Isolation"] = json!("hyperv");
    let refused = docker.call("POST", &update(&current), Some(spec)).await.refused(400);
    assert!(refused.starts_with("TaskTemplate.ContainerSpec.Isolation: "), "{refused}");
    // What a list leaves out stays as it is when it is sent back.
    let image = json!("nginx:1.28");
    let mut spec = docker.get("/services").await[0]["Spec"].clone();
    spec["TaskTemplate"]["ContainerSpec"]["Image"] = image.clone();
    docker.post(&update(&current), spec.clone()).await;
    docker.call("POST", &update(&current), Some(spec)).await.refused(409);
    let mut expected = current["Spec"].clone();
    expected["TaskTemplate"]["ContainerSpec"]["Image"] = image;
    assert_eq!(docker.get("/services/web").await["Spec"], expected);
    eventually_async(WAIT_DEADLINE, "new tasks", running("nginx:1.28")).await;
    rollout_completed(&world.local().await, "web").await;
    assert_eq!(docker.get("/services/web").await["UpdateStatus"]["State"], "completed");
    let path = format!("{}&rollback=previous", update(&docker.get("/services/web").await));
    docker.post(&path, json!({})).await;
    let image = &docker.get("/services/web").await["Spec"]["TaskTemplate"]["ContainerSpec"]["Image"];
    assert_eq!(image, "nginx:1.27");

    docker.delete("/services/web").await;
    eventually_async(WAIT_DEADLINE, "the service to go", || async {
        let left = docker.get("/services").await;
        if left == json!([]) { Ok(()) } else { Err(left.to_string()) }
    })
    .await;
    let filters = "filters=%7B%22type%22%3A%7B%22service%22%3Atrue%7D%7D";
    let events = docker.call("GET", &format!("/events?since=1&until=9999999.5&{filters}"), None).await;
    assert_eq!(events.body, b"", "nothing happened before");
    let events = docker.call("GET", &format!("/events?since=1&until={}&{filters}", now_s()), None).await;
    let text = String::from_utf8(events.body).unwrap();
    let actions: Vec<String> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|event| event["Action"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!((actions.first().unwrap().as_str(), actions.last().unwrap().as_str()), ("create", "remove"));
    assert!(actions.iter().any(|action| action == "update"));
    worker.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn swarm_is_read_as_documents() {
    let (world, docker) = world().await;
    let worker = run_worker(&world).await;
    docker.post("/networks/create", json!({"Name": "back", "Driver": "overlay", "Internal": true})).await;
    for kind in ["secrets", "configs"] {
        docker.post(&format!("/{kind}/create"), json!({"Name": "token", "Data": "aHVudGVyMg=="})).await;
    }
    let mount = json!({"Type": "volume", "Source": "data", "Target": "/data"});
    let container = json!({"Image": "nginx:1.27", "Env": ["A=1"], "Mounts": [mount]});
    docker
        .post(
            "/services/create",
            json!({
                "Name": "web", "Labels": {"tier": "front"}, "Mode": {"Replicated": {"Replicas": 2}},
                "TaskTemplate": {"ContainerSpec": container, "Networks": [{"Target": "back"}]},
                "EndpointSpec": {"Ports": [{"TargetPort": 80, "PublishedPort": 8080}]},
            }),
        )
        .await;
    let node = &docker.get("/nodes").await[0];
    let path = format!("/nodes/n1/update?version={}", node["Version"]["Index"]);
    let spec = json!({"Role": node["Spec"]["Role"], "Availability": "active", "Labels": {"zone": "a"}});
    docker.post(&path, spec).await;

    let SwarmObjects { documents, notes, left_out } = SwarmObjects::read(&docker.socket).await.unwrap();
    assert_eq!(left_out, [""; 0]);
    let kinds: Vec<&str> = documents.iter().map(|one| one["kind"].as_str().unwrap()).collect();
    // The default network is one of this cluster as well.
    assert_eq!(kinds, ["Network", "Network", "Config", "Service"]);
    let stored = world.local().await.services().get("web").await.unwrap().spec.unwrap();
    assert_eq!(documents[3], service_document(&stored_service_spec(stored).unwrap()));
    assert_eq!(documents[2]["spec"]["data"], "aHVudGVyMg==");
    for expected in ["warren secret create token FILE", "warren node update n1 --label-add zone=a"] {
        assert!(notes.iter().any(|note| note.contains(expected)), "{notes:?}");
    }
    let missing = docker.socket.with_extension("missing");
    let refused = SwarmObjects::read(&missing).await.unwrap_err().to_string();
    assert!(refused.contains("cannot be reached"), "{refused}");
    worker.abort();
}

/// The current second, and one more: the events until then.
fn now_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() + 1
}
