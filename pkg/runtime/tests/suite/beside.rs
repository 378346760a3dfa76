//! Programs that run next to the first process of a container have its setup.

use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::time::timeout;
use warren_runtime::containerd::ContainerdRuntime;
use warren_runtime::{
    AppArmorHost, AppArmorState, ContainerSpec, DEFAULT_APPARMOR_PROFILE, Error, ExecProcess, ExecSpec,
    Runtime, SeccompPolicy,
};
use warren_types::{AppArmor, SeccompProfile};

use warren_testkit::containerd::ctr;
use warren_testkit::tool;

use crate::world::{RuntimeFixture, count_processes, end, eventually, id, run, sleeper, spec};

fn shell_command(script: &str) -> ExecSpec {
    command(&["sh", "-c", script])
}

fn command(words: &[&str]) -> ExecSpec {
    let command = words.iter().map(|&word| word.to_owned()).collect();
    ExecSpec { command, combined: true, ..ExecSpec::default() }
}

/// Runs a program to its end: its exit code, and its whole output.
async fn exec(runtime: &ContainerdRuntime, name: &str, spec: &ExecSpec) -> Result<(u32, String), Error> {
    let ExecProcess { mut stdout, handle, .. } = runtime.exec(&id(name), spec).await?;
    let mut output = String::new();
    let all = async { tokio::join!(stdout.read_to_string(&mut output), handle.wait()) };
    let (read, code) = timeout(TIMEOUT, all).await.expect("the program ends");
    read.unwrap();
    Ok((code?, output))
}

const TIMEOUT: Duration = Duration::from_secs(60);

/// The varying part of a container.
type Change = fn(&mut ContainerSpec);

/// What each line of the container's output reports, and what a program next to it must report too.
const REPORT_SCRIPT: &str = "id; hostname; pwd; echo $OWN; echo $HOME; \
                    grep -e Cap -e NoNewPrivs -e Seccomp: /proc/self/status; \
                    ulimit -n; cat /proc/self/oom_score_adj; unshare -m true 2>&1 | grep -c permitted; \
                    cat /proc/self/cgroup; umask; cat /proc/1/cmdline | grep -c sleeping";

#[tokio::test(flavor = "multi_thread")]
async fn exec_has_identity_of_first_process() {
    let world = RuntimeFixture::start().await;
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
        run(&world.runtime, &spec).await;
        let own = dir.join("stdout");
        let is_written =
            || async { std::fs::read_to_string(&own).is_ok_and(|text| text.ends_with("that is all\n")) };
        eventually("the container's own words", is_written).await;
        let own = std::fs::read_to_string(&own).unwrap();
        // A larger output would be truncated on one side only.
        for line in REPORT_SCRIPT.split("; ") {
            let (code, output) = exec(&world.runtime, name, &shell_command(line)).await.unwrap();
            assert!(own.contains(&output), "{name}: {line}: {output} instead of {own}");
            assert!(!output.is_empty(), "{name}: {line}: {code}");
        }
        end(&world.runtime, &spec).await;
    }
    world.assert_clean().await;
}

/// Refuses to make directories, and nothing else.
const NO_DIRECTORIES: &str = r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
    {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}
]}"#;

/// Allows what a shell needs, and nothing that is newer than `prlimit64`. Lists no architecture.
const OLD_CALLS: &str = r#"{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"action": "SCMP_ACT_ALLOW", "names": [
    "access", "arch_prctl", "brk", "capget", "capset", "chdir", "clock_gettime", "clock_nanosleep", "clone", "close",
    "dup", "dup2", "dup3", "epoll_create1", "epoll_ctl", "epoll_pwait", "eventfd2", "execve", "exit", "exit_group",
    "faccessat", "fchdir", "fcntl", "fork", "fstat", "fstatfs", "futex", "getcwd", "getdents64", "getegid", "geteuid",
    "getgid", "getgroups", "getpgid", "getpgrp", "getpid", "getppid", "getrlimit", "gettid", "getuid", "ioctl", "kill",
    "lseek", "lstat", "madvise", "mmap", "mprotect", "mremap", "munmap", "nanosleep", "newfstatat", "open", "openat",
    "pipe", "pipe2", "poll", "ppoll", "prctl", "pread64", "prlimit64", "pselect6", "read", "readlink", "readlinkat",
    "readv", "restart_syscall", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait",
    "sched_getaffinity", "sched_yield", "select", "set_robust_list", "set_tid_address", "setgid", "setgroups",
    "setpgid", "setresgid", "setresuid", "setsid", "setuid", "sigaltstack", "stat", "statfs", "tgkill", "umask",
    "uname", "vfork", "wait4", "write", "writev"
]}]}"#;

/// The container and a program beside it print the same for the script under the profile.
async fn assert_alike(
    world: &RuntimeFixture,
    (name, no_new_privileges): (&str, bool),
    profile: &str,
    script: &str,
    expected: &str,
) {
    let profile = SeccompProfile::parse(profile.as_bytes()).unwrap();
    let (log, dir) = world.log(name);
    let whole = format!("{script}; echo that is all; sleep 1000");
    let asked = ContainerSpec {
        log,
        no_new_privileges,
        seccomp: SeccompPolicy::Profile(Box::new(profile)),
        ..spec(name, &["sh", "-c", &whole])
    };
    run(&world.runtime, &asked).await;
    let own = dir.join("stdout");
    let is_written =
        || async { std::fs::read_to_string(&own).is_ok_and(|text| text.ends_with("that is all\n")) };
    eventually("the container's own words", is_written).await;
    assert_eq!(std::fs::read_to_string(&own).unwrap(), format!("{expected}that is all\n"), "{name}");
    let beside = exec(&world.runtime, name, &shell_command(script)).await.unwrap();
    assert_eq!(beside, (0, expected.to_owned()), "{name}");
    end(&world.runtime, &asked).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn own_seccomp_profile_holds_for_all_programs() {
    let world = RuntimeFixture::start().await;
    let script = "mkdir /made 2>&1 | grep -c 'not permitted'; echo text >/file && cat /file";
    for case in [("own", false), ("own-strict", true)] {
        assert_alike(&world, case, NO_DIRECTORIES, script, "1\ntext\n").await;
    }
    // `setns` is newer than all that is named, and `mkdir` is not.
    let script = "busybox nsenter -n/proc/self/ns/net true 2>&1 | grep -c 'not implemented'; \
                  mkdir /made 2>&1 | grep -c 'not permitted'";
    assert_alike(&world, ("old", true), OLD_CALLS, script, "1\n1\n").await;
    world.assert_clean().await;
}

/// On a machine without AppArmor, a container that asks for a profile is refused.
#[tokio::test(flavor = "multi_thread")]
async fn all_programs_have_the_apparmor_profile() {
    let world = RuntimeFixture::start().await;
    let apparmor = AppArmor::Profile(DEFAULT_APPARMOR_PROFILE.to_owned());
    let named = ContainerSpec { apparmor, ..sleeper("named") };
    let loaded = world.runtime.load_apparmor_profile().await;
    if AppArmorHost::find().state().await == AppArmorState::Absent {
        let error = world.runtime.ensure_created(&named).await.unwrap_err();
        let is_expected = matches!(&error, Error::InvalidSpec { field, .. } if field == "apparmor");
        assert!(is_expected, "{error}, {loaded:?}");
        world.assert_clean().await;
        return;
    }
    loaded.unwrap();
    for asked in [named, sleeper("default")] {
        run(&world.runtime, &asked).await;
        for process in ["1", "self"] {
            let script = format!("cat /proc/{process}/attr/current");
            let (code, printed) =
                exec(&world.runtime, asked.id.as_str(), &shell_command(&script)).await.unwrap();
            let expected = format!("{DEFAULT_APPARMOR_PROFILE} (enforce)");
            assert_eq!((code, printed.trim()), (0, &*expected), "{process}");
        }
        end(&world.runtime, &asked).await;
    }
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_end_is_reported_and_nothing_is_left() {
    let world = RuntimeFixture::start().await;
    let holds = spec("holds", &["sh", "-c", "sleep 100000"]);
    run(&world.runtime, &holds).await;
    let ran = async |script| exec(&world.runtime, "holds", &shell_command(script)).await;
    assert_eq!(ran("echo out; echo err >&2; exit 3").await.unwrap(), (3, "out\nerr\n".into()));
    let (code, output) =
        ran("i=0; while [ $i -lt 9999 ]; do i=$((i+1)); echo 0123456789; done").await.unwrap();
    assert_eq!((code, output.len()), (0, 109_989));

    // A user can open the outputs again.
    let mut asked = shell_command("echo out >/dev/stdout; echo err >/dev/stderr");
    (asked.user, asked.combined) = (Some("web".into()), false);
    let ExecProcess { mut stdout, stderr, handle, .. } = world.runtime.exec(&holds.id, &asked).await.unwrap();
    let (mut out, mut err) = (String::new(), String::new());
    stdout.read_to_string(&mut out).await.unwrap();
    stderr.unwrap().read_to_string(&mut err).await.unwrap();
    assert_eq!((handle.wait().await.unwrap(), &out[..], &err[..]), (0, "out\n", "err\n"));

    // Background processes that write do not delay the end.
    let process = world.runtime.exec(&holds.id, &shell_command("yes 6666 & exit 0")).await.unwrap();
    assert_eq!(timeout(TIMEOUT, process.handle.wait()).await.expect("it ends").unwrap(), 0);
    drop(process);

    // A paused container fails at once, and continues afterwards.
    let settings = world.containerd.settings();
    let tell = |verb: &str| {
        let words = ["--namespace", &settings.namespace, "tasks", verb, "holds"];
        tool::stdout(ctr(&settings.socket, words), tool::DEADLINE).unwrap();
    };
    tell("pause");
    let paused = ran("true").await.unwrap_err();
    assert!(
        matches!(&paused, Error::Failed { reason, .. } if reason == "the container is paused"),
        "{paused}"
    );
    tell("resume");
    assert_eq!(ran("true").await.unwrap(), (0, String::new()));

    // Without a runtime that could wait, as when the agent ends: one that ignores SIGHUP ends as well.
    let settings = settings.clone();
    let agent = std::thread::spawn(move || {
        let tokio = tokio::runtime::Runtime::new().unwrap();
        let process = tokio.block_on(async {
            let runtime = ContainerdRuntime::new(settings).unwrap();
            let mut process = runtime
                .exec(&id("holds"), &shell_command("trap '' HUP; echo ready; exec sleep 7778"))
                .await
                .unwrap();
            process.stdout.read_exact(&mut [0; 6]).await.unwrap();
            process
        });
        tokio.shutdown_background();
        drop(process);
    });
    agent.join().unwrap();
    eventually("the program has ended", || async { count_processes(b"sleep\x007778") == 0 }).await;

    end(&world.runtime, &holds).await;
    world.assert_clean().await;
}

/// As an init in a container of its own does: Docker in Docker, systemd.
#[tokio::test(flavor = "multi_thread")]
async fn exec_joins_child_cgroup_of_first_process() {
    let world = RuntimeFixture::start().await;
    let (log, dir) = world.log("parent");
    let script = "dir=/sys/fs/cgroup; [ -e $dir/cgroup.procs ] || dir=$dir/pids; \
                  mkdir $dir/child && echo $$ >$dir/child/cgroup.procs && echo ready; sleep 1000";
    let parent = ContainerSpec { privileged: true, log, ..spec("parent", &["sh", "-c", script]) };
    run(&world.runtime, &parent).await;
    let is_ready =
        || async { std::fs::read_to_string(dir.join("stdout")).is_ok_and(|text| text == "ready\n") };
    eventually("the first process has moved", is_ready).await;
    let ran = exec(&world.runtime, "parent", &shell_command("grep -c /child$ /proc/self/cgroup")).await;
    assert_eq!(ran.unwrap(), (0, "1\n".into()));
    end(&world.runtime, &parent).await;
    world.assert_clean().await;
}

/// Looks for a process that executes a file of the node, and changes the file as far as the kernel permits.
const CHANGE: &str = "for p in /proc/[0-9]*; do case $(busybox readlink $p/exe) in *memfd:*) echo found; \
                      (echo stolen >$p/exe; busybox chmod 0 $p/exe; chown 33 $p/exe) 2>/dev/null;; esac; done; true";

/// An image whose program executes it: what the container does to it does not affect other programs.
#[tokio::test(flavor = "multi_thread")]
async fn container_cannot_change_host_program() {
    let world = RuntimeFixture::start().await;
    let mut spec = spec("thief", &["sh", "-c", "sleep 100000"]);
    // To look at the process, which is undumpable.
    spec.cap_add = vec!["SYS_PTRACE".into()];
    run(&world.runtime, &spec).await;
    for _ in 0..3 {
        // It waits for a plan.
        let executed = ExecSpec { input: true, ..command(&["/proc/self/exe"]) };
        let executed = world.runtime.exec(&spec.id, &executed).await.unwrap();
        let changed = exec(&world.runtime, "thief", &shell_command(CHANGE)).await.unwrap();
        assert!(changed.0 == 0 && changed.1.starts_with("found\n"), "{changed:?}");
        drop(executed);
        assert_eq!(exec(&world.runtime, "thief", &command(&["true"])).await.unwrap(), (0, String::new()));
    }
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
    let (log, dir) = world.log("tracer");
    let mut spec = ContainerSpec { log, ..spec("tracer", &["sh", "-c", SCAN]) };
    spec.cap_add = vec!["SYS_PTRACE".into()];
    run(&world.runtime, &spec).await;
    let printed = || std::fs::read_to_string(dir.join("stdout")).unwrap_or_default();
    eventually("the scan runs", || async { printed().ends_with('\n') }).await;
    assert_eq!(printed(), "own 00000000a80c25fb 2\n");
    for _ in 0..100 {
        assert_eq!(exec(&world.runtime, "tracer", &command(&["true"])).await.unwrap().0, 0);
    }
    assert_eq!(printed(), "own 00000000a80c25fb 2\n");
    end(&world.runtime, &spec).await;
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_has_files_of_the_container_only() {
    let world = RuntimeFixture::start().await;
    let spec = spec("files", &["sh", "-c", "sleep 100000"]);
    run(&world.runtime, &spec).await;
    let ran = async |script| {
        let (code, output) = exec(&world.runtime, "files", &shell_command(script)).await.unwrap();
        assert_eq!(code, 0, "{output}");
        output
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
    let refused = exec(&world.runtime, "files", &shell_command("true")).await.unwrap_err();
    let expected = "cannot set its standard input and output: No such device or address (os error 6)";
    assert!(matches!(&refused, Error::Failed { reason, .. } if reason == expected), "{refused}");
    end(&world.runtime, &spec).await;
    world.assert_clean().await;
}
