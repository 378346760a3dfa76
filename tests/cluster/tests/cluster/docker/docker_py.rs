//! docker-py, unchanged, over the socket and over TLS: `make soak` runs this, and needs Debian's `python3-docker`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use warren_testkit::{soak, tool};
use warren_types::UserRole;

use super::http::world;
use super::run_worker;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster/docker/docker_py.py");

async fn run(url: String, certificates: Option<&Path>) -> String {
    let mut command = Command::new("/usr/bin/python3");
    command.arg(SCRIPT).arg(url).args(certificates);
    // They replace the certificates that a client of `requests` was given.
    command.env_remove("REQUESTS_CA_BUNDLE").env_remove("CURL_CA_BUNDLE");
    let run = move || tool::stdout(command, Duration::from_secs(240)).unwrap();
    tokio::task::spawn_blocking(run).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn docker_py_manages_the_cluster_over_socket_and_tls() {
    if !soak::is_on() {
        return;
    }
    let (world, docker) = world().await;
    let worker = run_worker(&world).await;
    let worked = run(format!("unix://{}", docker.socket.display()), None).await;
    assert!(worked.lines().count() > 60, "{worked}");

    let admin = world.user("ann", UserRole::Admin).await;
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    file("ca.pem", world.manager().roots().pem());
    file("cert.pem", admin.certificate_pem());
    file("key.pem", admin.key().pem());
    let address = world.manager().docker_address().unwrap();
    assert_eq!(run(format!("tcp://{address}"), Some(directory.path())).await, worked);
    worker.abort();
}
