//! Health checks: readiness of a task, its traffic, and its replacement.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use warren_testkit::image::{ImageLayer, TestImage};
use warren_testkit::wait::{consistently, eventually};

use crate::e2e::fixture::{NodeFixture, SOON};
use crate::e2e::task_document::{self, TaskDocument};

const FAILED: i32 = 1;

/// A web server whose answers are controlled by a file of the node, per slot: see [`Shop::set_answer`].
const SERVER: &str = "warren.local/told:1";

/// What the server does for a request, by the command in its file; without one it answers 200 with its host
/// name.
const ANSWER: &str = r#"#!/bin/sh
read -r who word </told/word 2>/dev/null
[ "$who" = all ] || [ "$who" = "$ME" ] || word=
case $word in
  hang) sleep 1000 ;;
  500) printf 'Status: 500 Internal\r\nContent-Type: text/plain\r\n\r\nout of order\n' ;;
  loop) printf 'Status: 302 Found\r\nLocation: /cgi-bin/answer\r\n\r\n' ;;
  away) printf 'Status: 302 Found\r\nLocation: http://10.255.255.1/\r\n\r\n' ;;
  slow) printf 'Content-Type: text/plain\r\n\r\n'; while sleep 1; do echo -n x; done ;;
  endless) printf 'Content-Type: text/plain\r\n\r\n'; while :; do echo endless; done ;;
  *) printf 'Content-Type: text/plain\r\n\r\n<th>host name</th><td>%s</td>' "$(hostname)" ;;
esac
"#;

/// A node with the server's image, and the files that control its tasks.
struct HealthFixture {
    world: NodeFixture,
}

impl HealthFixture {
    fn start() -> HealthFixture {
        let world = NodeFixture::with_box();
        let layer = ImageLayer::new().directory("/www", 0o755).directory("/www/cgi-bin", 0o755);
        let layer = layer.file("/www/cgi-bin/answer", ANSWER, 0o755).file("/www/index.html", "hello", 0o644);
        let image =
            TestImage::busybox(SERVER).layer(layer).entrypoint(["httpd", "-f", "-p", "80", "-h", "/www"]);
        world.import("told.tar", &image.oci_archive());
        for slot in 1..=2 {
            fs::create_dir(world.node.scratch().join(format!("told-{slot}"))).unwrap();
        }
        HealthFixture { world }
    }

    fn file(&self, slot: u32) -> PathBuf {
        self.world.node.scratch().join(format!("told-{slot}/word"))
    }

    /// Sets what the tasks of `slot` do: all of them, or the one with that id.
    fn set_answer(&self, slot: u32, who: &str, keyword: &str) {
        fs::write(self.file(slot), format!("{who} {keyword}\n")).unwrap();
    }

    /// A service of the server, checked every 200 ms with `flags`; does not wait for it. On a loaded machine its tasks
    /// may be replaced because their answers are late.
    #[track_caller]
    fn create(&self, name: &str, flags: &[&str]) {
        self.create_with_timeout(name, "500ms", flags);
    }

    /// As [`HealthFixture::create`], with the timeout of a check.
    #[track_caller]
    fn create_with_timeout(&self, name: &str, timeout: &str, flags: &[&str]) {
        let bind = format!("{}/told-{{{{.Task.Slot}}}}:/told", self.world.node.scratch().display());
        let words = [
            "service",
            "create",
            name,
            "--detach",
            "--image",
            SERVER,
            "--bind",
            &bind,
            "--env",
            "ME={{.Task.ID}}",
        ];
        let often =
            ["--health-interval", "200ms", "--health-timeout", timeout, "--health-start-interval", "100ms"];
        self.world.warren().run_ok(&[&words[..], &often, flags].concat());
    }

    /// Waits until a task of `name` is unhealthy or was replaced because of that, for a reason that contains
    /// `mentions`.
    #[track_caller]
    fn unhealthy(&self, name: &str, mentions: &str) {
        eventually(SOON, &format!("{name} to be unhealthy: {mentions}"), || {
            let tasks = task_document::of_service(&self.world.node, name);
            let is_told =
                |task: &TaskDocument| task.reason.contains("unhealthy") && task.reason.contains(mentions);
            if tasks.iter().any(is_told) { Ok(()) } else { Err(format!("{tasks:#?}")) }
        });
    }
}

const HTTP: [&str; 2] = ["--health-http", ":80/cgi-bin/answer"];
/// The timeout of tasks that must stay healthy, on a loaded machine too.
const PATIENT: &str = "10s";
/// So many failures that a server which starts slowly listens before the last one.
const MANY_RETRIES: [&str; 2] = ["--health-retries", "25"];

#[test]
fn create_waits_for_a_passing_check() {
    let shop = HealthFixture::start();
    shop.set_answer(1, "all", "500");
    shop.create("late", &[&HTTP[..], &["--health-start-period", "60s"]].concat());
    eventually(SOON, "the task to run, not ready", || {
        let tasks = task_document::of_service(&shop.world.node, "late");
        let waits = tasks.len() == 1 && tasks[0].state == "RUNNING" && !tasks[0].ready;
        if waits { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
    let shown = eventually(SOON, "the last results", || {
        let shown = shop.world.warren().json(&["task", "inspect", "late.1"]);
        if shown["checks"].to_string().contains("500") { Ok(shown) } else { Err(shown.to_string()) }
    });
    assert_eq!(shown["health"], "starting", "{shown}");
    fs::remove_file(shop.file(1)).unwrap();
    let task = shop.world.wait_serving("late", 1).remove(0);
    assert_eq!(task.attempt, 1, "failures within the start period are no reason to start again");
    // A TCP check, and an exec check that runs inside the container.
    shop.world.ok(&format!("service create tcp --image {SERVER} --health-tcp 80 --health-interval 1s"));
    let cmd =
        "test $(id -u) = 7 && test $(hostname) = exec-1 && test $PPID != 1 && wget -q -O- http://127.0.0.1/";
    let words = ["service", "create", "exec", "--image", SERVER, "--env", "X=y", "--health-interval", "1s"];
    let user = ["--user", "7", "--sysctl", "net.ipv4.ip_unprivileged_port_start=0"];
    shop.world.warren().run_ok(&[&words[..], &user, &["--health-cmd", cmd]].concat());
    for name in ["tcp", "exec"] {
        shop.world.wait_serving(name, 1);
        let shown = shop.world.warren().json(&["task", "inspect", &format!("{name}.1")]);
        assert_eq!(shown["health"], "healthy", "{shown}");
    }
}

#[test]
fn failed_server_is_replaced_without_client_errors() {
    let shop = HealthFixture::start();
    let world = &shop.world;
    let flags = ["--replicas", "2", "--publish", "8088:80", "--drain-delay", "2s", "--stop-grace", "10s"];
    shop.create("web", &[&HTTP[..], &flags].concat());
    let mut tasks = world.wait_serving("web", 2);
    let ask = || {
        let mut curl = world.client_host.command("curl");
        let own = world.node.host().address();
        curl.args(["-sf", "--max-time", "1", &format!("http://{own}:8088/cgi-bin/answer")]);
        curl.output().unwrap().status.success()
    };
    // The tasks are ready before the port is open.
    eventually(SOON, "an answer on the port", || if ask() { Ok(()) } else { Err("none".to_owned()) });
    for keyword in ["500", "hang"] {
        let sick = tasks.iter().find(|task| task.slot == 1).unwrap().clone();
        let begin = Instant::now();
        shop.set_answer(1, &sick.id, keyword);
        let mut detected = None;
        let (detected, replaced) = loop {
            // A client that retries gets an answer; a loaded machine may take too long for one of them.
            let is_answered = (0..4).any(|_| ask());
            assert!(is_answered, "no answer {:?} after slot 1 began to {keyword}", begin.elapsed());
            let now = task_document::of_service(&world.node, "web");
            let old = now.iter().find(|task| task.id == sick.id);
            if detected.is_none() && old.is_none_or(|task| !task.ready) {
                detected = Some(begin.elapsed());
            }
            if let Ok(tasks) = task_document::serving(&world.node, "web", 2)
                && tasks.iter().all(|task| task.id != sick.id)
            {
                // It may have been replaced between two looks.
                break (detected.unwrap_or_else(|| begin.elapsed()), tasks);
            }
            assert!(begin.elapsed() < 2 * SOON, "{keyword}: not replaced: {now:#?}");
        };
        tasks = replaced;
        // Three checks, each 200 ms after the last or as late as its timeout; and the rest for a loaded machine.
        assert!(detected < SOON, "{keyword} was noticed after {detected:?}");
        println!("{keyword}: detected after {detected:?}, replaced after {:?}", begin.elapsed());
        shop.unhealthy("web", if keyword == "500" { "HTTP 500" } else { "no answer" });
    }
    // Killed: the worker restarts it by itself, and nothing is replaced.
    shop.create_with_timeout("killed", PATIENT, &[HTTP, ["--health-start-period", "60s"]].concat());
    let victim = world.wait_serving("killed", 1).remove(0);
    let pid = task_document::pids(&world.node)[&victim.id];
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    eventually(SOON, "the next attempt to serve", || {
        let again = task_document::serving(&world.node, "killed", 1)?.remove(0);
        assert_eq!(again.id, victim.id, "it was replaced");
        if again.attempt == 2 { Ok(()) } else { Err(format!("{again:#?}")) }
    });
}

#[test]
fn failure_kinds_have_distinct_reasons() {
    let shop = HealthFixture::start();
    let port = ["--health-http", ":81/"];
    let missing = ["--health-cmd", "/no/such/program"];
    let says = ["--health-cmd", "echo something is wrong >&2; exit 3"];
    let slow = ["--health-cmd", "sleep 30"];
    let tcp = ["--health-tcp", "82"];
    for (name, flags, mentions) in [
        ("port", &port[..], "connection refused on port 81"),
        ("absent", &["--health-http", ":80/absent"], "HTTP 404"),
        ("missing", &missing, "127"),
        ("says", &says, "code 3"),
        ("slow", &slow, "500ms"),
        ("tcp", &tcp, "connection refused on port 82"),
    ] {
        shop.create(name, &[flags, &["--replicas", "1"]].concat());
        shop.unhealthy(name, mentions);
        shop.world.ok(&format!("service rm --detach {name}"));
    }
    // Responses of a malicious server are only bad or good answers.
    for (keyword, mentions) in [("loop", "redirect"), ("hang", "no answer")] {
        shop.set_answer(1, "all", keyword);
        shop.create(keyword, &HTTP);
        shop.unhealthy(keyword, mentions);
        shop.world.ok(&format!("service rm --detach {keyword}"));
    }
    for keyword in ["away", "slow", "endless"] {
        shop.set_answer(1, "all", keyword);
        shop.create(keyword, &HTTP);
        shop.world.wait_serving(keyword, 1);
        shop.world.ok(&format!("service rm --detach {keyword}"));
    }
    eventually(SOON, "the end of all of them", || {
        let left = shop.world.ok("service ls -q");
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
}

#[test]
fn update_to_unhealthy_image_goes_back_without_restart_storm() {
    let shop = HealthFixture::start();
    let world = &shop.world;
    // One that can never be healthy is replaced repeatedly with growing delays, during all that follows.
    shop.create("never", &["--health-http", ":80/absent"]);
    shop.create_with_timeout("web", PATIENT, &[&HTTP[..], &["--replicas", "2"]].concat());
    shop.unhealthy("never", "HTTP 404");
    let begin = Instant::now();
    let (mut seen, mut ids) = (0, BTreeSet::new());
    let before: BTreeSet<String> = world.wait_serving("web", 2).into_iter().map(|task| task.id).collect();
    let update = ["service", "update", "web", "--health-http", ":80/absent"];
    let text = world.warren().run_refused(&[&update[..], &MANY_RETRIES].concat(), FAILED);
    assert!(text.contains("unhealthy") && text.contains("HTTP 404"), "{text}");
    let still: BTreeSet<String> = world.wait_serving("web", 2).into_iter().map(|task| task.id).collect();
    assert_eq!(before, still, "healthy tasks were replaced by unhealthy ones");
    assert!(text.contains("revision 2 was rolled back"), "{text}");
    while begin.elapsed() < Duration::from_secs(12) || seen <= 3 {
        consistently(Duration::from_secs(1), "at most eight tasks", || {
            ids.extend(task_document::of_service(&world.node, "never").into_iter().map(|task| task.id));
            seen += 1;
            if ids.len() <= 8 { Ok(()) } else { Err(format!("{ids:?}")) }
        });
    }
    assert!(seen > 3 && ids.len() >= 2, "it was never replaced: {ids:?}");
    assert!(ids.len() <= 8, "{} tasks in twelve seconds", ids.len());
}

#[test]
fn restarted_agent_keeps_healthy_tasks() {
    let mut shop = HealthFixture::start();
    shop.create_with_timeout("web", PATIENT, &[&HTTP[..], &["--publish", "8088:80"]].concat());
    let before = shop.world.wait_serving("web", 1).remove(0);
    shop.world.node.crash_and_recover();
    let after = shop.world.wait_serving("web", 1).remove(0);
    assert_eq!((before.id, before.attempt, before.state_since), (after.id, after.attempt, after.state_since));
    shop.set_answer(1, "all", "500");
    shop.unhealthy("web", "HTTP 500");
}
