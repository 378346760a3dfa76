//! Files of the kind that projects publish, on three nodes. The images are stand-ins: each serves a page on every port
//! that the file publishes, and one on a port of its own, with which health checks are replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use warren_testkit::image::{ImageLayer, TestImage};
use warren_testkit::node::LabNode;
use warren_testkit::wait::eventually;
use warren_testkit::{soak, tool};

use crate::e2e::cluster::WorkerCluster;
use crate::e2e::fixture::SOON;

/// Their meaning is compared by the tests of the crate.
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../pkg/compose/tests/compose/examples");
/// Those of `make test`: relative paths, names of containers, secrets, and a service that must complete first.
const QUICK: [&str; 3] = ["newsletter", "wiki", "workflows"];
/// What the machine of a test does not have.
const MISSING_HERE: &[(&str, &str)] = &[
    // Its root is not a shared mount.
    ("node-exporter", "volumes: !override ['/:/host:ro']"),
    ("homeassistant", "volumes: !override ['config:/config']"),
    ("zigbee2mqtt", "devices: !override ['/dev/null:/dev/ttyACM0'], volumes: !override ['zigbee:/app/data']"),
];
/// The port on which every stand-in serves.
const OWN_PORT: u64 = 60_001;
const PAGE: &str = "a stand-in serves\n";

/// Programs that run and end, as files name them.
const RUN_ONCE: [&str; 2] = ["/bin/airflow", "/opt/kafka/bin/kafka-topics.sh"];

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value[key].as_str()
}

/// What the programs of an image must do for its services.
#[derive(Default)]
struct StandIn {
    ports: BTreeSet<u64>,
    programs: BTreeSet<String>,
}

impl StandIn {
    fn image(&self, reference: &str) -> TestImage {
        let serve: String =
            self.ports.iter().map(|port| format!("httpd -p {port} -h /www || exit 1\n")).collect();
        let server = format!("#!/bin/sh\n{serve}trap exit TERM QUIT INT\nsleep 1000000 & wait\n");
        let check = format!("#!/bin/sh\nexec wget -qO /dev/null http://127.0.0.1:{OWN_PORT}/\n");
        let groups = "root:x:0:\ndialout:x:20:\nnogroup:x:65534:\n";
        let mut layer = ImageLayer::new()
            .file("/www/index.html", PAGE, 0o644)
            .file("/etc/group", groups, 0o644)
            .file("/bin/check", check.clone(), 0o755)
            .file("/bin/jenkins-cli", check.clone(), 0o755)
            .file("/bin/pg_isready", check, 0o755)
            .file("/bin/bash", "#!/bin/sh\nexec /bin/sh \"$@\"\n", 0o755)
            .file("/bin/stand-in", server.clone(), 0o755);
        for program in RUN_ONCE {
            layer = layer.file(program, "#!/bin/sh\n", 0o755);
        }
        for program in self.programs.iter().filter(|name| !matches!(name.as_str(), "/bin/sh" | "/bin/bash")) {
            let path = if program.starts_with('/') { program.clone() } else { format!("/bin/{program}") };
            layer = layer.file(&path, server.clone(), 0o755);
        }
        TestImage::busybox(reference).layer(layer).entrypoint(["/bin/stand-in"])
    }
}

/// A name as archives have it.
fn full_name(image: &str) -> String {
    let first = image.split('/').next().unwrap();
    let has_host = image.contains('/') && first.contains(['.', ':']);
    let name = match (has_host, image.contains('/')) {
        (true, _) => image.to_owned(),
        (false, true) => format!("docker.io/{image}"),
        (false, false) => format!("docker.io/library/{image}"),
    };
    let tag = if name.rsplit('/').next().unwrap().contains(':') { "" } else { ":latest" };
    name + tag
}

/// An example in a directory of its own.
struct Example<'a> {
    cluster: &'a WorkerCluster,
    name: String,
    directory: PathBuf,
    services: BTreeMap<String, Value>,
}

impl<'a> Example<'a> {
    fn new(cluster: &'a WorkerCluster, source: &Path) -> Self {
        let name = source.file_name().unwrap().to_string_lossy().into_owned();
        let directory = cluster.manager.scratch().join("examples").join(&name);
        copy(source, &directory);
        let mut it = Self { cluster, name, directory, services: BTreeMap::new() };
        let model: Value = serde_json::from_str(&it.ok(&["stack", "config", "-o", "json"])).unwrap();
        let services = model["services"].as_object().unwrap().clone();
        it.services = services.into_iter().collect();
        it
    }

    /// Runs a command in the directory of the example, on the machine of the first worker.
    fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = self.cluster.warren().command(arguments);
        command.current_dir(&self.directory).env("GRAFANA_PASSWORD", "secret");
        command.env("WARREN_DATA_DIR", self.cluster.workers[0].data_dir());
        let output = tool::output(command, 4 * tool::DEADLINE).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout).unwrap()),
            false => Err(format!("{}: {arguments:?}: {errors}", self.name)),
        }
    }

    /// As [`Example::run`]; the command must succeed.
    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        self.run(arguments).unwrap_or_else(|error| panic!("{error}"))
    }

    fn import_images(&self) {
        let mut images: BTreeMap<String, StandIn> = BTreeMap::new();
        for service in self.services.values() {
            let image = images.entry(full_name(text(service, "image").unwrap())).or_default();
            image.ports.insert(OWN_PORT);
            let ports = service["ports"].as_array().into_iter().flatten();
            image.ports.extend(
                ports
                    .filter(|port| port["protocol"] == "tcp")
                    .map(|port| &port["target"])
                    .filter_map(Value::as_u64),
            );
            image.programs.extend(service["entrypoint"][0].as_str().map(str::to_owned));
        }
        for (reference, stand_in) in images {
            self.cluster.import("stand-in.tar", &stand_in.image(&reference).docker_archive());
        }
    }

    /// Deploys the files of the example, with checks that the stand-ins answer.
    fn deploy(&self) {
        let mut changes = String::from("services:\n");
        let text = fs::read_to_string(self.directory.join("compose.yaml")).unwrap();
        // Other files cannot change what a file includes.
        let is_included =
            |name: &str| text.starts_with("include:") && !text.contains(&format!("\n  {name}:"));
        for (name, service) in self.services.iter().filter(|(name, _)| !is_included(name)) {
            let hardware =
                MISSING_HERE.iter().filter(|(of, _)| of == name).map(|(_, change)| (*change).to_owned());
            let has_check = service["healthcheck"]["test"].is_array();
            let check = has_check.then(|| "healthcheck: {test: [CMD, check], interval: 1s}".to_owned());
            // Limits above those of the machine of a test; tests of the fields of containers set lower ones.
            let limits = service["ulimits"].is_object().then(|| "ulimits: !reset null".to_owned());
            let keys: Vec<String> = hardware.chain(check).chain(limits).collect();
            if !keys.is_empty() {
                changes += &format!("  {name}: {{{}}}\n", keys.join(", "));
            }
        }
        let changes = if changes.lines().count() > 1 { changes } else { "services: {}\n".to_owned() };
        fs::write(self.directory.join("changes.yaml"), changes).unwrap();
        let files = ["compose.yaml", "compose.override.yaml", "changes.yaml"];
        let files = files.into_iter().filter(|file| self.directory.join(file).is_file());
        let files: Vec<&str> = files.flat_map(|file| ["-c", file]).collect();
        self.ok(&[&["deploy"], &files[..], &[self.name.as_str()]].concat());
    }

    /// Every TCP port in ingress mode serves the page, through a node that need not run the service.
    fn check_pages(&self) {
        for (name, service) in &self.services {
            for port in service["ports"].as_array().into_iter().flatten() {
                let is_ingress = port["protocol"] == "tcp" && text(port, "mode") != Some("host");
                let address = text(port, "host_ip").filter(|address| *address != "0.0.0.0");
                if let Some(published) = text(port, "published").filter(|_| is_ingress && address.is_none()) {
                    let what = format!("{}: the page of {name} at port {published}", self.name);
                    eventually(SOON, &what, || page(&self.cluster.workers[2], published));
                }
            }
        }
    }

    /// The services that run to their end.
    fn completed(&self) -> BTreeSet<&str> {
        let without_restart =
            self.services.iter().filter(|(_, service)| text(service, "restart") == Some("no"));
        let dependencies = self.services.values().filter_map(|service| service["depends_on"].as_object());
        let completed = dependencies.flatten().filter(|(_, dependency)| {
            text(dependency, "condition") == Some("service_completed_successfully")
        });
        without_restart
            .map(|(name, _)| name.as_str())
            .chain(completed.map(|(name, _)| name.as_str()))
            .collect()
    }

    /// Dependencies are known by their names, and by those of their containers.
    fn check_names(&self) {
        let completed = self.completed();
        let running = self.services.iter().filter(|(name, _)| !completed.contains(name.as_str()));
        for (name, service) in running {
            let dependencies = service["depends_on"].as_object().into_iter().flatten();
            for (other, _) in dependencies.filter(|(other, _)| !completed.contains(other.as_str())) {
                let container_name = text(&self.services[other], "container_name");
                for host in [Some(other.as_str()), container_name].into_iter().flatten() {
                    let (service, url) =
                        (format!("{}_{name}", self.name), format!("http://{host}:{OWN_PORT}/"));
                    let arguments = ["service", "exec", &service, "wget", "-qO-", &url];
                    let what = format!("{}: the page of {host} for {name}", self.name);
                    eventually(SOON, &what, || {
                        let found = self.run(&arguments)?;
                        if found == PAGE { Ok(()) } else { Err(found) }
                    });
                }
            }
        }
    }
}

fn page(node: &LabNode, port: &str) -> Result<(), String> {
    let mut curl = node.host().command("curl");
    let url = format!("http://{}:{port}/", node.host().address());
    curl.args(["--silent", "--show-error", "--fail", "--max-time", "2", &url]);
    match tool::stdout(curl, tool::DEADLINE) {
        Ok(found) if found == PAGE => Ok(()),
        Ok(found) => Err(found),
        Err(error) => Err(error.to_string()),
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
        let target = to.join(entry.file_name().unwrap());
        if entry.is_dir() {
            copy(&entry, &target);
        } else {
            fs::copy(&entry, target).unwrap();
        }
    }
}

#[test]
fn published_files_are_deployed_on_three_nodes_and_serve() {
    let cluster = WorkerCluster::new(3);
    cluster.ok("node update w1 --label-add zigbee=yes");
    let mut sources: Vec<PathBuf> =
        fs::read_dir(EXAMPLES).unwrap().map(|entry| entry.unwrap().path()).collect();
    sources.sort();
    sources.retain(|source| {
        let is_refused = fs::read_to_string(source.join("expected.txt")).unwrap().starts_with("refused:");
        let name = source.file_name().unwrap().to_str().unwrap();
        !is_refused && (soak::is_on() || QUICK.contains(&name))
    });
    assert!(sources.len() >= soak::count(QUICK.len(), 20), "{sources:?}");
    for source in sources {
        let example = Example::new(&cluster, &source);
        example.import_images();
        example.deploy();
        example.check_pages();
        example.check_names();
        if example.name == "newsletter" {
            // It mounts a relative path, which is on the machine where it was deployed.
            assert_eq!(cluster.wait_serving("newsletter_app", 1)[0].node_name, "w1");
        }
        example.ok(&["stack", "rm", &example.name, "--volumes"]);
        println!("{} deployed and removed", example.name);
    }
    assert_eq!(cluster.ok("stack ls -q"), "");
}
