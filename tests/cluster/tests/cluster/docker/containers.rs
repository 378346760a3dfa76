//! Containers: lists, programs, files.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use warren_testkit::wait::eventually_async;

use super::http::{DockerClient, world};
use super::{motd, run_worker};
use crate::fixture::WAIT_DEADLINE;
use crate::worker::DIGEST;

/// A service with one task that runs, and the id of its container.
pub async fn running(docker: &DockerClient) -> String {
    let container = json!({"Image": "nginx:1.27", "Command": ["serve"], "Labels": {"a": "b"}});
    let spec = json!({"Name": "web", "TaskTemplate": {"ContainerSpec": container}});
    docker.post("/services/create", spec).await;
    eventually_async(WAIT_DEADLINE, "a container", || async {
        let listed = docker.get("/containers/json").await;
        listed[0]["Id"].as_str().map(str::to_owned).ok_or_else(|| listed.to_string())
    })
    .await
}

/// Describes a program.
async fn described(docker: &DockerClient, container: &str, command: &[&str]) -> String {
    let body = json!({"Cmd": command, "AttachStdin": true, "AttachStdout": true, "AttachStderr": true});
    let created = docker.post(&format!("/containers/{container}/exec"), body).await;
    created["Id"].as_str().unwrap().to_owned()
}

/// Starts a program on a connection of its own, and returns that after the head of the response.
async fn started(docker: &DockerClient, program: &str) -> UnixStream {
    let mut stream = UnixStream::connect(&docker.socket).await.unwrap();
    let request = format!(
        "POST /v1.41/exec/{program}/start HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\
         Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101") && head.contains("upgrade: tcp"), "{head}");
    stream
}

async fn exit_code(docker: &DockerClient, program: &str) -> Value {
    eventually_async(WAIT_DEADLINE, "the end of a program", || async {
        let shown = docker.get(&format!("/exec/{program}/json")).await;
        if shown["Running"] == false { Ok(shown["ExitCode"].clone()) } else { Err(shown.to_string()) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_are_listed_as_containers() {
    let (world, docker) = world().await;
    let worker = run_worker(&world).await;
    let id = running(&docker).await;
    let one = &docker.get("/containers/json").await[0];
    let name = one["Names"][0].as_str().unwrap().trim_start_matches('/').to_owned();
    assert!(name.starts_with("web.1.") && id.len() == 64, "{one}");
    assert_eq!(
        (&one["Image"], &one["Command"], &one["State"], &one["Labels"]["com.docker.swarm.service.name"]),
        (&json!("nginx:1.27"), &json!("serve"), &json!("running"), &json!("web"))
    );
    assert!(one["Status"].as_str().unwrap().starts_with("Up "), "{one}");
    for reference in [&id, &id[..12], &name, "web.1"] {
        let shown = docker.get(&format!("/containers/{reference}/json")).await;
        assert_eq!((&shown["Id"], &shown["State"]["Running"]), (&json!(id), &json!(true)), "{reference}");
        assert_eq!((&shown["Path"], &shown["Config"]["Labels"]["a"]), (&json!("serve"), &json!("b")));
    }
    let task = &docker.get("/tasks").await[0];
    assert_eq!(task["Status"]["ContainerStatus"]["ContainerID"], id);
    // `docker inspect` goes on to services and tasks then.
    for other in ["web", task["ID"].as_str().unwrap(), "web.9", "missing"] {
        docker.call("GET", &format!("/containers/{other}/json"), None).await.refused(404);
    }
    let listed = async |filter: Value| {
        let filter = filter.to_string().replace('"', "%22").replace(['{'], "%7B").replace('}', "%7D");
        docker.get(&format!("/containers/json?filters={filter}")).await.as_array().unwrap().len()
    };
    for (filter, expected) in [
        (json!({"name": ["web"]}), 1),
        // The name contains a random id, which has no hyphen.
        (json!({"name": ["no-web"]}), 0),
        (json!({"label": ["a=b"]}), 1),
        (json!({"status": ["exited"]}), 0),
        (json!({"ancestor": ["docker.io/library/nginx:1.27"]}), 1),
        (json!({"ancestor": ["nginx"]}), 0),
        (json!({"node": ["n1"]}), 1),
        (json!({"id": [&id[..12]]}), 1),
    ] {
        assert_eq!(listed(filter.clone()).await, expected, "{filter}");
    }
    docker.call("GET", "/containers/json?filters=%7B%22x%22%3A%5B%5D%7D", None).await.refused(400);
    docker.get("/containers/json?size=1").await;
    docker
        .call("GET", "/containers/json?filters=%7B%22name%22%3A%5B%22w.%2A%22%5D%7D", None)
        .await
        .refused(400);
    let logs = docker.call("GET", &format!("/containers/{id}/logs?stdout=1"), None).await;
    assert_eq!(logs.body, b"\x01\0\0\0\0\0\0\x12hello from a task\n");
    let stats = docker.get(&format!("/containers/{id}/stats?stream=false")).await;
    assert_eq!((&stats["id"], &stats["cpu_stats"]["online_cpus"]), (&json!(id), &json!(4)));

    docker.call("POST", &format!("/containers/{id}/restart?signal=9"), None).await.refused(400);
    docker.post(&format!("/containers/{id}/restart?t=10"), json!({})).await;
    eventually_async(WAIT_DEADLINE, "another container", || async {
        let listed = docker.get("/containers/json").await;
        let found = listed[0]["Id"].as_str().is_some_and(|other| other != id);
        if found { Ok(()) } else { Err(listed.to_string()) }
    })
    .await;
    docker.call("GET", &format!("/containers/{id}/top"), None).await.refused(409);
    let changes = docker.call("GET", &format!("/containers/{id}/changes"), None).await.refused(501);
    assert!(changes.contains("docker run|start|stop|kill|rm|top"), "{changes}");
    worker.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_run_on_the_connection_of_their_client() {
    let (world, docker) = world().await;
    let worker = run_worker(&world).await;
    let container = running(&docker).await;
    let program = described(&docker, &container, &["cat"]).await;
    let shown = docker.get(&format!("/exec/{program}/json")).await;
    assert_eq!((&shown["Running"], &shown["ContainerID"]), (&json!(false), &json!(container)));
    let mut stream = started(&docker, &program).await;
    stream.write_all(b"hello").await.unwrap();
    let mut frame = [0; 13];
    stream.read_exact(&mut frame).await.unwrap();
    assert_eq!(frame, *b"\x01\0\0\0\0\0\0\x05hello");
    assert_eq!(docker.get(&format!("/exec/{program}/json")).await["Running"], true);
    docker.post(&format!("/exec/{program}/resize?h=24&w=80"), json!({})).await;
    stream.read_exact(&mut frame).await.unwrap();
    assert_eq!(frame, *b"\x01\0\0\0\0\0\0\x0580x24");
    stream.shutdown().await.unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"\x02\0\0\0\0\0\0\x0fthe input ended");
    // It is known before the output ends.
    assert_eq!(docker.get(&format!("/exec/{program}/json")).await["ExitCode"], 7);
    docker.call("POST", &format!("/exec/{program}/start"), Some(json!({}))).await.refused(409);
    docker.call("POST", &format!("/exec/{program}/resize?h=24&w=80"), None).await.refused(409);

    // Its message is its output, and its exit code that of shells.
    let missing = described(&docker, &container, &["nosuch"]).await;
    let mut said = String::new();
    let mut stream = started(&docker, &missing).await;
    // Nobody reads its input.
    stream.write_all(&[7; 4096]).await.unwrap();
    stream.shutdown().await.unwrap();
    stream.read_to_string(&mut said).await.unwrap();
    assert!(said.contains("nosuch is not in the image"), "{said}");
    assert_eq!(exit_code(&docker, &missing).await, 127);

    // A client that goes away ends its program, also one that neither reads nor writes.
    let left = described(&docker, &container, &["sleep"]).await;
    let mut stream = started(&docker, &left).await;
    stream.shutdown().await.unwrap();
    assert_eq!(docker.get(&format!("/exec/{left}/json")).await["Running"], true);
    drop(stream);
    assert_eq!(exit_code(&docker, &left).await, 255);

    let path = format!("/containers/{container}/exec");
    docker.call("POST", &path, Some(json!({"Cmd": []}))).await.refused(400);
    let privileged = json!({"Cmd": ["cat"], "Privileged": true});
    docker.call("POST", &path, Some(privileged)).await.refused(400);
    docker.call("POST", "/containers/web.9/exec", Some(json!({"Cmd": ["cat"]}))).await.refused(404);
    for path in ["/exec/missing/start", "/exec/missing/resize?h=1&w=1"] {
        docker.call("POST", path, Some(json!({}))).await.refused(404);
    }
    docker.call("GET", "/exec/missing/json", None).await.refused(404);
    worker.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_copied_in_both_directions() {
    let (world, docker) = world().await;
    let worker = run_worker(&world).await;
    let path = format!("/containers/{}/archive", running(&docker).await);
    let file = format!("{path}?path=%2Fetc%2Fmotd");
    for method in ["HEAD", "GET"] {
        let read = docker.call(method, &file, None).await;
        assert_eq!((read.status, read.body), (200, if method == "GET" { motd() } else { Vec::new() }));
        assert!(read.head.contains("x-docker-container-path-stat: ey"), "{}", read.head);
    }
    docker.call("GET", &format!("{path}?path=%2Fmissing"), None).await.refused(404);
    docker.call("GET", &path, None).await.refused(400);
    let target = format!("{path}?path=%2Ftmp&noOverwriteDirNonDir=true");
    assert_eq!(docker.send("PUT", &target, "application/x-tar", &motd()).await.status, 200);
    docker.send("PUT", &target, "application/x-tar", b"no archive").await.refused(500);
    worker.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_of_all_nodes_are_one_list() {
    let (world, docker) = world().await;
    // Without a node: no images, and no error, by which `docker inspect` would end.
    assert_eq!(docker.get("/images/json").await, json!([]));
    docker.call("GET", "/images/nginx:1.27/json", None).await.refused(404);
    let worker = run_worker(&world).await;
    eventually_async(WAIT_DEADLINE, "the images of the node", || async {
        let listed = docker.get("/images/json").await;
        let tags = &listed[0]["RepoTags"];
        if *tags == json!(["nginx:1.27"]) { Ok(()) } else { Err(listed.to_string()) }
    })
    .await;
    let shown = docker.get("/images/nginx:1.27/json").await;
    assert_eq!((&shown["Id"], &shown["Size"]), (&json!(DIGEST), &json!(4096)));
    assert_eq!(shown["RepoDigests"], json!([format!("nginx@{DIGEST}")]));
    docker.call("GET", "/images/nginx/json", None).await.refused(404);
    let filter = "filters=%7B%22reference%22%3A%5B%22ngi%2A%22%5D%7D";
    docker.call("GET", &format!("/images/json?{filter}"), None).await.refused(400);

    let text = async |path: &str, body: &[u8]| {
        let reply = docker.send("POST", path, "application/x-tar", body).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        String::from_utf8(reply.body).unwrap()
    };
    let pulled = text("/images/create?fromImage=nginx&tag=1.27", b"").await;
    assert!(pulled.contains("Pull complete") && !pulled.contains("errorDetail"), "{pulled}");
    let failed = text("/images/create?fromImage=missing&tag=1", b"").await;
    let last: Value = serde_json::from_str(failed.lines().last().unwrap()).unwrap();
    assert!(last["error"].as_str().unwrap().contains("the registry does not know it"), "{failed}");
    docker.call("POST", "/images/create?fromImage=nginx", None).await.refused(400);
    let loaded = text("/images/load", &motd()).await;
    assert!(loaded.ends_with("{\"stream\":\"Loaded image: nginx:1.27\\n\"}\n"), "{loaded}");

    let resolved = docker.get("/distribution/nginx:1.27/json").await;
    assert_eq!(
        (&resolved["Descriptor"]["digest"], &resolved["Descriptor"]["size"]),
        (&json!(DIGEST), &json!(1234))
    );
    // Docker's CLI makes a constraint of platforms.
    assert_eq!(resolved["Platforms"], json!([]));
    let refused = docker.call("GET", "/distribution/missing:1/json", None).await.refused(409);
    assert!(refused.contains("registry docker.io has no image"), "{refused}");
    docker.call("GET", "/distribution/nginx%20x/json", None).await.refused(400);
    docker.call("POST", "/images/nginx:1.27/tag?repo=other&tag=1", None).await.refused(501);
    docker.call("DELETE", "/images/other:1", None).await.refused(404);
    let removed = docker.call("DELETE", "/images/nginx:1.27", None).await.json();
    assert_eq!(removed, json!([{"Untagged": "nginx:1.27"}, {"Deleted": DIGEST}]));

    docker.call("POST", "/images/prune", None).await.refused(501);
    let pruned =
        docker.post("/images/prune?filters=%7B%22dangling%22%3A%5B%22false%22%5D%7D", json!({})).await;
    assert_eq!(pruned, json!({"ImagesDeleted": [{"Untagged": "nginx:1.27"}], "SpaceReclaimed": 4096}));
    worker.abort();
}
