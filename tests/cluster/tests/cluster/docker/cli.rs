//! The CLI of Docker, unchanged. Its package starts a daemon, so that `make test` does not install it: `make soak`
//! runs this where `docker` is installed.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use warren_proto::convert::stored_service_spec;
use warren_testkit::cli::WarrenCli;
use warren_testkit::{soak, tool};
use warren_types::ServiceSpec;

use super::run_worker;
use crate::fixture::{ManagerFixture, rollout_completed};
use crate::worker::DIGEST;
use crate::wrong_inputs::write_private;

const COMPOSE: &str = r#"
services:
  db:
    image: mariadb:11.4
    environment: {MARIADB_DATABASE: shop, PASSWORD_FILE: /run/secrets/password}
    secrets: [password]
    volumes: ["db:/var/lib/mysql"]
    deploy:
      placement: {constraints: [node.role == manager]}
      restart_policy: {condition: on-failure, delay: 3s}
  web:
    image: nginx:1.27
    command: [nginx, -g, daemon off;]
    user: "101"
    stop_grace_period: 20s
    networks: [front, back]
    configs: [{source: site, target: /etc/nginx/site.conf, mode: 0440}]
    ports: ["8080:80"]
    healthcheck: {test: [CMD, curl, -f, localhost], interval: 10s, timeout: 2s, retries: 4}
    deploy:
      replicas: 2
      labels: {tier: front}
      resources: {limits: {cpus: "0.5", memory: 64M}}
      update_config: {parallelism: 2, order: start-first, failure_action: pause}
networks: {front: {}, back: {internal: true}}
volumes: {db: {}}
secrets: {password: {file: ./password.txt}}
configs: {site: {file: ./site.conf}}
"#;

struct DockerCli {
    host: String,
    directory: tempfile::TempDir,
}

impl DockerCli {
    /// The output of a command, which must succeed.
    async fn ok(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("docker");
        command.args(arguments);
        self.run(command).await
    }

    /// The output of a line for a shell.
    async fn shell(&self, line: &str) -> String {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        self.run(command).await
    }

    async fn run(&self, mut command: Command) -> String {
        command.current_dir(self.directory.path());
        command.env("DOCKER_HOST", &self.host).env("DOCKER_CONFIG", self.directory.path().join("config"));
        run(command).await
    }

    async fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.ok(arguments).await).unwrap()
    }
}

async fn run(command: Command) -> String {
    let run = move || tool::stdout(command, Duration::from_secs(120)).unwrap();
    tokio::task::spawn_blocking(run).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cli_of_docker_manages_the_cluster() {
    if !soak::is_on() {
        return;
    }
    let world = ManagerFixture::new().await;
    let worker = run_worker(&world).await;
    let host = format!("unix://{}", world.docker_socket().display());
    let docker = DockerCli { host, directory: tempfile::tempdir().unwrap() };
    assert_eq!(
        docker.ok(&["version", "--format", "{{.Client.APIVersion}} {{.Server.APIVersion}}"]).await,
        "1.44 1.44\n"
    );
    assert_eq!(
        docker.ok(&["info", "--format", "{{.Swarm.LocalNodeState}} {{.Swarm.Managers}}"]).await,
        "active 1\n"
    );
    objects(&docker).await;
    service(&docker, &world).await;
    stack(&docker, &world).await;
    worker.abort();
}

async fn objects(docker: &DockerCli) {
    let nodes = docker.ok(&["node", "ls"]).await;
    assert!(nodes.contains("n1") && nodes.contains("Leader") && nodes.contains(" *"), "{nodes}");
    docker.ok(&["node", "update", "--label-add", "zone=a", "n1"]).await;
    let labels = docker.ok(&["node", "inspect", "self", "--format", "{{.Spec.Labels.zone}}"]).await;
    assert_eq!(labels, "a\n");

    std::fs::write(docker.directory.path().join("data.txt"), "hunter2").unwrap();
    for kind in ["secret", "config"] {
        docker.ok(&[kind, "create", "--label", "a=b", "data", "data.txt"]).await;
        assert_eq!(docker.ok(&[kind, "ls", "--format", "{{.Name}}"]).await, "data\n");
        assert!(docker.ok(&[kind, "inspect", "--pretty", "data"]).await.contains("a=b"));
    }
    docker.ok(&["network", "create", "--driver", "overlay", "back"]).await;
    assert!(docker.ok(&["network", "ls"]).await.contains("back"));
    assert_eq!(docker.ok(&["network", "inspect", "back", "--format", "{{.Scope}}"]).await, "swarm\n");
    docker.ok(&["volume", "create", "--label", "a=b", "data"]).await;
    assert_eq!(docker.ok(&["volume", "ls", "-q"]).await, "data\n");
}

async fn service(docker: &DockerCli, world: &ManagerFixture) {
    let create = [
        "service",
        "create",
        "--quiet",
        "--name",
        "web",
        "--replicas",
        "2",
        "--secret",
        "data",
        "--config",
        "source=data,target=/etc/data",
        "--network",
        "back",
        "--mount",
        "type=volume,source=data,target=/data",
        "--publish",
        "8080:80",
        "--env",
        "A=1",
        "--constraint",
        "node.labels.zone==a",
        "--limit-memory",
        "64M",
        "--update-monitor",
        "1ms",
        "nginx:1.27",
    ];
    // Returns once its tasks run.
    docker.ok(&create).await;
    assert_eq!(docker.ok(&["service", "ls", "--format", "{{.Name}} {{.Replicas}}"]).await, "web 2/2\n");
    let tasks = docker.ok(&["service", "ps", "web"]).await;
    assert!(tasks.contains("web.1") && tasks.contains("web.2") && tasks.contains("n1"), "{tasks}");
    let tasks = docker.ok(&["node", "ps", "self", "-q"]).await;
    assert_eq!(tasks.lines().count(), 2, "{tasks}");
    let task = tasks.lines().next().unwrap();
    assert_eq!(docker.json(&["inspect", task]).await[0]["DesiredState"], "running");
    assert!(docker.ok(&["service", "inspect", "--pretty", "web"]).await.contains("nginx:1.27"));
    let shown = &docker.json(&["inspect", "web"]).await[0]["Spec"]["TaskTemplate"]["ContainerSpec"];
    assert_eq!((&shown["Env"][0], &shown["Secrets"][0]["SecretName"]), (&"A=1".into(), &"data".into()));
    let logs = docker.ok(&["service", "logs", "web"]).await;
    assert!(logs.contains("web.1") && logs.contains("@n1") && logs.contains("| hello from a task"), "{logs}");

    containers(docker).await;

    // Managers change its version until then, and a client with an older one is refused.
    let settled = || async { rollout_completed(&world.local().await, "web").await };
    settled().await;
    docker.ok(&["service", "update", "--quiet", "--image", "nginx:1.28", "--env-add", "B=2", "web"]).await;
    let image = ["service", "inspect", "web", "--format", "{{.Spec.TaskTemplate.ContainerSpec.Image}}"];
    assert_eq!(docker.ok(&image).await, format!("nginx:1.28@{DIGEST}\n"));
    settled().await;
    docker.ok(&["service", "rollback", "--quiet", "web"]).await;
    assert!(docker.ok(&image).await.starts_with("nginx:1.27"));
    settled().await;
    docker.ok(&["service", "scale", "web=3"]).await;
    assert_eq!(docker.ok(&["service", "ls", "--format", "{{.Replicas}}"]).await, "3/3\n");
    settled().await;
    docker.ok(&["service", "update", "--quiet", "--force", "web"]).await;
    docker.ok(&["service", "rm", "web"]).await;
    gone(docker).await;
    let events = docker.ok(&["events", "--since", "1h", "--until", "0s", "--filter", "type=service"]).await;
    assert!(events.contains("service create") && events.contains("name=web"), "{events}");
    for kind in ["secret", "config", "network", "volume"] {
        let name = if kind == "network" { "back" } else { "data" };
        docker.ok(&[kind, "rm", name]).await;
    }
}

/// The tasks of the service `web`, as containers.
async fn containers(docker: &DockerCli) {
    let listed = docker.ok(&["ps", "--filter", "label=com.docker.swarm.service.name=web", "-q"]).await;
    assert_eq!(listed.lines().count(), 2, "{listed}");
    let container = listed.lines().next().unwrap().to_owned();
    let named = docker.ok(&["ps", "--format", "{{.Names}} {{.Image}} {{.Status}}"]).await;
    assert!(named.contains("web.1.") && named.contains("nginx:1.27 Up "), "{named}");
    assert_eq!(docker.json(&["inspect", &container]).await[0]["State"]["Status"], "running");
    assert_eq!(docker.ok(&["logs", &container]).await, "hello from a task\n");
    let stats = docker.ok(&["stats", "--no-stream", "--format", "{{.Name}} {{.CPUPerc}}", &container]).await;
    assert!(stats.starts_with("web."), "{stats}");
    let exec = |words: &str| format!("docker exec {words}; echo code $?");
    let cat = docker.shell(&format!("echo hello | {}", exec(&format!("-i {container} cat")))).await;
    assert_eq!(cat, "hello\ncode 7\n");
    assert_eq!(docker.shell(&exec(&format!("{container} nosuch"))).await, "code 127\n");
    docker.ok(&["exec", "--detach", &container, "sleep"]).await;
    docker.ok(&["cp", &format!("{container}:/etc/motd"), "motd"]).await;
    assert_eq!(std::fs::read_to_string(docker.directory.path().join("motd")).unwrap(), "hello");
}

/// Waits until no service is left.
async fn gone(docker: &DockerCli) {
    warren_testkit::wait::eventually_async(crate::fixture::WAIT_DEADLINE, "services to go", || async {
        let left = docker.ok(&["service", "ls", "-q"]).await;
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
}

/// Both CLIs make equal services of one file.
async fn stack(docker: &DockerCli, world: &ManagerFixture) {
    let directory = docker.directory.path();
    for (file, text) in [("compose.yaml", COMPOSE), ("password.txt", "hunter2"), ("site.conf", "server {}")] {
        std::fs::write(directory.join(file), text).unwrap();
    }
    docker.ok(&["stack", "deploy", "--detach=true", "-c", "compose.yaml", "shop"]).await;
    assert_eq!(docker.ok(&["stack", "ls", "--format", "{{.Name}} {{.Services}}"]).await, "shop 2\n");
    let by_docker = specs(world).await;
    for service in ["shop_db", "shop_web"] {
        rollout_completed(&world.local().await, service).await;
    }
    // Unchanged.
    docker.ok(&["stack", "deploy", "--detach=true", "-c", "compose.yaml", "shop"]).await;
    assert_eq!(specs(world).await, by_docker);
    assert!(docker.ok(&["stack", "ps", "shop"]).await.contains("shop_web.2"));
    assert!(docker.ok(&["stack", "services", "shop"]).await.contains("shop_db"));
    docker.ok(&["stack", "rm", "shop"]).await;
    gone(docker).await;
    let contexts = directory.join("contexts.toml");
    let text = format!("current = \"here\"\n[[contexts]]\nname = \"here\"\nsocket = {:?}\n", world.socket());
    write_private(&contexts, &text);
    let mut deploy = WarrenCli::new(&contexts).command(&["deploy", "--detach", "-c", "compose.yaml", "shop"]);
    deploy.current_dir(directory);
    run(deploy).await;
    assert_eq!(specs(world).await, by_docker);
}

/// The specs of all services, without what Docker's CLI adds to the file: labels, and root as the owner of files.
async fn specs(world: &ManagerFixture) -> Vec<ServiceSpec> {
    let services = world.local().await.services().list().await.unwrap();
    let spec = |service: warren_proto::v1::Service| {
        let mut spec = stored_service_spec(service.spec.unwrap()).unwrap();
        spec.labels.remove("com.docker.stack.image");
        // Docker's CLI asks for the digest, and makes it a part of the name.
        spec.task.image = spec.task.image.to_string().split('@').next().unwrap().parse().unwrap();
        spec.task.container_labels.remove("com.docker.stack.namespace");
        for file in spec.task.secrets.iter_mut().chain(&mut spec.task.configs) {
            (file.uid, file.gid) = (file.uid.filter(|uid| *uid != 0), file.gid.filter(|gid| *gid != 0));
        }
        spec.task.network = without_order(spec.task.network);
        spec
    };
    services.into_iter().map(spec).collect()
}

/// Docker's CLI sorts networks by their names.
fn without_order(network: warren_types::TaskNetworkMode) -> warren_types::TaskNetworkMode {
    let warren_types::TaskNetworkMode::Networks(mut networks) = network else { return network };
    networks.sort_by(|one, other| one.network.cmp(&other.network));
    warren_types::TaskNetworkMode::Networks(networks)
}
