//! Secrets, configs and templates: their data in containers, access to it, and where it must never be found.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use serde_json::Value;
use warren_testkit::cli::WarrenCli;
use warren_testkit::image::TestImage;
use warren_testkit::wait::eventually;
use warren_testkit::{cleanup, tool};

use crate::e2e::cluster::WorkerCluster;
use crate::e2e::fixture::{BOX, LogSince, NodeFixture, SOON};
use crate::e2e::task_document;

const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const CONFLICT: i32 = 4;

/// A marker that no file, log or answer may contain.
const NEVER_SEEN: &str = "xyzzy-never-seen-anywhere";

/// An image whose container runs as its own user and logs the output of `script`.
const IMAGE: &str = "warren.local/reader:1";

fn reader() -> TestImage {
    TestImage::busybox(IMAGE).user("nobody").entrypoint(["sh", "-c"])
}

/// Writes `text` to a file of the test, and creates a secret or config of it.
#[track_caller]
fn create(warren: &WarrenCli, scratch: &Path, kind: &str, name: &str, text: &str) {
    let path = scratch.join(format!("{kind}-{name}"));
    fs::write(&path, text).unwrap();
    warren.run_ok(&[kind, "create", name, path.to_str().unwrap()]);
}

#[track_caller]
fn update(warren: &WarrenCli, scratch: &Path, kind: &str, name: &str, text: &str) {
    let path = scratch.join(format!("{kind}-{name}"));
    fs::write(&path, text).unwrap();
    warren.run_ok(&[kind, "update", name, path.to_str().unwrap()]);
}

/// Runs `script` in a container of [`IMAGE`] and keeps that running.
#[track_caller]
fn run(world: &NodeFixture, name: &str, flags: &[&str], script: &str) {
    // A line without an end is shown when the container exits.
    let script = format!("{script}; echo; trap exit TERM; sleep 1000 & wait");
    let words = ["service", "create", name, "--detach", "--image", IMAGE, "--arg", &script];
    world.warren().run_ok(&[&words[..], flags].concat());
}

/// Waits until the one task of `name` serves and has printed exactly `wanted`.
#[track_caller]
fn wait_for_output(world: &NodeFixture, name: &str, expected: &str) {
    let task = world.wait_serving(name, 1).remove(0);
    eventually(SOON, &format!("the output of {name}"), || {
        let text = task_document::output(&world.node, &task);
        if text.trim_end() == expected { Ok(()) } else { Err(format!("{text:?} instead of {expected:?}")) }
    });
}

#[test]
fn secret_files_have_owner_mode_and_are_read_only() {
    let world = NodeFixture::with_box();
    world.import("reader.tar", &reader().oci_archive());
    let (warren, scratch) = (world.warren(), world.node.scratch().to_owned());
    create(&warren, &scratch, "secret", "db", "hunter2");
    create(&warren, &scratch, "secret", "key", "k\0\n");
    create(&warren, &scratch, "config", "app.conf", "listen 80\n");
    let cases: [(&str, &[&str], &str, &str); 8] = [
        (
            "default",
            &["--secret", "db"],
            "cat /run/secrets/db; stat -c ' %a %u:%g' /run/secrets/db",
            "hunter2 400 65534:65534",
        ),
        (
            "two",
            &["--secret", "db", "--secret", "key"],
            "ls /run/secrets; wc -c </run/secrets/key",
            "db\nkey\n3",
        ),
        (
            "target",
            &["--secret", "db:/etc/app/password,mode=0440,gid=77", "--user", "1000:77"],
            "cat /etc/app/password; stat -c ' %a %u:%g' /etc/app/password",
            "hunter2 440 1000:77",
        ),
        (
            "foreign",
            &["--secret", "db:/p,uid=1,gid=2"],
            "cat /p 2>&1 | grep -o denied; stat -c '%u:%g' /p",
            "denied\n1:2",
        ),
        ("config", &["--config", "app.conf"], "cat /app.conf; stat -c %a /app.conf", "listen 80\n444"),
        (
            "config-target",
            &["--config", "app.conf:/etc/app/main.conf", "--read-only"],
            "cat /etc/app/main.conf",
            "listen 80",
        ),
        (
            "read-only",
            &["--secret", "db", "--config", "app.conf", "--user", "0"],
            "for f in /run/secrets/db /app.conf; do (echo x >$f) 2>&1 | grep -o 'Read-only'; \
             rm -f $f 2>/dev/null || echo kept; done",
            "Read-only\nkept\nRead-only\nkept",
        ),
        (
            "memory",
            &["--secret", "db", "--config", "app.conf"],
            "grep -E ' (/run/secrets(/db)?|/app.conf) ' /proc/mounts | awk '{ print $3 }' | sort -u",
            "tmpfs",
        ),
    ];
    for (name, flags, script, _) in &cases {
        run(&world, name, flags, script);
    }
    for (name, _, _, expected) in &cases {
        wait_for_output(&world, name, expected);
    }
    // On the node they are in memory, readable by root only.
    let mounts = tool::run("cat", ["/proc/mounts"]);
    let mine: Vec<&str> =
        mounts.lines().filter(|line| line.contains(world.node.run_dir().to_str().unwrap())).collect();
    let of_contents = |line: &&&str| line.contains("secrets");
    let mount = mine.iter().find(of_contents).unwrap_or_else(|| panic!("no mount of contents: {mine:#?}"));
    for option in ["nosuid", "nodev", "noexec"] {
        assert!(mount.contains(option), "{mount}");
    }
    let at = mount.split(' ').nth(1).unwrap();
    assert_eq!(fs::metadata(at).unwrap().permissions().mode() & 0o777, 0o700, "{mount}");
    assert!(mount.contains(" tmpfs ") || mount.contains(" ramfs "), "{mount}");
    assert!(fs::read_dir(at).unwrap().count() >= cases.len());
    let names: Vec<&str> = cases.iter().map(|case| case.0).collect();
    warren.run_ok(&[&["service", "rm"][..], &names].concat());
    eventually(SOON, "the files of removed tasks to be gone", || {
        let left: Vec<_> = fs::read_dir(at).unwrap().map(|entry| entry.unwrap().path()).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
}

#[test]
fn new_secret_version_rolls_services_and_rollback_restores() {
    let world = NodeFixture::with_box();
    world.import("reader.tar", &reader().oci_archive());
    let (warren, scratch) = (world.warren(), world.node.scratch().to_owned());
    create(&warren, &scratch, "secret", "db", "one");
    create(&warren, &scratch, "config", "other", "unused");
    run(&world, "app", &["--secret", "db"], "cat /run/secrets/db");
    run(&world, "bystander", &["--config", "other"], "cat /other");
    wait_for_output(&world, "app", "one");
    wait_for_output(&world, "bystander", "unused");
    let bystander = world.wait_serving("bystander", 1).remove(0).id;
    let first = world.wait_serving("app", 1).remove(0).id;
    // The same bytes do not make a new version.
    update(&warren, &scratch, "secret", "db", "one");
    assert_eq!(warren.json(&["secret", "inspect", "db"])["versionNumber"], 1);
    update(&warren, &scratch, "secret", "db", "two");
    eventually(SOON, "the second version in the container", || {
        let tasks = task_document::serving(&world.node, "app", 1)?;
        let text = task_document::output(&world.node, &tasks[0]);
        if text.trim_end() == "two" && tasks[0].id != first {
            Ok(())
        } else {
            Err(format!("{text:?} {tasks:#?}"))
        }
    });
    assert_eq!(warren.json(&["secret", "inspect", "db"])["versionNumber"], 2);
    assert_eq!(
        world.wait_serving("bystander", 1).remove(0).id,
        bystander,
        "a service that does not follow was touched"
    );
    world.ok("service rollback app");
    eventually(SOON, "the first version again", || {
        let tasks = task_document::serving(&world.node, "app", 1)?;
        let printed = task_document::output(&world.node, &tasks[0]);
        if printed.trim_end() == "one" { Ok(()) } else { Err(format!("{printed:?} {tasks:#?}")) }
    });
    // In use, then unused.
    let said = warren.run_refused(&["secret", "rm", "db"], CONFLICT);
    assert!(said.contains("app") && said.contains("db"), "{said}");
    world.ok("service rm app");
    world.ok("secret rm db");
    warren.run_refused(&["secret", "rm", "db"], NOT_FOUND);
    assert_eq!(warren.json(&["secret", "ls"]), serde_json::json!([]));
}

#[test]
fn templates_are_filled_in_where_the_task_runs() {
    let world = NodeFixture::with_box();
    world.ok(&format!("node update {} --label-add zone=north", world.node.name()));
    world.import("reader.tar", &reader().oci_archive());
    let (warren, scratch) = (world.warren(), world.node.scratch().to_owned());
    create(
        &warren,
        &scratch,
        "config",
        "slot",
        "{{.Service.Name}}/{{.Task.Slot}} in {{ .Node.Labels.zone }}\n",
    );
    create(&warren, &scratch, "config", "literal", "{{.Not.Ours}}\n");
    fs::create_dir(scratch.join("of-tpl")).unwrap();
    fs::write(scratch.join("of-tpl/1"), "bound\n").unwrap();
    let bind = format!("{}/of-{{{{.Service.Name}}}}:/shared", scratch.display());
    let flags = [
        &["--label", "team=shop", "--hostname", "{{.Service.Name}}-{{.Task.Slot}}.{{.Node.Labels.zone}}"][..],
        &["--env", "WHO={{.Task.Name}}@{{.Node.Hostname}} {{.Service.Labels.team}}", "--bind", &bind],
        &["--env", r#"RAW={{"{{"}}x}}"#, "--config", "slot:/slot,template", "--config", "literal"],
    ];
    run(&world, "tpl", &flags.concat(), "echo $WHO; hostname; cat /slot /literal /shared/1; echo $RAW");
    let node = world.node.name().to_owned();
    wait_for_output(
        &world,
        "tpl",
        &format!("tpl.1@{node} shop\ntpl-1.north\ntpl/1 in north\n{{{{.Not.Ours}}}}\nbound\n{{{{x}}}}"),
    );
    // Errors that managers can detect are refused; others fail on the node.
    let new = ["service", "create", "new", "--image", BOX, "--env"];
    for (value, reason) in [
        ("A={{.Task.Slto}}", "is not a field"),
        ("A={{.Task.Slot", "not closed"),
        ("A={{.Service.Labels.team}}", "label team, which the service does not have"),
    ] {
        let output = warren.run_refused(&[&new[..], &[value]].concat(), USAGE);
        assert!(output.contains("env[0]") && output.contains(reason), "{output}");
    }
    run(&world, "lost", &["--env", "A={{.Node.Labels.rack}}"], "true");
    eventually(SOON, "the reason", || {
        let tasks = task_document::of_service(&world.node, "lost");
        let reported =
            tasks.iter().any(|t| t.state == "REJECTED" && t.reason.contains("the node has no label rack"));
        if reported { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
}

/// Every file below `directory` that contains `needle`, and how many files were read.
fn files_with(directory: &Path, needle: &[u8]) -> (Vec<String>, usize) {
    let (mut found, mut read, mut ways) = (Vec::new(), 0, vec![directory.to_owned()]);
    while let Some(directory) = ways.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            if kind.is_dir() {
                ways.push(path);
            } else if kind.is_file() {
                let Ok(bytes) = fs::read(&path) else { continue };
                read += 1;
                if bytes.windows(needle.len()).any(|window| window == needle) {
                    found.push(path.display().to_string());
                }
            }
        }
    }
    (found, read)
}

#[test]
fn secret_bytes_are_only_in_memory() {
    let mut world = NodeFixture::with_box();
    world.import("reader.tar", &reader().oci_archive());
    let warren = world.warren();
    let mut command = warren.command(&["secret", "create", "db", "-"]);
    let given = world.node.scratch().join("given");
    // Given by standard input, from a file that is removed before the search.
    fs::write(&given, NEVER_SEEN).unwrap();
    let status = command.stdin(fs::File::open(&given).unwrap()).status().unwrap();
    fs::remove_file(&given).unwrap();
    assert!(status.success());
    // Tasks that work, fail, are refused and restart: no output about them contains the data.
    run(&world, "app", &["--secret", "db"], "wc -c </run/secrets/db");
    wait_for_output(&world, "app", &NEVER_SEEN.len().to_string());
    run(&world, "failing", &["--secret", "db:/proc-x/y", "--command", "/nothing-here"], "true");
    run(&world, "checked", &["--secret", "db", "--health-cmd", "grep -q nothing /run/secrets/db"], "true");
    warren.run_refused(&["secret", "create", "db", "/etc/hostname"], CONFLICT);
    warren.run_refused(&["secret", "rm", "db"], CONFLICT);
    world.node.crash_and_recover();
    world.wait_serving("app", 1);
    let mut shown = String::new();
    for words in [
        &["secret", "inspect", "db", "-o", "json"][..],
        &["secret", "ls", "-o", "yaml"],
        &["service", "inspect", "app", "-o", "json"],
        &["service", "history", "app", "-o", "json"],
        &["service", "ps", "failing", "-o", "json"],
        &["task", "inspect", "app.1", "-o", "json"],
        &["task", "inspect", "checked.1", "-o", "json"],
        &["cluster", "info", "-o", "json"],
        &["cluster", "background-tasks", "-o", "json"],
        &["node", "ls", "-o", "json"],
    ] {
        shown.push_str(&warren.run_ok(words));
    }
    shown.push_str(&metrics(&world));
    shown.push_str(&world.node.process().log());
    assert!(shown.contains("db") && shown.len() > 5000);
    assert!(!shown.contains(NEVER_SEEN), "shown: {shown}");
    // Arguments and environment of all processes of the node.
    let processes = cleanup::processes(world.node.scratch());
    assert!(processes.len() >= 4, "{processes:?}");
    for process in &processes {
        for file in ["cmdline", "environ"] {
            let bytes = fs::read(format!("/proc/{}/{file}", process.pid)).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            assert!(!text.contains(NEVER_SEEN), "{file} of {}", process.command);
        }
    }
    // A node that is killed by a signal writes no core dump.
    let pid = world.node.process().pid();
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let cores = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(cores.split_whitespace().nth(4), Some("0"), "{cores}");
    signal::kill(Pid::from_raw(pid), Signal::SIGABRT).unwrap();
    world.node.process().wait(SOON);
    // On disk: the node's directories, containerd's, logs, contexts. The tmpfs is not on disk; its path is
    // excluded.
    let ours = |path: &String| !path.contains("/secrets/");
    let (found, read) = files_with(world.node.scratch(), NEVER_SEEN.as_bytes());
    let found: Vec<String> = found.into_iter().filter(ours).collect();
    assert!(read > 50, "only {read} files were read");
    assert!(found.is_empty(), "on disk: {found:#?}");
    // The search finds existing data.
    let (control, _) = files_with(&world.node.run_dir(), NEVER_SEEN.as_bytes());
    assert!(!control.is_empty(), "the secret of a running container is not even in memory");
}

/// The node's metrics.
#[track_caller]
fn metrics(world: &NodeFixture) -> String {
    let mut curl = world.node.host().command("curl");
    curl.args(["--silent", "--show-error", "--fail", "http://127.0.0.1:9090/metrics"]);
    tool::stdout(curl, tool::DEADLINE).unwrap()
}

#[test]
fn task_with_secret_restarts_without_manager_until_reboot() {
    let mut cluster = WorkerCluster::new(1);
    cluster.import("reader.tar", &reader().oci_archive());
    let (warren, scratch) = (cluster.warren(), cluster.manager.scratch().to_owned());
    create(&warren, &scratch, "secret", "db", "hunter2");
    let script = "cat /run/secrets/db; echo; trap exit TERM; sleep 1000 & wait";
    let words = ["service", "create", "app", "--image", IMAGE, "--secret", "db", "--restart-delay", "100ms"];
    warren.run_ok(&[&words[..], &["--restart-max", "10", "--arg", script]].concat());
    let task = cluster.wait_serving("app", 1).remove(0);
    let worker = &cluster.workers[0];
    let output = |expected: &str| {
        let log = worker.data_dir().join("tasks").join(&task.id);
        eventually(SOON, "the container's words", || {
            let (found, _) = files_with(&log, expected.as_bytes());
            if found.is_empty() { Err(format!("not in {}", log.display())) } else { Ok(()) }
        });
    };
    output("hunter2");
    cluster.manager.kill();
    // A restart in place, without a manager.
    let worker = &mut cluster.workers[0];
    let before = task_document::pids(worker);
    signal::kill(Pid::from_raw(before[&task.id]), Signal::SIGKILL).unwrap();
    let again = eventually(SOON, "the container again", || {
        let now = task_document::pids(worker);
        match now.get(&task.id) {
            Some(pid) if *pid != before[&task.id] => Ok(*pid),
            _ => Err(format!("{now:?}\n{}", worker.process().log_tail(20))),
        }
    });
    // The agent too.
    worker.kill();
    worker.run_again();
    signal::kill(Pid::from_raw(again), Signal::SIGKILL).unwrap();
    eventually(SOON, "the container once more", || {
        let now = task_document::pids(worker);
        let is_new = now.get(&task.id).is_some_and(|pid| *pid != again);
        if is_new { Ok(()) } else { Err(format!("{now:?}\n{}", worker.process().log_tail(20))) }
    });
    // As after a reboot: no processes, and the tmpfs is empty.
    worker.kill();
    let run_dir = worker.run_dir();
    let pid = task_document::pids(worker)[&task.id];
    signal::kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    let of_contents: Vec<&str> = points
        .filter(|point| point.starts_with(run_dir.to_str().unwrap()) && point.contains("secrets"))
        .collect();
    assert!(!of_contents.is_empty(), "{mounts}");
    for point in of_contents {
        tool::run("umount", ["--lazy", point]);
    }
    let log = LogSince::of(worker);
    worker.run_again();
    eventually(SOON, "the reason of the waiting task", || {
        let text = log.text();
        if text.contains("waiting for a manager") { Ok(()) } else { Err(text) }
    });
    assert!(!task_document::pids(worker).contains_key(&task.id), "it runs without its secret");
    cluster.manager.run_again();
    cluster.manager.wait_ready();
    let is_same = |tasks: &[task_document::TaskDocument]| tasks.len() == 1 && tasks[0].id == task.id;
    eventually(2 * SOON, "the same task to serve", || {
        let tasks = task_document::serving(&cluster.manager, "app", 1)?;
        if is_same(&tasks) { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
}

#[test]
fn bad_contents_are_refused_with_the_reason() {
    let world = NodeFixture::with_box();
    let (warren, scratch) = (world.warren(), world.node.scratch().to_owned());
    create(&warren, &scratch, "secret", "db", "hunter2");
    create(&warren, &scratch, "config", "app", "text");
    let large = scratch.join("large");
    fs::write(&large, vec![7; (1 << 20) + 1]).unwrap();
    let whole = scratch.join("whole");
    fs::write(&whole, vec![7; 1 << 20]).unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (large, whole) = (text(&large), text(&whole));
    let new = "service create new --image warren.local/box:1";
    let cases: [(String, i32, &str); 17] = [
        (format!("secret create big {large}"), USAGE, "1 MiB"),
        (format!("config update app {large}"), USAGE, "1 MiB"),
        (format!("secret create db {whole}"), CONFLICT, "already exists"),
        (format!("secret create bad/name {whole}"), USAGE, "name"),
        ("secret create x /no/such/file".into(), NOT_FOUND, "/no/such/file"),
        (format!("secret create x {}", scratch.display()), USAGE, "directory"),
        (format!("secret update nobody {whole}"), NOT_FOUND, "nobody"),
        ("config inspect nobody".into(), NOT_FOUND, "nobody"),
        (format!("{new} --secret nobody"), USAGE, "task.secrets[0].source"),
        (format!("{new} --config db"), USAGE, "there is no config db"),
        (format!("{new} --secret db --secret db"), USAGE, "target"),
        (format!("{new} --secret db:/x --config app:/x"), USAGE, "target"),
        (format!("{new} --secret db:/x --config app:/x/y"), USAGE, "below"),
        (format!("{new} --secret db:relative"), USAGE, "absolute path"),
        (format!("{new} --secret db:/a/../b"), USAGE, ".."),
        (format!("{new} --secret db:/proc/x"), USAGE, "kernel"),
        (format!("{new} --secret db,mode=7777"), USAGE, "mode"),
    ];
    for (line, code, reason) in &cases {
        let output = warren.run_refused(&line.split(' ').collect::<Vec<_>>(), *code);
        assert!(output.contains(reason), "{line}: {output}");
    }
    // The largest one arrives complete.
    warren.run_ok(&["secret", "create", "whole", &whole]);
    world.create_script("app", &["--secret", "whole"], "wc -c </run/secrets/whole; exec tail -f /dev/null");
    wait_for_output(&world, "app", &(1 << 20).to_string());
    let config = warren.json(&["config", "inspect", "app"]);
    assert_eq!(config["stringData"], Value::from("text"), "{config}");
    assert!(warren.json(&["secret", "inspect", "db"]).get("data").is_none());
}
