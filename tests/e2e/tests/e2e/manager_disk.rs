//! A manager's disk fills up and is freed, and the process is killed meanwhile: with every engine, through
//! the CLI.

use std::path::{Path, PathBuf};
use std::time::Duration;

use warren_testkit::cli::{CommandOutput, WarrenCli};
use warren_testkit::netns::{LabHost, NetworkSwitch};
use warren_testkit::process::ChildProcess;
use warren_testkit::scratch::ScratchDir;
use warren_testkit::small_disk::SmallDisk;
use warren_testkit::wait::eventually;

use crate::e2e::fixture::SOON;

const FAILED: i32 = 1;
const CONFLICT: i32 = 4;
const TIMED_OUT: i32 = 7;

/// Room for the log; engines take some MiB before the first entry.
const MEBIBYTES: u64 = 24;
/// Longer than the deadline of a write that waits for the disk.
const TOLD: Duration = Duration::from_secs(30);

/// A manager without a worker, whose data directory is on a small disk.
struct SmallDiskManager {
    process: ChildProcess,
    disk: SmallDisk,
    host: LabHost,
    _lab: NetworkSwitch,
    scratch: ScratchDir,
}

impl SmallDiskManager {
    #[track_caller]
    fn init(engine: &str) -> SmallDiskManager {
        let (scratch, lab) = (ScratchDir::new(), NetworkSwitch::new());
        let (host, disk) = (lab.add_host(), SmallDisk::new(scratch.path(), MEBIBYTES));
        let process = spawn(&host, &scratch, &disk, &["init", "--manager-only", "--log-engine", engine]);
        let mut manager = SmallDiskManager { process, disk, host, _lab: lab, scratch };
        manager.wait_serving();
        manager
    }

    #[track_caller]
    fn run_again(&mut self) {
        self.process = spawn(&self.host, &self.scratch, &self.disk, &["run"]);
    }

    #[track_caller]
    fn wait_serving(&mut self) {
        eventually(SOON, "a manager that answers", || {
            assert!(self.process.is_running(), "it has ended:\n{}", self.process.log_tail(20));
            let ran = self.warren().run(&["service", "ls"]);
            if ran.code == 0 { Ok(()) } else { Err(ran.to_string()) }
        });
    }

    fn warren(&self) -> WarrenCli {
        cli(&self.host, self.scratch.path())
    }

    #[track_caller]
    fn create(&self, name: &str) -> CommandOutput {
        let text = format!("TEXT={}", "x".repeat(8 << 10));
        let words = ["service", "create", name, "--image", "web:1", "--replicas", "0", "--env", &text];
        self.warren().run(&words)
    }

    /// Creates services until the disk is full; returns the acknowledged ones.
    #[track_caller]
    fn create_until_full(&self) -> Vec<String> {
        let mut acknowledged = Vec::new();
        for number in 0..2000 {
            let name = format!("s-{number}");
            let ran = self.create(&name);
            match ran.code {
                0 => acknowledged.push(name),
                // It waited for the disk until its deadline, and may still be applied.
                TIMED_OUT => assert!(ran.stderr.contains("the disk of this manager is full"), "{ran}"),
                FAILED => {
                    let place = self.disk.path().display().to_string();
                    assert!(ran.stderr.contains("the disk of this manager is full"), "{ran}");
                    assert!(
                        ran.stderr.contains(&place) && ran.stderr.contains("nothing was changed"),
                        "{ran}"
                    );
                    return acknowledged;
                }
                _ => panic!("{ran}"),
            }
        }
        panic!("a full disk takes everything");
    }

    /// After a kill it starts, shows its state, and damages nothing. An engine that writes when it opens the
    /// log reports why it does not start.
    #[track_caller]
    fn is_killed_while_full(&mut self, engine: &str) {
        for _ in 0..2 {
            self.process.kill();
            self.disk.fill();
            self.run_again();
            if engine == "sled" {
                let status = self.process.wait(TOLD);
                let output = self.process.log_tail(20);
                assert_eq!(status.code(), Some(FAILED), "{output}");
                assert!(output.contains("No space left on device"), "{output}");
                assert!(output.contains(&self.disk.path().display().to_string()), "{output}");
                return;
            }
            eventually(TOLD, "a manager that shows what it has", || {
                assert!(self.process.is_running(), "it has ended:\n{}", self.process.log_tail(20));
                let ran = self.warren().run(&["--stale", "service", "ls"]);
                if ran.code == 0 { Ok(()) } else { Err(ran.to_string()) }
            });
            let ran = self.warren().run(&["service", "ls"]);
            assert_eq!(ran.code, FAILED, "{ran}");
            assert!(ran.stderr.contains("nothing was read") && ran.stderr.contains("--stale"), "{ran}");
        }
    }

    #[track_caller]
    fn assert_acknowledged_present(&self, acknowledged: &[String]) {
        let list = self.warren().json(&["service", "ls"]);
        let found: Vec<&str> =
            list.as_array().unwrap().iter().filter_map(|row| row["name"].as_str()).collect();
        let lost: Vec<_> = acknowledged.iter().filter(|name| !found.contains(&name.as_str())).collect();
        assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    }
}

fn cli(host: &LabHost, scratch: &Path) -> WarrenCli {
    WarrenCli::new(&scratch.join("contexts.toml")).in_netns(&host.netns().path())
}

#[track_caller]
fn spawn(host: &LabHost, scratch: &ScratchDir, disk: &SmallDisk, words: &[&str]) -> ChildProcess {
    let mut command = cli(host, scratch.path()).command(&[&["manager"], words].concat());
    command.arg("--data-dir").arg(disk.path().join("data"));
    command.arg("--run-dir").arg(scratch.path().join("run"));
    ChildProcess::spawn("the manager", command, &log(scratch))
}

fn log(scratch: &ScratchDir) -> PathBuf {
    scratch.path().join("manager.log")
}

#[test]
fn full_disk_fails_writes_only() {
    for engine in ["redb", "sled"] {
        let mut manager = SmallDiskManager::init(engine);
        assert_eq!(manager.warren().json(&["cluster", "info"])["logEngine"], engine);
        manager.disk.fill();
        let mut acknowledged = manager.create_until_full();
        let info = manager.warren().json(&["cluster", "info"]);
        assert!(info["writeStallReason"].as_str().is_some_and(|why| why.contains("full")), "{info}");
        assert!(info["writeStallSince"].is_string(), "{info}");
        manager.assert_acknowledged_present(&acknowledged);
        let output = manager.process.log_tail(1000);
        assert!(
            output.matches("the disk of this manager is full").count() <= 2,
            "at most two lines:\n{output}"
        );

        // It recovers by itself, in the same process.
        manager.disk.free();
        eventually(TOLD, "a write that is taken", || {
            let ran = manager.create("after");
            if ran.code == 0 { Ok(()) } else { Err(ran.to_string()) }
        });
        acknowledged.push("after".into());
        assert!(manager.warren().json(&["cluster", "info"])["writeStallReason"].is_null());
        manager.assert_acknowledged_present(&acknowledged);

        manager.disk.fill();
        manager.is_killed_while_full(engine);
        manager.disk.free();
        if engine == "sled" {
            manager.run_again();
        }
        manager.wait_serving();
        manager.assert_acknowledged_present(&acknowledged);
    }
}

#[test]
fn a_manager_keeps_the_log_engine_it_was_made_with() {
    let mut manager = SmallDiskManager::init("sled");
    assert_eq!(manager.create("web").code, 0);
    for crash in [true, false] {
        match crash {
            true => drop(manager.process.kill()),
            false => drop(manager.process.terminate(SOON)),
        }
        // The engine is remembered, and another one is refused.
        manager.process =
            spawn(&manager.host, &manager.scratch, &manager.disk, &["run", "--log-engine", "redb"]);
        assert_eq!(manager.process.wait(SOON).code(), Some(CONFLICT));
        let output = manager.process.log_tail(5);
        assert!(output.contains("the manager's log was created with sled"), "{output}");
        manager.run_again();
        manager.wait_serving();
        assert_eq!(manager.warren().json(&["cluster", "info"])["logEngine"], "sled");
        manager.assert_acknowledged_present(&["web".to_owned()]);
    }
}
