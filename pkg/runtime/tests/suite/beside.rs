//! Programs that run next to the first process of a container, such as checks, have its setup.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use warren_container_programs::plan::{CapabilityMasks, ExecPlan};
use warren_health::{ContainerExec, Exec, ExecPlanSource, ExecResult, ExecStatus, ProbeTarget};
use warren_runtime::containerd::ContainerdRuntime;
use warren_runtime::{ContainerId, ContainerSpec, Runtime, SeccompPolicy};

use warren_testkit::containerd::ctr;
use warren_testkit::tool;

use crate::world::{RuntimeFixture, end, run, spec};

/// Asks the runtime each time.
struct UncachedPlans(ContainerdRuntime);

#[async_trait::async_trait]
impl ExecPlanSource for UncachedPlans {
    async fn exec_plan(&self, container: &str) -> Result<ExecPlan, String> {
        let id = ContainerId::parse(container).map_err(|error| error.to_string())?;
        let setup = self.0.process_setup(&id).await.map_err(|error| error.to_string())?;
        let [bounding, effective, permitted, inheritable, ambient] = setup.capabilities;
        Ok(ExecPlan {
            cgroup: setup.cgroup,
            environment: setup.environment.into_iter().map(String::into_bytes).collect(),
            directory: setup.directory.into_bytes(),
            uid: setup.uid,
            gid: setup.gid,
            groups: setup.groups,
            capabilities: CapabilityMasks { bounding, effective, permitted, inheritable, ambient },
            no_new_privileges: setup.no_new_privileges,
            rlimits: setup.limits,
            seccomp_filters: setup.filters,
            ..ExecPlan::default()
        })
    }
}

fn exec(world: &RuntimeFixture) -> ContainerExec {
    let programs = warren_container_programs::ensure_installed(world.containerd.dir()).unwrap();
    ContainerExec::new(
        programs.exec,
        Arc::new(UncachedPlans(ContainerdRuntime::new(world.containerd.settings()).unwrap())),
    )
}

fn target(name: &str, pid: u32) -> ProbeTarget {
    let netns = Path::new("/nowhere").to_owned();
    ProbeTarget { container: name.to_owned(), pid, netns, address: "10.0.0.1".parse().unwrap() }
}

fn shell_command(script: &str) -> Vec<String> {
    ["sh", "-c", script].map(str::to_owned).to_vec()
}

const LONG: Duration = Duration::from_secs(20);

/// The varying part of a container.
type Change = fn(&mut ContainerSpec);

/// What each line of the container's output reports, and what a program next to it must report too.
const REPORT_SCRIPT: &str = "id; hostname; pwd; echo $OWN; grep -e Cap -e NoNewPrivs -e Seccomp: /proc/self/status; \
                    ulimit -n; cat /proc/self/oom_score_adj; unshare -m true 2>&1 | grep -c permitted; \
                    cat /proc/self/cgroup; umask; cat /proc/1/cmdline | grep -c sleeping";

#[tokio::test(flavor = "multi_thread")]
async fn exec_has_identity_of_first_process() {
    let world = RuntimeFixture::start().await;
    let exec = exec(&world);
    let cases: [(&str, Change); 5] = [
        ("plain", |_| ()),
        ("user", |spec| {
            (spec.user, spec.groups) = (Some("web".into()), vec!["55".into()]);
            spec.cap_add = vec!["NET_ADMIN".into()];
        }),
        ("strict", |spec| {
            spec.no_new_privileges = true;
            spec.cap_drop = vec!["ALL".into()];
            spec.user = Some("33:44".into());
        }),
        ("open", |spec| (spec.seccomp, spec.oom_score_adj) = (SeccompPolicy::Unconfined, Some(500))),
        ("privileged", |spec| spec.privileged = true),
    ];
    for (name, change) in cases {
        let (log, dir) = world.log(name);
        let script = format!("{REPORT_SCRIPT}; echo that is all; : sleeping; sleep 1000");
        let mut spec = ContainerSpec { log, ..spec(name, &["sh", "-c", &script]) };
        spec.env.push(("OWN".into(), "of the container".into()));
        change(&mut spec);
        let pid = run(&world.runtime, &spec).await;
        let own = dir.join("stdout");
        let is_written =
            || async { std::fs::read_to_string(&own).is_ok_and(|text| text.ends_with("that is all\n")) };
        crate::world::eventually("the container's own words", is_written).await;
        let own = std::fs::read_to_string(&own).unwrap();
        // A larger output would be truncated on one side only.
        for line in REPORT_SCRIPT.split("; ") {
            let ran = exec.run(&target(name, pid), &shell_command(line), LONG).await;
            assert!(own.contains(&ran.output), "{name}: {line}: {ran:?} instead of {own}");
            assert!(!ran.output.is_empty(), "{name}: {line}: {ran:?}");
        }
        end(&world.runtime, &spec).await;
    }
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_end_is_reported_and_nothing_is_left() {
    let world = RuntimeFixture::start().await;
    let exec = exec(&world);
    let spec = spec("holds", &["sh", "-c", "sleep 100000"]);
    let pid = run(&world.runtime, &spec).await;
    let at = target("holds", pid);
    let ran = |script: &'static str, within| {
        let (exec, at) = (&exec, &at);
        async move { exec.run(at, &shell_command(script), within).await }
    };
    let exited = |code, output: &str| ExecResult { status: ExecStatus::Exited(code), output: output.into() };
    assert_eq!(ran("echo out; echo err >&2; exit 3", LONG).await, exited(3, "out\nerr\n"));
    assert_eq!(ran("kill -9 $$", LONG).await, exited(137, ""));
    assert_eq!(ran("/no/such/program", LONG).await.status, ExecStatus::Exited(127));
    let long = ran("i=0; while [ $i -lt 9999 ]; do i=$((i+1)); echo 0123456789; done", LONG).await;
    assert_eq!((long.status, long.output.len()), (ExecStatus::Exited(0), 512));
    let missing = exec.run(&at, &["no-such-program".into()], LONG).await;
    assert_eq!(
        missing.status,
        ExecStatus::Failed("no such program in the container: no-such-program".into())
    );
    let directory = exec.run(&at, &["/etc".into()], LONG).await;
    assert!(matches!(&directory.status, ExecStatus::Failed(why) if why.contains("denied")), "{directory:?}");

    // Background processes that write do not delay the result.
    let begin = Instant::now();
    assert_eq!(ran("yes 6666 & exit 0", LONG).await.status, ExecStatus::Exited(0));
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());

    // A timeout ends all processes of the program; so does a cancellation.
    let sleepers = || {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let line = |entry: std::fs::DirEntry| std::fs::read(entry.path().join("cmdline")).ok();
        all.filter_map(line).filter(|line| line.starts_with(b"sleep\x007777")).count()
    };
    let before = sleepers();
    let begin = Instant::now();
    let late = ran("echo begun; sleep 7777 & sleep 7777", Duration::from_millis(300)).await;
    assert_eq!(late, ExecResult { status: ExecStatus::TimedOut, output: "begun\n".into() });
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    let dropped = tokio::time::timeout(Duration::from_millis(300), ran("sleep 7777", LONG)).await;
    assert!(dropped.is_err());
    crate::world::eventually("the programs are gone", || async { sleepers() == before }).await;

    // A paused container fails at once, and continues afterwards.
    let settings = world.containerd.settings();
    let tell = |verb: &str| {
        let words = ["--namespace", &settings.namespace, "tasks", verb, "holds"];
        tool::stdout(ctr(&settings.socket, words), tool::DEADLINE).unwrap();
    };
    tell("pause");
    assert_eq!(ran("true", LONG).await.status, ExecStatus::Failed("the container is paused".into()));
    tell("resume");
    assert_eq!(ran("true", LONG).await, exited(0, ""));

    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let open = descriptors();
    for _ in 0..50 {
        assert_eq!(ran("true", LONG).await, exited(0, ""));
    }
    crate::world::eventually("no file stays open", || async { descriptors() <= open }).await;

    // Its process id may be reused now.
    let another = exec.run(&target("holds", std::process::id()), &shell_command("true"), LONG).await;
    assert_eq!(another.status, ExecStatus::Failed("the container has ended".into()));
    end(&world.runtime, &spec).await;
    let gone = exec.run(&at, &shell_command("true"), LONG).await;
    assert!(matches!(gone.status, ExecStatus::NotStarted(_)), "{gone:?}");
    world.assert_clean().await;
}

/// An image whose program executes it: it must not get access to the node's file.
#[tokio::test(flavor = "multi_thread")]
async fn container_cannot_open_host_program() {
    let world = RuntimeFixture::start().await;
    let exec = exec(&world);
    let spec = spec("thief", &["sh", "-c", "sleep 100000"]);
    let pid = run(&world.runtime, &spec).await;
    let installed = world.containerd.dir().join("warren-exec");
    let before = std::fs::read(&installed).unwrap();
    let thief = "for i in 1 2 3 4 5 6 7 8 9 10; do for p in /proc/[0-9]*; do \
                 (echo stolen >$p/exe) 2>/dev/null; done; done; true";
    let (robbed, ran) =
        tokio::join!(async { exec.run(&target("thief", pid), &shell_command(thief), LONG).await }, async {
            let mut last = None;
            for _ in 0..20 {
                last = Some(exec.run(&target("thief", pid), &["/proc/self/exe".into()], LONG).await);
            }
            last.unwrap()
        });
    assert_eq!(robbed.status, ExecStatus::Exited(0), "{robbed:?}");
    assert_ne!(ran.status, ExecStatus::TimedOut);
    assert!(std::fs::read(&installed).unwrap() == before, "the node's own program was changed");
    end(&world.runtime, &spec).await;
    world.assert_clean().await;
}

/// Prints each process of the container that has other capabilities than the first one, or no seccomp filter: one that
/// a container with SYS_PTRACE could take over.
const SCAN: &str = "rights() { c= s=; while read -r name value; do case $name in CapPrm:) c=$value;; \
                    Seccomp:) s=$value;; esac; done <$1/status; } 2>/dev/null; \
                    rights /proc/1; own=\"$c $s\"; echo \"own $own\"; \
                    while :; do for p in /proc/[0-9]*; do rights $p; \
                    [ \"$c $s\" = \"$own\" ] || [ -z \"$s\" ] || echo \"found $c $s\"; done; done";

#[tokio::test(flavor = "multi_thread")]
async fn container_sees_no_process_with_more_rights() {
    let world = RuntimeFixture::start().await;
    let exec = exec(&world);
    let (log, dir) = world.log("tracer");
    let mut spec = ContainerSpec { log, ..spec("tracer", &["sh", "-c", SCAN]) };
    spec.cap_add = vec!["SYS_PTRACE".into()];
    let pid = run(&world.runtime, &spec).await;
    let printed = || std::fs::read_to_string(dir.join("stdout")).unwrap_or_default();
    crate::world::eventually("the scan runs", || async { printed().ends_with('\n') }).await;
    assert_eq!(printed(), "own 00000000a80c25fb 2\n");
    for _ in 0..100 {
        let ran = exec.run(&target("tracer", pid), &["true".into()], LONG).await;
        assert_eq!(ran.status, ExecStatus::Exited(0));
    }
    assert_eq!(printed(), "own 00000000a80c25fb 2\n");
    end(&world.runtime, &spec).await;
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_has_files_of_the_container_only() {
    let world = RuntimeFixture::start().await;
    let exec = exec(&world);
    let spec = spec("files", &["sh", "-c", "sleep 100000"]);
    let pid = run(&world.runtime, &spec).await;
    let ran = async |script| {
        let ran = exec.run(&target("files", pid), &shell_command(script), LONG).await;
        assert_eq!(ran.status, ExecStatus::Exited(0), "{ran:?}");
        ran.output
    };
    let device = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let shown = device(&ran("stat -L -c %d:%i /dev/null /proc/self/fd/0").await);
    assert_eq!(shown[0], shown[1], "the input is the null device of the container");
    let changed = |path: &str| std::fs::metadata(path).unwrap().modified().unwrap();
    let before = changed("/dev/null");
    assert_eq!(ran("touch /dev/stdin; touch /proc/self/fd/0; cat; echo end").await, "end\n");
    assert_eq!(changed("/dev/null"), before, "the null device of the node");
    let list = "cd /proc/$$/fd; for file in *; do [ -L $file ] && echo -n $file; done; true";
    assert_eq!(ran(list).await, "012");

    ran("mv /dev/null /dev/kept; mkfifo /dev/null").await;
    let refused = exec.run(&target("files", pid), &shell_command("true"), LONG).await;
    let reason = "cannot set its standard input and output: No such device or address (os error 6)";
    assert_eq!(refused.status, ExecStatus::Failed(reason.to_owned()));
    end(&world.runtime, &spec).await;
    world.assert_clean().await;
}
