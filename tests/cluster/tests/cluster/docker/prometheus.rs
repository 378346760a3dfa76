//! Prometheus, unchanged, finds the tasks of services: `make soak` runs this, and needs `prometheus` for it.

use std::process::Command;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use warren_testkit::process::ChildProcess;
use warren_testkit::soak;
use warren_testkit::wait::eventually_async;

use super::http::world;
use super::run_worker;
use crate::fixture::WAIT_DEADLINE;

/// The active targets of a Prometheus.
async fn targets(address: &str) -> Result<Value, String> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /api/v1/targets?state=active HTTP/1.0\r\n\r\n").await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = exchange.await.map_err(|error| error.to_string())?;
    let body = answer.windows(4).position(|part| part == b"\r\n\r\n").map(|at| &answer[at + 4..]);
    let parsed: Value =
        serde_json::from_slice(body.unwrap_or_default()).map_err(|error| error.to_string())?;
    Ok(parsed["data"]["activeTargets"].clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_finds_tasks_and_nodes() {
    if !soak::is_on() {
        return;
    }
    let (world, docker) = world().await;
    let worker = run_worker(&world).await;
    let container = json!({"Image": "nginx:1.27", "Labels": {"scrape": "yes"}});
    let spec = json!({
        "Name": "web", "Mode": {"Replicated": {"Replicas": 2}}, "TaskTemplate": {"ContainerSpec": container},
    });
    docker.post("/services/create", spec).await;
    let directory = tempfile::tempdir().unwrap();
    let jobs = ["tasks", "nodes"].map(|role| {
        let host = format!("unix://{}", docker.socket.display());
        let discovery = json!({"host": host, "role": role, "refresh_interval": "1s", "port": 9100});
        // Nothing is sent to tasks: what is found counts.
        let relabel = json!([
            {"source_labels": ["__meta_dockerswarm_task_id"], "target_label": "task"},
            {"target_label": "__address__", "replacement": "127.0.0.1:1"},
        ]);
        json!({"job_name": role, "dockerswarm_sd_configs": [discovery], "relabel_configs": relabel})
    });
    // JSON is YAML.
    let config = directory.path().join("prometheus.yml");
    std::fs::write(&config, json!({"scrape_configs": jobs}).to_string()).unwrap();
    let address = format!("127.0.0.1:{}", warren_testkit::ports::allocate());
    let mut command = Command::new("prometheus");
    command.arg(format!("--config.file={}", config.display()));
    command.arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()));
    command.arg(format!("--web.listen-address={address}"));
    let _prometheus = ChildProcess::spawn("prometheus", command, &directory.path().join("log"));
    eventually_async(WAIT_DEADLINE, "targets", || async {
        let found = targets(&address).await?;
        let of = |job: &str| {
            let all = found.as_array().into_iter().flatten();
            all.filter(|target| target["labels"]["job"] == job).collect::<Vec<_>>()
        };
        let label = |target: &Value, name: &str| {
            target["discoveredLabels"][format!("__meta_dockerswarm_{name}")].as_str().map(str::to_owned)
        };
        let is_web = |target: &&&Value| {
            label(target, "service_name").as_deref() == Some("web")
                && label(target, "task_state").as_deref() == Some("running")
                && label(target, "node_hostname").as_deref() == Some("n1")
        };
        let (tasks, nodes) = (of("tasks"), of("nodes"));
        let is_complete = tasks.iter().filter(is_web).count() == 2 && nodes.len() == 1;
        if is_complete { Ok(()) } else { Err(found.to_string()) }
    })
    .await;
    worker.abort();
}
