//! Containers that exit: the restart policy, and the reason in the task.

use std::time::Duration;

use warren_testkit::wait::eventually;

use crate::e2e::fixture::{NodeFixture, SOON};
use crate::e2e::task_document::{self, TaskDocument};

/// Waits until the newest task of slot 1 of `service` is as `expected`.
#[track_caller]
fn newest(
    world: &NodeFixture,
    service: &str,
    what: &str,
    expected: impl Fn(&TaskDocument) -> bool,
) -> TaskDocument {
    eventually(SOON, &format!("{service} {what}"), || {
        let tasks = task_document::of_service(&world.node, service);
        match tasks.first() {
            Some(task) if expected(task) => Ok(task.clone()),
            _ => Err(format!("{tasks:#?}")),
        }
    })
}

/// Programs that exit and are started again: flags, what they run, and how their task reports it.
const ENDS: &[(&str, &[&str], &str, &str)] = &[
    ("again", &["--restart-delay", "10s"], "exit 3", "exited with code 3; attempt 2"),
    ("success", &["--restart-delay", "10s"], "exit 0", "exited with code 0; attempt 2"),
    (
        "large",
        &["--memory", "16Mi"],
        "exec tail /dev/zero",
        "ran out of memory (limit 16MiB; raise limits.memory)",
    ),
];

#[test]
fn exit_is_reported_by_kind_and_delays_grow() {
    let world = NodeFixture::with_box();
    exit_is_reported_by_kind(&world);
    restart_delays_grow_and_are_shown(&world);
}

#[track_caller]
fn exit_is_reported_by_kind(world: &NodeFixture) {
    for (name, flags, script, _) in ENDS {
        world.create_script(name, flags, script);
    }
    for (name, _, _, reason) in ENDS {
        eventually(SOON, &format!("the end of {name}"), || {
            let tasks = task_document::of_service(&world.node, name);
            let is_told = tasks.iter().any(|task| task.reason.contains(reason));
            if is_told { Ok(()) } else { Err(format!("{tasks:#?}")) }
        });
    }
    let names: Vec<&str> = ENDS.iter().map(|(name, ..)| *name).collect();
    world.warren().run_ok(&[&["service", "rm"][..], &names].concat());
    let patient = ["--restart-delay", "60s"];
    world.create_script("code", &patient, "exit 7");
    world.create_script("signal", &patient, "sh -c 'kill -SEGV $$'; exit $?");
    world.create_script("memory", &["--restart-delay", "60s", "--memory", "16Mi"], "tail /dev/zero");
    world.create_script("absent", &["--restart-delay", "60s", "--restart", "none"], "exec /no/such/program");
    for (name, mentions) in
        [("code", "exited with code 7"), ("signal", "SIGSEGV"), ("memory", "memory"), ("absent", "code 127")]
    {
        let says_when = |task: &TaskDocument| name == "absent" || task.next_attempt.is_some();
        newest(world, name, "to say why and when it tries again", |task| {
            task.reason.contains(mentions) && says_when(task)
        });
    }
    let listed = world.ok("service ps code");
    assert!(listed.contains("restarts in"), "{listed}");
}

#[test]
fn restart_policy_is_obeyed() {
    let world = NodeFixture::new();
    let quick = ["--restart-delay", "100ms", "--restart-max", "2", "--restart-window", "1m"];
    let with = |condition: &'static str| [&["--restart", condition][..], &quick].concat();
    world.create_script("any", &with("any"), "exit 0");
    world.create_script("failing", &with("on-failure"), "exit 1");
    world.create_script("done", &with("on-failure"), "exit 0");
    world.create_script("once", &with("none"), "exit 0");
    world.create_script("once-failed", &with("none"), "exit 3");
    // Restarted as often as allowed, then failed and replaced.
    for name in ["any", "failing"] {
        eventually(SOON, &format!("{name} to be given up"), || {
            let tasks = task_document::of_service(&world.node, name);
            let failed = tasks.iter().find(|task| task.state == "FAILED");
            match failed {
                Some(task) if task.attempt == 3 && tasks.len() > 1 => Ok(()),
                _ => Err(format!("{tasks:#?}")),
            }
        });
    }
    for (name, state) in [("done", "COMPLETE"), ("once", "COMPLETE"), ("once-failed", "FAILED")] {
        let found = newest(&world, name, &format!("to be {state}"), |task| task.state == state);
        assert_eq!(found.attempt, 1, "{found:?}");
    }
    // And they stay so: they are not replaced.
    world.run_and_remove_something();
    for name in ["done", "once", "once-failed"] {
        assert_eq!(task_document::of_service(&world.node, name).len(), 1);
    }
    // A new revision starts again.
    world.ok("service update once --detach --force");
    eventually(SOON, "another try", || {
        let tasks = task_document::of_service(&world.node, "once");
        if tasks.len() == 2 { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
}

#[track_caller]
fn restart_delays_grow_and_are_shown(world: &NodeFixture) {
    world.create_script(
        "web",
        &["--restart-delay", "400ms", "--restart-max", "5"],
        "cut -d ' ' -f 1 /proc/uptime; exit 1",
    );
    let task = newest(world, "web", "to have tried four times", |task| task.attempt >= 4);
    let text = eventually(SOON, "four starts", || {
        let text = task_document::output(&world.node, &task);
        if text.lines().count() >= 4 { Ok(text) } else { Err(text) }
    });
    let starts: Vec<f64> = text.lines().map(|line| line.parse().unwrap()).collect();
    let gaps = starts.windows(2).map(|pair| Duration::from_secs_f64(pair[1] - pair[0]));
    let gaps: Vec<Duration> = gaps.take(3).collect();
    for (gap, least) in gaps.iter().zip([400, 800, 1600]) {
        let least = Duration::from_millis(least);
        // Jitter may shorten it a little, and a busy machine may add much.
        assert!(*gap >= least.mul_f64(0.8), "{gaps:?}");
    }
}
