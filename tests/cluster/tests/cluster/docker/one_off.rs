//! Containers of their own, as of `docker run`.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;
use warren_proto::v1;
use warren_proto::v1::exec_task::Work;
use warren_proto::v1::open_stream::Purpose;
use warren_proto::v1::stream_frame::Frame;
use warren_testkit::wait::eventually_async;

use super::http::{DockerClient, read_head, world};
use super::run_worker;
use crate::fixture::WAIT_DEADLINE;
use crate::worker::{ScriptedStream, ScriptedWorker, report};

/// Creates a container with these arguments, and returns its id.
async fn created(docker: &DockerClient, name: &str, arguments: &[&str], host: Value) -> String {
    let body = json!({"Image": "nginx:1.27", "Cmd": arguments, "HostConfig": host});
    let created = docker.post(&format!("/containers/create?name={name}"), body).await;
    created["Id"].as_str().unwrap().to_owned()
}

async fn state(docker: &DockerClient, container: &str) -> Value {
    docker.get(&format!("/containers/{container}/json")).await["State"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn container_is_created_started_waited_for_and_removed() {
    let (world, docker) = world().await;
    let worker = run_worker(&world).await;
    let id = created(&docker, "job", &["exit", "3"], json!({})).await;
    assert_eq!(id.len(), 64);
    assert_eq!(state(&docker, &id).await["Status"], "created");
    assert_eq!(docker.get("/containers/json").await, json!([]));
    let listed = docker.get("/containers/json?all=1").await;
    assert_eq!((&listed[0]["Id"], &listed[0]["Names"]), (&json!(id), &json!(["/job"])));
    assert_eq!(listed[0]["State"], "created");
    docker.call("POST", "/containers/create?name=job", Some(json!({"Image": "nginx"}))).await.refused(409);
    docker.call("POST", "/containers/job/kill", None).await.refused(409);
    assert_eq!(docker.call("POST", "/containers/job/stop", None).await.status, 304);

    // As `docker run`: the heads of the responses to attach and wait come before the start is sent.
    let attached = docker.open("/containers/job/attach?stream=1&stdout=1").await;
    let waited = docker.open("/containers/job/wait?condition=next-exit").await;
    let start = format!("/containers/{id}/start");
    let started = docker.call("POST", &start, None);
    let (attached, waited, started) = tokio::join!(attached.end(), waited.end(), started);
    assert_eq!(started.status, 204, "{started:?}");
    assert_eq!(waited.json(), json!({"StatusCode": 3}));
    assert_eq!(attached.body, b"\x01\0\0\0\0\0\0\x12hello from a task\n");
    let ended = state(&docker, &id[..12]).await;
    assert_eq!((&ended["Status"], &ended["ExitCode"]), (&json!("exited"), &json!(3)));
    assert_eq!(docker.call("POST", "/containers/job/wait", None).await.json(), json!({"StatusCode": 3}));
    // It is the same container when it is started again.
    assert_eq!(docker.call("POST", "/containers/job/start", None).await.status, 204);
    assert_eq!(state(&docker, &id).await["ExitCode"], 3);
    assert_eq!(docker.call("DELETE", "/containers/job", None).await.status, 204);
    docker.call("GET", &format!("/containers/{id}/json"), None).await.refused(404);
    docker.call("POST", "/containers/job/start", None).await.refused(404);
    created(&docker, "job", &["serve"], json!({})).await;
    worker.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_container_is_stopped_restarted_and_removed_by_force() {
    let (world, docker) = world().await;
    let worker = run_worker(&world).await;
    let id = created(&docker, "web", &["serve"], json!({})).await;
    for expected in [204, 304] {
        assert_eq!(docker.call("POST", "/containers/web/start", None).await.status, expected);
    }
    assert_eq!(state(&docker, "web").await["Running"], true);
    assert_eq!(docker.get("/containers/json").await[0]["Id"], id);
    docker.call("DELETE", "/containers/web", None).await.refused(409);
    assert_eq!(docker.call("POST", "/containers/web/kill?signal=USR1", None).await.status, 204);
    docker.call("POST", "/containers/web/kill?signal=HELLO", None).await.refused(400);
    docker.call("POST", "/containers/web/stop?signal=USR1", None).await.refused(501);
    let top = docker.get("/containers/web/top").await;
    assert_eq!(top["Titles"][7], "CMD");
    assert_eq!(top["Processes"].as_array().unwrap().len(), 1);
    assert_eq!(top["Processes"][0][1], "71");
    docker.call("GET", "/containers/web/top?ps_args=aux", None).await.refused(501);
    assert_eq!(docker.call("POST", "/containers/web/resize?h=20&w=90", None).await.status, 200);
    docker.call("POST", "/containers/web/resize?h=many&w=90", None).await.refused(400);
    assert_eq!(docker.call("POST", "/containers/web/restart", None).await.status, 204);
    assert_eq!(state(&docker, &id).await["Running"], true);
    assert_eq!(docker.call("POST", "/containers/web/kill?signal=SIGKILL", None).await.status, 204);
    assert_eq!(state(&docker, "web").await["Running"], false);
    assert_eq!(docker.call("POST", "/containers/web/start", None).await.status, 204);
    created(&docker, "idle", &["serve"], json!({})).await;
    let pruned = docker.post("/containers/prune", Value::Null).await;
    assert_eq!(pruned["ContainersDeleted"].as_array().unwrap().len(), 1);
    docker.call("GET", "/containers/idle/json", None).await.refused(404);
    assert_eq!(docker.call("DELETE", "/containers/web?force=1", None).await.status, 204);
    assert_eq!(docker.get("/containers/json?all=1").await, json!([]));

    // With --rm it is removed when it has ended, and the client gets its exit code.
    created(&docker, "once", &["exit", "7"], json!({"AutoRemove": true})).await;
    let waited = docker.open("/containers/once/wait?condition=removed").await;
    let (waited, started) = tokio::join!(waited.end(), docker.call("POST", "/containers/once/start", None));
    assert_eq!((started.status, waited.json()), (204, json!({"StatusCode": 7})));
    docker.call("GET", "/containers/once/json", None).await.refused(404);

    // Tasks of services are not containers of their own.
    let spec = json!({"Name": "db", "TaskTemplate": {"ContainerSpec": {"Image": "nginx:1.27"}}});
    docker.post("/services/create", spec).await;
    eventually_async(WAIT_DEADLINE, "a task", || async {
        let found = docker.call("GET", "/containers/db.1/json", None).await;
        if found.status == 200 { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
    for (method, path) in [("POST", "/containers/db.1/stop"), ("DELETE", "/containers/db.1?force=1")] {
        let refused = docker.call(method, path, None).await.refused(409);
        assert!(refused.contains("is a task of service db"), "{refused}");
    }
    worker.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn container_that_cannot_run_is_an_error_of_its_start() {
    let (world, docker) = world().await;
    let worker = run_worker(&world).await;
    created(&docker, "bad", &["reject"], json!({})).await;
    let refused = docker.call("POST", "/containers/bad/start", None).await.refused(500);
    assert!(refused.contains("there is no such program"), "{refused}");
    // Its output ends with it.
    created(&docker, "once", &["reject"], json!({"AutoRemove": true})).await;
    let attached = docker.open("/containers/once/attach?stream=1&stdout=1").await;
    let waited = docker.open("/containers/once/wait?condition=removed").await;
    let started = docker.call("POST", "/containers/once/start", None);
    let (attached, waited, started) = tokio::join!(attached.end(), waited.end(), started);
    started.refused(500);
    assert_eq!((attached.body.as_slice(), waited.status), (&b""[..], 200));
    docker.call("GET", "/containers/once/json", None).await.refused(404);
    let refuse = async |body: Value| docker.call("POST", "/containers/create", Some(body)).await.refused(400);
    let host = |field: &str, value: Value| json!({"Image": "nginx", "HostConfig": {field: value}});
    for (body, expected) in [
        (json!({"Image": ""}), "Image"),
        (json!({"Image": "nginx", "Volumes": {"/data": {}}}), "Volumes: every volume has a name"),
        (host("Links", json!(["db"])), "HostConfig.Links: containers of one network find each other by name"),
        (host("CpuShares", json!(512)), "HostConfig.CpuShares: give --cpus"),
        (host("Binds", json!(["/data"])), "HostConfig.Binds[0]"),
        (host("NetworkMode", json!("container:web")), "HostConfig.NetworkMode"),
        (host("PortBindings", json!({"80/tcp": [{"HostPort": "80-90"}]})), "HostConfig.PortBindings[80/tcp]"),
        (host("SecurityOpt", json!(["label=disable"])), "HostConfig.SecurityOpt[0]"),
        (host("CapAdd", json!(["MAGIC"])), "HostConfig.CapAdd[0]"),
        (host("RestartPolicy", json!({"Name": "never"})), "HostConfig.RestartPolicy.Name"),
        (host("Memory", json!(-5)), "HostConfig.Memory"),
    ] {
        let refused = refuse(body).await;
        assert!(refused.contains(expected), "{refused}");
    }
    worker.abort();
}

/// A connection that has become the output of a container.
async fn attached(docker: &DockerClient, path: &str) -> UnixStream {
    let mut stream = UnixStream::connect(&docker.socket).await.unwrap();
    let request =
        format!("POST {path} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let head = read_head(&mut stream).await;
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    stream
}

/// A worker whose task writes its input, once that has ended, and exits. Returns the input.
async fn echo_input(mut worker: ScriptedWorker) -> Vec<u8> {
    let (mut input, mut log): (Option<(String, Vec<u8>)>, Option<ScriptedStream>) = (None, None);
    loop {
        match (input.take(), log.take()) {
            (Some((task, bytes)), Some(stream)) => {
                let (stream_of_line, text) = (v1::LogStream::Out.into(), bytes.clone().into());
                let line = v1::LogLine { at_ns: 1, stream: stream_of_line, text, partial: true };
                stream.send(Frame::Lines(v1::LogLines { lines: vec![line] })).await;
                stream.send(Frame::Done(v1::StreamDone {})).await;
                let exit = Some(v1::TaskExit { code: 0, out_of_memory: false });
                worker.report(vec![v1::TaskReport { exit, ..report(&task, v1::TaskState::Complete) }]).await;
                stream.wait_closed().await;
                return bytes;
            }
            incomplete => (input, log) = incomplete,
        }
        worker.apply_assignment().await;
        let asked = timeout(Duration::from_millis(20), worker.next_stream_request()).await;
        let Ok(v1::OpenStream { stream_id, purpose, .. }) = asked else { continue };
        let mut stream = worker.attach_to(stream_id).await;
        match purpose {
            Some(Purpose::ExecTask(v1::ExecTask { task_id, work: Some(Work::Attach(asked)) })) => {
                assert_eq!(asked, v1::AttachTask { input: true, terminal: None });
                stream.send(Frame::ProgramStarted(v1::StreamDone {})).await;
                stream.send(Frame::AttachedAt(1)).await;
                let bytes = stream.archive().await.expect("the input ends");
                input = Some((task_id, bytes));
                stream.send(Frame::ExitCode(0)).await;
                tokio::spawn(stream.wait_closed());
            }
            Some(Purpose::ReadLogs(_)) => log = Some(stream),
            _ => {
                stream.send(Frame::Done(v1::StreamDone {})).await;
                tokio::spawn(stream.wait_closed());
            }
        }
    }
}

/// As `printf 'a\nb' | docker run -i`: the input waits for the start, and its end is that of the container's input.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn input_of_the_client_reaches_the_container_that_it_starts() {
    let (world, docker) = world().await;
    let worker = tokio::spawn(echo_input(ScriptedWorker::dial(&world).await));
    let body = json!({"Image": "nginx:1.27", "Cmd": ["cat"], "OpenStdin": true, "StdinOnce": true});
    docker.post("/containers/create?name=job", body).await;
    let inspected = docker.get("/containers/job/json").await;
    assert_eq!(
        (&inspected["Config"]["OpenStdin"], &inspected["Config"]["StdinOnce"]),
        (&json!(true), &json!(true))
    );
    assert!(inspected["Config"]["Labels"].get("io.warren.stdin-once").is_none(), "{inspected}");
    let path = "/containers/job/attach?stream=1&stdin=1&stdout=1&stderr=1";
    docker.call("POST", path, None).await.refused(400);
    let mut stream = attached(&docker, path).await;
    stream.write_all(b"a\nb").await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(docker.call("POST", "/containers/job/start", None).await.status, 204);
    let mut output = Vec::new();
    timeout(WAIT_DEADLINE, stream.read_to_end(&mut output)).await.expect("it ends").unwrap();
    assert_eq!(output, b"\x01\0\0\0\0\0\0\x03a\nb");
    assert_eq!(worker.await.unwrap(), b"a\nb");
}

/// A client whose connection becomes the output of the container.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_comes_on_the_connection_that_attached() {
    let (world, docker) = world().await;
    let worker = run_worker(&world).await;
    created(&docker, "job", &["exit", "0"], json!({})).await;
    docker.call("POST", "/containers/job/attach?stream=1&stdin=1&stdout=1", None).await.refused(409);
    let mut stream = attached(&docker, "/containers/job/attach?stream=1&stdout=1&stderr=1").await;
    assert_eq!(docker.call("POST", "/containers/job/start", None).await.status, 204);
    let mut output = Vec::new();
    timeout(WAIT_DEADLINE, stream.read_to_end(&mut output)).await.expect("it ends").unwrap();
    assert_eq!(output, b"\x01\0\0\0\0\0\0\x12hello from a task\n");
    worker.abort();
}
