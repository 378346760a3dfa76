//! The calls of Traefik (`pkg/provider/docker/pswarm.go`, v3) and of Portainer (`api/docker/snapshot.go` and
//! `app/docker/rest/`), as their public sources make them, and what these read in the answers.

use serde_json::{Value, json};
use warren_testkit::wait::eventually_async;

use super::http::{DockerClient, world};
use super::run_worker;
use crate::fixture::WAIT_DEADLINE;

/// Filters as Docker's library for Go sends them, with names of percent-encoding.
fn filters(of: &Value) -> String {
    let bytes = of.to_string().into_bytes();
    bytes.iter().map(|byte| format!("%{byte:02X}")).collect()
}

async fn create_service(docker: &DockerClient, name: &str, mode: &str) -> String {
    let spec = json!({
        "Name": name, "Labels": {"traefik.http.routers.web.rule": "Host(`web.test`)"},
        "Mode": {"Replicated": {"Replicas": 2}}, "EndpointSpec": {"Mode": mode},
        "TaskTemplate": {"ContainerSpec": {"Image": "nginx:1.27"}, "Networks": [{"Target": "front"}]},
    });
    docker.post("/services/create", spec).await["ID"].as_str().unwrap().to_owned()
}

/// The addresses of a service in its network, as Traefik finds them: those of its tasks, or its virtual one.
async fn traefik_addresses(docker: &DockerClient, service_id: &str) -> (Vec<String>, Vec<String>) {
    assert_eq!(docker.get("/v1.44/version").await["ApiVersion"], "1.44");
    let scope = filters(&json!({"scope": {"swarm": true}}));
    let networks = docker.get(&format!("/v1.44/networks?filters={scope}")).await;
    let name_of = |id: &Value| {
        let network = networks.as_array().unwrap().iter().find(|network| network["Id"] == *id);
        network.map(|network| network["Name"].as_str().unwrap().to_owned())
    };
    let services = docker.get("/v1.44/services").await;
    let service = services.as_array().unwrap().iter().find(|service| service["ID"] == service_id).unwrap();
    assert_eq!(service["Spec"]["Labels"]["traefik.http.routers.web.rule"], "Host(`web.test`)");
    let plain = |address: &Value| address.as_str().unwrap().strip_suffix("/32").unwrap().to_owned();
    let virtual_addresses = match service["Spec"]["EndpointSpec"]["Mode"].as_str().unwrap() {
        "vip" => {
            let all = service["Endpoint"]["VirtualIPs"].as_array().unwrap().iter();
            all.filter(|one| name_of(&one["NetworkID"]).as_deref() == Some("front"))
                .map(|one| plain(&one["Addr"]))
                .collect()
        }
        _ => Vec::new(),
    };
    let of_service = filters(&json!({"service": {service_id: true}, "desired-state": {"running": true}}));
    let tasks = docker.get(&format!("/v1.44/tasks?filters={of_service}")).await;
    let mut addresses = Vec::new();
    for task in tasks.as_array().unwrap().iter().filter(|task| task["Status"]["State"] == "running") {
        assert!(task["Slot"].as_u64().unwrap() > 0);
        let node = docker.get(&format!("/v1.44/nodes/{}", task["NodeID"].as_str().unwrap())).await;
        assert!(node["Status"]["Addr"].as_str().is_some_and(|address| !address.is_empty()), "{node}");
        for attachment in task["NetworksAttachments"].as_array().unwrap() {
            if name_of(&attachment["Network"]["ID"]).as_deref() == Some("front") {
                addresses.extend(attachment["Addresses"].as_array().unwrap().iter().map(plain));
            }
        }
    }
    (addresses, virtual_addresses)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traefik_finds_tasks_and_virtual_addresses() {
    let (world, docker) = world().await;
    let worker = run_worker(&world).await;
    docker.post("/networks/create", json!({"Name": "front", "Driver": "overlay"})).await;
    for (name, mode, count) in [("web", "vip", 1), ("direct", "dnsrr", 0)] {
        let id = create_service(&docker, name, mode).await;
        eventually_async(WAIT_DEADLINE, "the addresses of both tasks", || async {
            let (tasks, of_service) = traefik_addresses(&docker, &id).await;
            let distinct = tasks.len() == 2 && tasks[0] != tasks[1];
            match distinct && of_service.len() == count {
                true => Ok(()),
                false => Err(format!("{name}: {tasks:?}, {of_service:?}")),
            }
        })
        .await;
    }
    worker.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn portainer_reads_cluster_and_works_on_it() {
    let (world, docker) = world().await;
    let worker = run_worker(&world).await;
    docker.post("/networks/create", json!({"Name": "front", "Driver": "overlay"})).await;
    let id = create_service(&docker, "web", "vip").await;
    eventually_async(WAIT_DEADLINE, "two containers", || async {
        let running = docker.get("/containers/json?all=0").await;
        if running.as_array().unwrap().len() == 2 { Ok(()) } else { Err(running.to_string()) }
    })
    .await;
    // The snapshot of the dashboard.
    assert_eq!(docker.call("HEAD", "/_ping", None).await.status, 200);
    let info = docker.get("/info").await;
    assert_eq!(info["Swarm"]["ControlAvailable"], true);
    assert!(info["NCPU"].as_u64().unwrap() > 0 && info["MemTotal"].as_u64().unwrap() > 0, "{info}");
    let nodes = docker.get("/nodes").await;
    assert!(nodes[0]["Description"]["Resources"]["NanoCPUs"].as_u64().unwrap() >= 1_000_000_000);
    let containers = docker.get("/containers/json?all=1").await;
    assert_eq!(containers[0]["State"], "running");
    assert_eq!(containers[0]["Labels"]["com.docker.swarm.service.name"], "web");
    assert!(docker.get("/volumes").await["Volumes"].is_array());
    // The pages of objects.
    for path in [
        "/version",
        "/services",
        "/tasks",
        "/networks",
        "/images/json?all=0",
        "/secrets",
        "/configs",
        "/swarm",
        "/plugins",
        "/system/df",
        "/events?since=1700000000&until=1700000001",
    ] {
        assert_eq!(docker.call("GET", path, None).await.status, 200, "{path}");
    }
    let container = containers[0]["Id"].as_str().unwrap();
    for action in ["json", "top", "stats?stream=false", "logs?stdout=1&stderr=1&tail=100&timestamps=0"] {
        let path = format!("/containers/{container}/{action}");
        assert_eq!(docker.call("GET", &path, None).await.status, 200, "{path}");
    }
    let service = docker.get(&format!("/services/{id}")).await;
    assert_eq!(docker.call("GET", &format!("/services/{id}/logs?stdout=1"), None).await.status, 200);
    // It sends back the whole spec, changed.
    let mut spec = service["Spec"].clone();
    spec["Mode"]["Replicated"]["Replicas"] = json!(3);
    let version = &service["Version"]["Index"];
    docker.post(&format!("/services/{id}/update?version={version}"), spec.clone()).await;
    let after = docker.get(&format!("/services/{id}")).await;
    assert_eq!(after["Spec"], spec);
    docker.call("POST", &format!("/services/{id}/update?version={version}"), Some(spec)).await.refused(409);
    let image = docker.get("/images/json").await[0]["Id"].as_str().unwrap().to_owned();
    let removed = docker.call("DELETE", &format!("/images/{image}?force=false"), None).await;
    assert_eq!(removed.json()[0], json!({"Untagged": "nginx:1.27"}));
    docker.call("POST", "/auth", Some(json!({"username": "a", "password": "b"}))).await.refused(501);
    assert_eq!(docker.call("DELETE", &format!("/services/{id}"), None).await.status, 200);
    worker.abort();
}
