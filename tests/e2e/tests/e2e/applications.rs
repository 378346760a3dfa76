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
use crate::e2e::task_document::{self, TaskDocument};

const FAILED: i32 = 1;

/// An application and how it is used. The scripts run in its image's files with `$HOST` set to the node of its
/// task and `$ROWS` to the number of rows.
struct Application {
    name: &'static str,
    replicas: usize,
    flags: &'static [&'static str],
    /// Stores the rows; fails unless all are acknowledged.
    load: &'static str,
    /// Prints the number of rows.
    count: &'static str,
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
        load: "seq $ROWS | sed 's/.*/SET row:& value-&/' | redis-cli -h $HOST --pipe | grep 'errors: 0'",
        count: "redis-cli -h $HOST dbsize",
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
        load: "export PGPASSWORD=secret; psql -v ON_ERROR_STOP=1 -h $HOST -U postgres -c \
               \"create table row as select n, md5(n::text) as value from generate_series(1, $ROWS) n\"",
        count: "export PGPASSWORD=secret; psql -h $HOST -U postgres -At -c 'select count(*) from row'",
    },
    Application {
        name: "nginx",
        replicas: 2,
        flags: &["--publish=80:80", "--max-per-node=1", "--health-http=:80/", "--health-interval=1s"],
        load: "",
        count: "echo $ROWS",
    },
];

/// An application that runs on a cluster of two workers, and a host outside.
struct Installation {
    cluster: WorkerCluster,
    client_host: LabHost,
    application: &'static Application,
    files: PathBuf,
    rows: usize,
}

impl Installation {
    #[track_caller]
    fn new(application: &'static Application, rows: usize) -> Installation {
        let cluster = WorkerCluster::new(2);
        let files = image_files(application.name);
        let client_host = cluster.lab.add_host();
        let it = Installation { cluster, client_host, application, files, rows };
        it.cluster.ok(&format!("image import {}", it.files.join("image.tar").display()));
        if application.name == "postgres" {
            let password = it.cluster.manager.scratch().join("password");
            fs::write(&password, "secret").unwrap();
            it.cluster.ok(&format!("secret create password {}", password.display()));
        }
        let (image, replicas) = (it.image(), application.replicas.to_string());
        let create = ["service", "create", application.name, "--image", &image, "--replicas", &replicas];
        it.cluster.warren().run_ok(&[&create[..], application.flags].concat());
        it.client(&it.tasks()[0], application.load).unwrap();
        it
    }

    fn image(&self) -> String {
        format!("warren.local/{}:1", self.application.name)
    }

    #[track_caller]
    fn tasks(&self) -> Vec<TaskDocument> {
        self.cluster.wait_serving(self.application.name, self.application.replicas)
    }

    /// Runs `script` with the files of the image on the host outside, against the node of `task`.
    fn client(&self, task: &TaskDocument, script: &str) -> Result<String, String> {
        let worker = self.cluster.workers.iter().find(|worker| worker.name() == task.node_name);
        let host = worker.ok_or_else(|| format!("{task:?} is on no worker"))?.host().address();
        let mut command = self.client_host.command("chroot");
        command.arg(self.files.join("root")).args(["sh", "-e", "-c", script]);
        command.env("PATH", "/usr/sbin:/usr/bin").env("HOST", host.to_string());
        command.env("ROWS", self.rows.to_string());
        tool::stdout(command, tool::DEADLINE).map_err(|error| error.to_string())
    }

    /// Waits until the application answers with all rows that were acknowledged.
    #[track_caller]
    fn assert_keeps_rows(&self) -> Vec<TaskDocument> {
        let tasks = self.tasks();
        let found = self.client(&tasks[0], self.application.count).unwrap();
        assert_eq!(found.trim(), self.rows.to_string(), "rows of {}", self.application.name);
        tasks
    }

    #[track_caller]
    fn survives_kill(&self) {
        let before = self.cluster.pids();
        let pid = *before.values().next().unwrap();
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        eventually(SOON, "another process", || {
            let now = self.cluster.pids();
            let is_new = now.len() == before.len() && now.values().all(|it| *it != pid);
            if is_new { Ok(()) } else { Err(format!("{now:?}")) }
        });
        self.assert_keeps_rows();
    }

    #[track_caller]
    fn survives_updates(&self) {
        let name = self.application.name;
        self.cluster.ok(&format!("service update {name} --env-add TZ=UTC"));
        self.assert_keeps_rows();
        // The image is on no node, and no task of it ever runs: the data cannot have changed.
        let bad = ["service", "update", name, "--image", "warren.local/missing:1", "--pull", "never"];
        let refused = self.cluster.warren().run(&bad);
        assert_eq!(refused.code, FAILED, "{refused}");
        for part in ["warren.local/missing:1", "rolled back"] {
            assert!(refused.stderr.contains(part), "{part} is not in: {refused}");
        }
        let service = self.cluster.warren().json(&["service", "inspect", name]);
        assert_eq!(service["spec"]["task"]["image"], self.image(), "{service}");
        self.assert_keeps_rows();
    }

    /// A service with a volume waits for the volume's node, and says so; another one moves.
    #[track_caller]
    fn survives_drain_and_node_loss(&mut self) {
        let (name, has_volume) = (self.application.name, self.application.replicas == 1);
        let task = self.assert_keeps_rows().remove(0);
        let node = task.node_name.clone();
        self.cluster.ok(&format!("node drain {node} --detach"));
        if has_volume {
            eventually(SOON, "the reason of the waiting task", || {
                let tasks = task_document::of_service(&self.cluster.manager, name);
                let says =
                    tasks.iter().any(|it| it.reason.contains("-data") && it.reason.contains("drained"));
                if says { Ok(()) } else { Err(format!("{tasks:#?}")) }
            });
        }
        self.cluster.ok(&format!("node update {node} --availability active"));
        self.assert_keeps_rows();
        let lost = self.cluster.workers.iter().position(|worker| worker.name() == node).unwrap();
        self.cluster.workers[lost].lose_power();
        self.cluster.workers[lost].run_again();
        self.cluster.workers[lost].wait_ready();
        self.assert_keeps_rows();
    }

    /// The manager's machine is lost; a backup takes its place, and no container is disturbed.
    #[track_caller]
    fn survives_restore(&mut self) {
        self.assert_keeps_rows();
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

#[test]
fn applications_keep_their_data() {
    let rows = soak::count(1_000, 100_000);
    for application in &APPLICATIONS[..soak::count(1, APPLICATIONS.len())] {
        let begin = Instant::now();
        let mut it = Installation::new(application, rows);
        it.assert_keeps_rows();
        it.survives_kill();
        it.survives_updates();
        it.survives_drain_and_node_loss();
        it.survives_restore();
        println!("{}: {:.1} s", application.name, begin.elapsed().as_secs_f64());
    }
}
