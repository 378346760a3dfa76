//! Real applications from Debian's packages, as a Swarm user installs them: data, failures, updates, moves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use warren_testkit::cli::binary;
use warren_testkit::netns::LabHost;
use warren_testkit::wait::eventually;
use warren_testkit::{soak, tool};

use crate::e2e::cluster::WorkerCluster;
use crate::e2e::fixture::SOON;
use crate::e2e::task_document::TaskDocument;
use crate::e2e::traffic::FailoverClient;

const FAILED: i32 = 1;
/// Acknowledged rows that each step adds before it disturbs the application.
const STEP_ROWS: usize = 50;

/// Applications are stopped as those of users.
const DEFAULT_STOP: [&str; 2] = ["--drain-delay=2s", "--stop-grace=10s"];

/// An application and how it is used. The scripts run in its image's files with `$HOST` set to the node of its
/// task.
struct Application {
    name: &'static str,
    replicas: usize,
    flags: &'static [&'static str],
    /// Fails unless the application answers; empty if `load` is.
    ask: &'static str,
    /// Stores the rows from `$FIRST` to `$LAST`; fails unless all are acknowledged.
    load: &'static str,
    /// Prints the number of rows, `$LAST` if none is lost.
    count: &'static str,
    /// With these arguments its program ends at once, and says this.
    bad_arguments: &'static [&'static str],
    complaint: &'static str,
}

/// `make test` runs the first one, `make soak` all.
const APPLICATIONS: [Application; 3] = [
    Application {
        name: "redis",
        replicas: 1,
        flags: &[
            "--volume=redis-data:/data",
            "--publish=6379:6379",
            "--health-interval=1s",
            "--health-exec=redis-cli",
            "--health-exec=ping",
        ],
        ask: "redis-cli -h $HOST ping | grep PONG",
        load: "seq $FIRST $LAST | sed 's/.*/SET row:& value-&/' | redis-cli -h $HOST --pipe | grep 'errors: 0'",
        count: "redis-cli -h $HOST dbsize",
        bad_arguments: &["--arg=--no-such-option", "--arg=yes"],
        complaint: "Bad directive or wrong number of arguments",
    },
    Application {
        name: "postgres",
        replicas: 1,
        flags: &[
            "--volume=postgres-data:/data",
            "--publish=5432:5432",
            "--env=POSTGRES_PASSWORD_FILE=/run/secrets/password",
            "--secret=password,mode=0444",
            "--health-interval=1s",
            "--health-cmd=pg_isready -h 127.0.0.1",
            "--health-start-period=1m",
        ],
        ask: "pg_isready -h $HOST",
        load: "export PGPASSWORD=secret; psql -v ON_ERROR_STOP=1 -h $HOST -U postgres -c \
               'create table if not exists rows (n int primary key, value text)' -c \
               \"insert into rows select n, md5(n::text) from generate_series($FIRST, $LAST) n\"",
        count: "export PGPASSWORD=secret; psql -h $HOST -U postgres -At -c \
                'select count(*) from rows where value = md5(n::text)'",
        bad_arguments: &["--arg=-c", "--arg=no_such_setting=1"],
        complaint: "unrecognized configuration parameter \"no_such_setting\"",
    },
    Application {
        name: "nginx",
        replicas: 2,
        flags: &["--publish=80:80", "--health-http=:80/", "--health-interval=1s"],
        ask: "",
        load: "",
        count: "bash -c 'exec 3<>/dev/tcp/$HOST/80; printf \"GET / HTTP/1.0\\r\\n\\r\\n\" >&3; cat <&3' \
                | grep -q 'nginx of Warren' && echo $LAST",
        bad_arguments: &["--arg=-x"],
        complaint: "invalid option: \"x\"",
    },
];

impl Application {
    /// Its tasks are bound to the node of their volume.
    fn has_volume(&self) -> bool {
        self.replicas == 1
    }
}

/// Which requests of a client may fail during a step, if two replicas serve.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MayFail {
    Nothing,
    /// The one that the lost task was answering.
    InFlight,
}

/// An application that runs on a cluster of two workers, and a host outside.
struct Installation {
    cluster: WorkerCluster,
    client_host: LabHost,
    application: &'static Application,
    files: PathBuf,
    /// Acknowledged rows.
    rows: usize,
    /// The version of the image that runs.
    version: u8,
    /// Clients that request all the time, if two replicas serve.
    clients: Vec<FailoverClient>,
}

impl Installation {
    #[track_caller]
    fn new(application: &'static Application, rows: usize) -> Installation {
        let cluster = WorkerCluster::new(2);
        let files = image_files(application.name);
        let client_host = cluster.lab.add_host();
        let (version, clients) = (1, Vec::new());
        let mut it = Installation { cluster, client_host, application, files, rows: 0, version, clients };
        it.cluster.ok(&format!("image import {}", it.files.join("image.tar").display()));
        if application.name == "postgres" {
            let password = it.cluster.manager.scratch().join("password");
            fs::write(&password, "secret").unwrap();
            it.cluster.ok(&format!("secret create password {}", password.display()));
        }
        let (image, replicas) = (it.image(), application.replicas.to_string());
        let create = ["service", "create", application.name, "--image", &image, "--replicas", &replicas];
        it.cluster.warren().run_ok(&[&create[..], &DEFAULT_STOP, application.flags].concat());
        it.store(rows);
        if application.replicas > 1 {
            it.start_clients();
        }
        it
    }

    fn image(&self) -> String {
        format!("warren.local/{}:{}", self.application.name, self.version)
    }

    #[track_caller]
    fn tasks(&self) -> Vec<TaskDocument> {
        self.cluster.wait_serving(self.application.name, self.application.replicas)
    }

    /// Clients know both nodes: each prefers another one, and turns to the other if that does not accept.
    #[track_caller]
    fn start_clients(&mut self) {
        let nodes: Vec<_> = self.cluster.workers.iter().map(|worker| worker.host().address()).collect();
        for (number, order) in [[nodes[0], nodes[1]], [nodes[1], nodes[0]]].iter().enumerate() {
            let log = self.cluster.manager.scratch().join(format!("client-{number}.log"));
            self.clients.push(FailoverClient::start(&self.client_host, order, 80, &log));
        }
    }

    /// Runs `script` with the files of the image on the host outside, against the node of `task`.
    fn client(&self, task: &TaskDocument, script: &str, first: usize, last: usize) -> Result<String, String> {
        let worker = self.cluster.workers.iter().find(|worker| worker.name() == task.node_name);
        let host = worker.ok_or_else(|| format!("{task:?} is on no worker"))?.host().address();
        let mut command = self.client_host.command("chroot");
        command.arg(self.files.join("root")).args(["sh", "-e", "-c", script]);
        command.env("PATH", "/usr/sbin:/usr/bin").env("HOST", host.to_string());
        command.env("FIRST", first.to_string()).env("LAST", last.to_string());
        tool::stdout(command, tool::DEADLINE).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn store(&mut self, rows: usize) {
        let task = self.tasks().remove(0);
        // The task is ready before its port is open.
        eventually(SOON, &format!("an answer of {}", task.name), || {
            self.client(&task, self.application.ask, 0, 0)
        });
        let (first, last) = (self.rows + 1, self.rows + rows);
        self.client(&task, self.application.load, first, last).unwrap();
        self.rows = last;
    }

    /// Waits until each task of the application answers with all rows that were acknowledged.
    #[track_caller]
    fn assert_keeps_rows(&self) -> Vec<TaskDocument> {
        let tasks = self.tasks();
        for task in &tasks {
            let found = eventually(SOON, &format!("the number of rows of {}", task.name), || {
                let text = self.client(task, self.application.count, 1, self.rows)?;
                text.trim().parse::<usize>().map_err(|_| text)
            });
            assert_eq!(found, self.rows, "rows of {}", task.name);
        }
        tasks
    }

    /// Waits until the output of a command contains all of `parts`.
    #[track_caller]
    fn assert_told(&self, line: &str, parts: &[&str]) {
        eventually(2 * SOON, &format!("{parts:?} in the output of `warren {line}`"), || {
            let ran = self.cluster.warren().run(&line.split(' ').collect::<Vec<_>>());
            let is_told = parts.iter().all(|part| ran.stdout.contains(part) || ran.stderr.contains(part));
            if is_told { Ok(()) } else { Err(ran.to_string()) }
        });
    }

    /// Stores rows and runs `disturb`: all rows are kept, and no other requests than those that may fail.
    #[track_caller]
    fn step(&mut self, name: &str, may_fail: MayFail, disturb: impl FnOnce(&mut Self)) {
        self.store(STEP_ROWS);
        let (begin, before) = (Instant::now(), self.requests());
        disturb(self);
        self.assert_keeps_rows();
        let took = begin.elapsed().as_secs_f64();
        self.clients.iter().for_each(FailoverClient::assert_progress);
        let (answered, failures) = self.requests();
        let (answered, failures) = (answered - before.0, &failures[before.1.len()..]);
        let requests = match self.clients.is_empty() {
            true => String::new(),
            false => format!(", {answered} requests answered, {} failed: {failures:?}", failures.len()),
        };
        println!("{}, {name}: {took:.1} s{requests}", self.application.name);
        let allowed = if may_fail == MayFail::InFlight { self.clients.len() } else { 0 };
        assert!(failures.len() <= allowed, "{name}: {failures:?}");
    }

    /// How many requests were answered, and how the others failed.
    fn requests(&self) -> (usize, Vec<String>) {
        let results: Vec<_> = self.clients.iter().map(FailoverClient::results).collect();
        let answered = results.iter().map(|(answered, _)| answered).sum();
        (answered, results.into_iter().flat_map(|(_, failures)| failures).collect())
    }

    #[track_caller]
    fn kill_process(&mut self) {
        let before = self.cluster.pids();
        let (container, pid) = before.first_key_value().unwrap();
        kill(Pid::from_raw(*pid), Signal::SIGKILL).unwrap();
        eventually(SOON, "another process", || {
            let now = self.cluster.pids();
            let is_new = now.len() == before.len() && now.values().all(|it| it != pid);
            if is_new { Ok(()) } else { Err(format!("{now:?}")) }
        });
        self.assert_told(&format!("task inspect {container}"), &["137"]);
    }

    #[track_caller]
    fn update_to_version(&mut self, version: u8, flags: &[&str]) {
        self.version = version;
        let image = self.image();
        let update = ["service", "update", self.application.name, "--image", &image];
        self.cluster.warren().run_ok(&[&update[..], flags].concat());
        self.assert_version();
    }

    #[track_caller]
    fn roll_back_to_version(&mut self, version: u8) {
        self.version = version;
        self.cluster.ok(&format!("service rollback {}", self.application.name));
        self.assert_version();
    }

    #[track_caller]
    fn assert_version(&self) {
        let service = self.cluster.warren().json(&["service", "inspect", self.application.name]);
        assert_eq!(service["spec"]["task"]["image"], self.image(), "{service}");
    }

    /// The image is on no node, and no task of it ever runs: the data cannot have changed.
    #[track_caller]
    fn update_to_missing_image(&mut self) {
        let name = self.application.name;
        let update = ["service", "update", name, "--image", "warren.local/missing:1", "--pull", "never"];
        let text = self.cluster.warren().run_refused(&update, FAILED);
        for part in ["warren.local/missing:1", "rolled back"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        self.assert_version();
    }

    /// It runs and ends. With a volume its data may have changed, so that the user decides.
    #[track_caller]
    fn update_to_failing_version(&mut self) {
        let Application { name, bad_arguments, complaint, .. } = self.application;
        let update = [&["service", "update", name][..], bad_arguments].concat();
        let text = self.cluster.warren().run_refused(&update, FAILED);
        let outcome = match self.application.has_volume() {
            true => "ran and may have changed the data of its volumes",
            false => "was rolled back",
        };
        for part in ["exited with code 1", complaint, outcome] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        self.assert_told(&format!("service ps {name} --all"), &["exited with code 1", complaint]);
        self.assert_told(&format!("service logs {name}"), &[complaint]);
        if self.application.has_volume() {
            self.cluster.ok(&format!("service rollback {name}"));
        }
        self.assert_version();
    }

    /// A service with a volume waits for the volume's node, and says so; another one moves.
    #[track_caller]
    fn drain_node(&mut self) {
        let name = self.application.name;
        let node = self.tasks().remove(0).node_name;
        match self.application.has_volume() {
            true => {
                self.cluster.ok(&format!("node drain {node} --detach"));
                self.assert_told(&format!("service ps {name}"), &[&format!("{name}-data"), "drained"]);
            }
            false => {
                self.cluster.ok(&format!("node drain {node}"));
                let left: Vec<_> = self.tasks().into_iter().filter(|it| it.node_name == node).collect();
                assert!(left.is_empty(), "{left:#?}");
            }
        }
        self.cluster.ok(&format!("node update {node} --availability active"));
    }

    /// One task per node.
    #[track_caller]
    fn spread(&self) {
        let name = self.application.name;
        self.cluster.ok(&format!("service scale {name}=1"));
        self.cluster.ok(&format!("service scale {name}=2"));
        self.cluster.wait_spread(name, &[("w1", 1), ("w2", 1)]);
    }

    #[track_caller]
    fn lose_node(&mut self) {
        let name = self.application.name;
        let node = self.tasks().remove(0).node_name;
        let lost = self.cluster.workers.iter().position(|worker| worker.name() == node).unwrap();
        self.cluster.workers[lost].lose_power();
        self.assert_told("node ls", &["DOWN"]);
        if self.application.has_volume() {
            self.assert_told(&format!("service ps {name}"), &[&format!("{name}-data"), "down"]);
        } else {
            self.cluster.wait_spread(name, &[(if lost == 0 { "w2" } else { "w1" }, 2)]);
        }
        self.cluster.workers[lost].run_again();
        self.cluster.workers[lost].wait_ready();
    }

    /// The manager's machine is lost; a backup takes its place, and no container is disturbed.
    #[track_caller]
    fn restore_manager(&mut self) {
        let scratch = self.cluster.manager.scratch();
        let (backup, phrase) = (scratch.join("backup"), scratch.join("phrase"));
        fs::write(&phrase, "correct horse battery staple\n").unwrap();
        let file = format!("{} --passphrase-file {}", backup.display(), phrase.display());
        self.cluster.ok(&format!("manager backup {file}"));
        let before = self.cluster.pids();
        self.cluster.manager.kill();
        let data = self.cluster.manager.data_dir();
        fs::remove_dir_all(&data).unwrap();
        let restore = format!("manager restore {file} --data-dir {}", data.display());
        self.cluster.manager.local().run_ok(&restore.split(' ').collect::<Vec<_>>());
        self.cluster.manager.init_again();
        self.cluster.manager.wait_ready();
        for worker in &mut self.cluster.workers {
            worker.wait_ready();
        }
        self.assert_keeps_rows();
        assert_eq!(self.cluster.pids(), before);
    }
}

/// The directory with `image.tar` and `root`, made once by a script and kept beside the build.
#[track_caller]
fn image_files(name: &str) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("images/debian-image.sh");
    let directory = binary().parent().unwrap().join("debian-images").join(name);
    let changed_at = |path: &Path| fs::metadata(path).and_then(|it| it.modified()).ok();
    if changed_at(&directory.join("image.tar")) < changed_at(&script) {
        let mut command = Command::new(&script);
        command.arg(name).arg(&directory);
        tool::stdout(command, 10 * tool::DEADLINE).unwrap_or_else(|error| panic!("{error}"));
    }
    directory
}

#[track_caller]
fn use_application(application: &'static Application, rows: usize) {
    let mut it = Installation::new(application, rows);
    it.step("kill -9", MayFail::InFlight, Installation::kill_process);
    it.step("update", MayFail::Nothing, |it| it.update_to_version(2, &[]));
    it.step("rollback", MayFail::Nothing, |it| it.roll_back_to_version(1));
    it.step("missing image", MayFail::Nothing, Installation::update_to_missing_image);
    it.step("failing version", MayFail::Nothing, Installation::update_to_failing_version);
    it.step("drain", MayFail::Nothing, Installation::drain_node);
    if !application.has_volume() {
        // A client that has found one node closed finds the other one open if the update waits between two slots.
        let stop_first = ["--update-order", "stop-first", "--update-delay", "1s"];
        it.step("spread", MayFail::Nothing, |it| it.spread());
        it.step("stop-first update", MayFail::Nothing, |it| it.update_to_version(2, &stop_first));
        it.step("spread again", MayFail::Nothing, |it| it.spread());
    }
    it.step("node loss", MayFail::InFlight, Installation::lose_node);
    it.step("restore", MayFail::Nothing, Installation::restore_manager);
}

#[test]
fn applications_keep_their_data() {
    let rows = soak::count(1_000, 100_000);
    for application in &APPLICATIONS[..soak::count(1, APPLICATIONS.len())] {
        let begin = Instant::now();
        use_application(application, rows);
        println!("{}: {:.1} s", application.name, begin.elapsed().as_secs_f64());
    }
}
