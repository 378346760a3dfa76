//! Docker's API over TLS: the roles of its callers.

use std::sync::Arc;
use std::time::SystemTime;

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use warren_api::methods::RequiredRole;
use warren_proto::v1;
use warren_proto::v1::audit_response::Message;
use warren_proto::v1::cluster_client::ClusterClient;
use warren_security::{CertificateAuthority, Credentials, Identity, Role, Roots};
use warren_types::{AdmissionPolicy, AdmissionRules, ClusterSettingsChange, UserRole};

use super::containers::running;
use super::http::{DockerClient, DockerReply, world};
use super::{motd, run_worker};
use crate::access::{CALLERS, credentials, is_allowed};
use crate::fixture::{CallerKind, ManagerFixture};

/// Requests, with the least role that they need.
const REQUESTS: [(&str, &str, RequiredRole); 48] = [
    ("GET", "/version", RequiredRole::Viewer),
    ("GET", "/info", RequiredRole::Viewer),
    ("GET", "/events?since=1&until=2", RequiredRole::Viewer),
    ("GET", "/swarm", RequiredRole::Viewer),
    ("GET", "/nodes", RequiredRole::Viewer),
    ("GET", "/nodes/n1", RequiredRole::Viewer),
    ("POST", "/nodes/n1/update?version=", RequiredRole::Admin),
    ("DELETE", "/nodes/n1", RequiredRole::Admin),
    ("GET", "/services", RequiredRole::Viewer),
    ("GET", "/services/web", RequiredRole::Viewer),
    ("GET", "/services/web/logs?stdout=1", RequiredRole::Viewer),
    ("POST", "/services/create", RequiredRole::Operator),
    ("POST", "/services/web/update?version=", RequiredRole::Operator),
    ("DELETE", "/services/db", RequiredRole::Operator),
    ("GET", "/tasks", RequiredRole::Viewer),
    ("GET", "/secrets", RequiredRole::Viewer),
    ("GET", "/secrets/key", RequiredRole::Viewer),
    ("POST", "/secrets/create", RequiredRole::Operator),
    ("DELETE", "/secrets/other", RequiredRole::Operator),
    ("GET", "/configs/motd", RequiredRole::Operator),
    ("POST", "/configs/create", RequiredRole::Operator),
    ("DELETE", "/configs/other", RequiredRole::Operator),
    ("GET", "/networks", RequiredRole::Viewer),
    ("GET", "/networks/default", RequiredRole::Viewer),
    ("POST", "/networks/create", RequiredRole::Operator),
    ("DELETE", "/networks/other", RequiredRole::Operator),
    ("GET", "/volumes", RequiredRole::Viewer),
    ("POST", "/volumes/create", RequiredRole::Operator),
    ("DELETE", "/volumes/other", RequiredRole::Operator),
    ("GET", "/containers/json", RequiredRole::Viewer),
    ("GET", "/containers/web.1/json", RequiredRole::Viewer),
    ("GET", "/containers/web.1/logs?stdout=1", RequiredRole::Viewer),
    ("GET", "/containers/web.1/stats?stream=false", RequiredRole::Viewer),
    ("HEAD", "/containers/web.1/archive?path=/etc/motd", RequiredRole::Operator),
    ("GET", "/containers/web.1/archive?path=/etc/motd", RequiredRole::Operator),
    ("PUT", "/containers/web.1/archive?path=/etc", RequiredRole::Operator),
    ("GET", "/images/json", RequiredRole::Viewer),
    ("GET", "/images/nginx:1.27/json", RequiredRole::Viewer),
    ("POST", "/images/create?fromImage=nginx&tag=1.27", RequiredRole::Operator),
    ("POST", "/images/load", RequiredRole::Operator),
    ("POST", "/images/prune?filters=%7B%22dangling%22%3A%5B%22false%22%5D%7D", RequiredRole::Admin),
    ("GET", "/services?status=true", RequiredRole::Viewer),
    ("GET", "/containers/web.1/logs?stdout=1&tail=1", RequiredRole::Viewer),
    ("GET", "/containers/web.1/top", RequiredRole::Operator),
    ("POST", "/containers/web.1/kill?signal=USR1", RequiredRole::Operator),
    ("GET", "/distribution/nginx:1.27/json", RequiredRole::Operator),
    ("DELETE", "/images/nginx:1.27", RequiredRole::Admin),
    ("POST", "/containers/web.1/restart", RequiredRole::Operator),
];

/// The client of `credentials`, which verifies the address of the manager.
fn client(world: &ManagerFixture, credentials: Option<&Credentials>) -> DockerClient {
    client_of(&world.manager().roots(), world, credentials)
}

fn client_of(roots: &Roots, world: &ManagerFixture, credentials: Option<&Credentials>) -> DockerClient {
    let mut store = RootCertStore::empty();
    store.add(CertificateDer::from_pem_slice(roots.pem().as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(store);
    let config = match credentials {
        None => builder.with_no_client_auth(),
        Some(credentials) => {
            let chain = CertificateDer::pem_slice_iter(credentials.certificate_pem().as_bytes());
            let key = PrivateKeyDer::from_pem_slice(credentials.key().pem().as_bytes()).unwrap();
            builder.with_client_auth_cert(chain.collect::<Result<_, _>>().unwrap(), key).unwrap()
        }
    };
    let address = world.manager().docker_address().unwrap();
    DockerClient { socket: world.docker_socket(), tls: Some((address, Arc::new(config))) }
}

async fn send(docker: &DockerClient, method: &str, path: &str) -> DockerReply {
    let body = match path {
        "/services/create" => {
            json!({"Name": "new", "TaskTemplate": {"ContainerSpec": {"Image": "nginx:1.27"}}})
        }
        path if path.starts_with("/services/web/update") => {
            json!({"Name": "web", "TaskTemplate": {"ContainerSpec": {"Image": "nginx:1.27"}}})
        }
        "/secrets/create" | "/configs/create" => json!({"Name": "new", "Data": "aGVsbG8="}),
        "/networks/create" | "/volumes/create" => json!({"Name": "new"}),
        path if path.starts_with("/nodes/n1/update") => json!({"Role": "manager", "Availability": "active"}),
        path if method == "PUT" || path == "/images/load" => {
            return docker.send(method, path, "application/x-tar", &motd()).await;
        }
        _ => return docker.call(method, path, None).await,
    };
    docker.call(method, path, Some(body)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_over_tls_admits_exactly_its_callers() {
    let (world, local) = world().await;
    let worker = run_worker(&world).await;
    running(&local).await;
    local.post("/secrets/create", json!({"Name": "key", "Data": "aGVsbG8="})).await;
    local.post("/configs/create", json!({"Name": "motd", "Data": "aGVsbG8="})).await;
    for caller in CALLERS {
        let Some(credentials) = credentials(&world, caller).await else { continue };
        let docker = client(&world, Some(&credentials));
        // Whoever may remove them has done so.
        for (kind, body) in [
            ("services", json!({"Name": "db", "TaskTemplate": {"ContainerSpec": {"Image": "nginx:1.27"}}})),
            ("secrets", json!({"Name": "other", "Data": "aGVsbG8="})),
            ("configs", json!({"Name": "other", "Data": "aGVsbG8="})),
            ("networks", json!({"Name": "other"})),
            ("volumes", json!({"Name": "other"})),
        ] {
            local.call("POST", &format!("/{kind}/create"), Some(body)).await;
        }
        for (method, path, need) in REQUESTS {
            // An update is refused for its version before anybody asks for permission.
            let path = match path.strip_suffix("/update?version=") {
                Some(object) => format!("{path}{}", local.get(object).await["Version"]["Index"]),
                None => path.to_owned(),
            };
            let status = send(&docker, method, &path).await.status;
            if is_allowed(caller, need) {
                assert!(![401, 403, 501, 503].contains(&status), "{caller:?} {method} {path}: {status}");
            } else {
                assert_eq!(status, 403, "{caller:?} {method} {path}");
            }
        }
        // Tells nothing but that the manager is there.
        assert_eq!(send(&docker, "GET", "/_ping").await.status, 200, "{caller:?}");
    }
    worker.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn viewer_starts_no_program_and_nobody_sees_those_of_others() {
    let (world, local) = world().await;
    let worker = run_worker(&world).await;
    let container = running(&local).await;
    let viewer = client(&world, Some(&world.user("view", UserRole::Viewer).await));
    let operator = client(&world, Some(&world.user("operate", UserRole::Operator).await));
    let describe = async |docker: &DockerClient| {
        let body = json!({"Cmd": ["cat"], "AttachStdout": true});
        let created = docker.post(&format!("/containers/{container}/exec"), body).await;
        created["Id"].as_str().unwrap().to_owned()
    };
    let (of_viewer, of_operator) = (describe(&viewer).await, describe(&operator).await);
    let start = |program: &str| format!("/exec/{program}/start");
    viewer.call("POST", &start(&of_viewer), Some(json!({}))).await.refused(403);
    for other in [&viewer, &local] {
        other.call("POST", &start(&of_operator), Some(json!({}))).await.refused(404);
        other.call("GET", &format!("/exec/{of_operator}/json"), None).await.refused(404);
        other.call("POST", &format!("/exec/{of_operator}/resize?w=1&h=1"), None).await.refused(404);
    }
    let started = operator.call("POST", &start(&of_operator), Some(json!({"Detach": true}))).await;
    assert_eq!(started.status, 200, "{started:?}");

    // The admission policy of operators holds, and calls are recorded with the name of their caller.
    let container = json!({"Image": "nginx:1.27", "CapabilityAdd": ["CAP_SYS_ADMIN"]});
    let spec = json!({"Name": "db", "TaskTemplate": {"ContainerSpec": container}});
    let why = operator.call("POST", "/services/create", Some(spec.clone())).await.refused(403);
    assert!(why.contains("task.capAdd[0]: is SYS_ADMIN, which operator.capAdd does not allow"), "{why}");
    let cap_add = vec!["SYS_ADMIN".parse().unwrap()];
    let admission_policy = Some(AdmissionPolicy {
        operator: AdmissionRules { cap_add, ..Default::default() },
        ..Default::default()
    });
    let change = ClusterSettingsChange { admission_policy, ..Default::default() };
    world.admin().await.cluster().update(&change, None, None).await.unwrap();
    let created = operator.call("POST", "/services/create", Some(spec)).await;
    assert_eq!(created.status, 201, "{created:?}");
    let mut cluster = ClusterClient::new(world.channel(CallerKind::Local).await);
    let request = v1::AuditRequest { user: "operate".into(), ..Default::default() };
    let mut lines = cluster.audit(request).await.unwrap().into_inner();
    let mut methods = Vec::new();
    while let Some(line) = lines.message().await.unwrap() {
        match line.message {
            Some(Message::Line(line)) => methods.push(line.method),
            other => panic!("{other:?}"),
        }
    }
    for method in ["Tasks/Exec", "Services/Create"] {
        assert!(methods.iter().any(|recorded| recorded.ends_with(method)), "{method}: {methods:?}");
    }
    worker.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_certificates_of_the_cluster_reach_the_api() {
    let world = ManagerFixture::new().await;
    let address = world.manager().docker_address().unwrap();
    let foreign =
        CertificateAuthority::create(&world.manager().cluster().to_string(), SystemTime::now()).unwrap();
    let identity = Identity::new(foreign.cluster(), Role::User, "admin").unwrap();
    let forged = foreign.issue(&identity, SystemTime::now()).unwrap();
    // TLS 1.3 tells a client only when it reads that its certificate was refused.
    for credentials in [None, Some(&forged)] {
        let (_, config) = client(&world, credentials).tls.unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(config);
        let read = async {
            let mut stream = connector.connect(address.ip().into(), stream).await?;
            stream.write_all(b"GET /version HTTP/1.0\r\n\r\n").await?;
            let mut read = Vec::new();
            stream.read_to_end(&mut read).await.map(|_| read)
        };
        assert!(read.await.is_err(), "{credentials:?}");
    }
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET /version HTTP/1.0\r\n\r\n").await.unwrap();
    let mut read = Vec::new();
    let _ = plain.read_to_end(&mut read).await;
    assert!(!read.starts_with(b"HTTP"), "{read:?}");

    // A client that trusts another authority refuses the certificate of the manager.
    let other = client_of(&foreign.roots(), &world, Some(&world.manager().admin()));
    let (_, config) = other.tls.unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let refused = tokio_rustls::TlsConnector::from(config).connect(address.ip().into(), stream).await;
    assert!(refused.is_err(), "a client of another cluster trusts it");
}
