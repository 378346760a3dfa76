//! Process directories of containerd: none is left for ever after a kill, and none in use is removed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;
use warren_runtime::containerd::{ContainerdRuntime, ContainerdSettings};
use warren_runtime::testing::PrivateContainerd;
use warren_runtime::{ContainerId, ContainerSpec, ProcessState, Runtime, Signal};
use warren_testkit::scratch::install;

use crate::strays::{connection, delete_record, make, record};
use crate::world::{RuntimeFixture, end, eventually, process, run, sleeper};

/// Directory of bundles, and of the directories that they link to.
fn bundle_roots(world: &RuntimeFixture) -> [PathBuf; 2] {
    let namespace = world.containerd.settings().namespace;
    ["state", "root"].map(|place| {
        world.containerd.dir().join(place).join("io.containerd.runtime.v2.task").join(&namespace)
    })
}

fn bundle_dirs(world: &RuntimeFixture) -> Vec<PathBuf> {
    let entries = bundle_roots(world).into_iter().flat_map(|place| fs::read_dir(place).into_iter().flatten());
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

/// Both directories, as containerd leaves them after starting a supervisor.
fn make_bundle_dirs(world: &RuntimeFixture, name: &str) -> PathBuf {
    let [bundle, work] = bundle_roots(world).map(|place| place.join(name));
    fs::create_dir_all(bundle.join("rootfs")).unwrap();
    fs::create_dir_all(&work).unwrap();
    for file in ["address", "config.json", "shim-binary-path"] {
        fs::write(bundle.join(file), "x").unwrap();
    }
    nix::unistd::mkfifo(&bundle.join("log"), Mode::S_IRWXU).unwrap();
    symlink(work, bundle.join("work")).unwrap();
    bundle
}

fn mount_on(place: &Path) {
    mount(Some("tmpfs"), place, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    fs::write(place.join("file"), "x").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_orphan_dirs_are_removed() {
    let world = RuntimeFixture::start().await;
    let connection = connection(&world);
    let kept = sleeper("kept");
    let pid = run(&world.runtime, &kept).await;
    let before = bundle_dirs(&world);
    assert_eq!(before.len(), 2);

    let plain = make_bundle_dirs(&world, "plain");
    // The process was created; its file system is still mounted.
    let made = make_bundle_dirs(&world, "made");
    fs::write(made.join("init.pid"), "1").unwrap();
    mount_on(&made.join("rootfs"));
    mount_on(&made.join("rootfs"));
    // The OCI runtime was late, and created mount points where the file system had been.
    fs::create_dir_all(plain.join("rootfs/dev/pts")).unwrap();
    fs::create_dir(plain.join("rootfs/etc")).unwrap();
    fs::write(plain.join("rootfs/etc/hosts"), "").unwrap();
    // One in removal that blocks the removal of the next one.
    let [again, dying] = ["again", ".again"].map(|name| bundle_roots(&world)[0].join(name));
    fs::create_dir_all(again.join("rootfs")).unwrap();
    fs::create_dir(&dying).unwrap();
    fs::write(dying.join("runtime"), "x").unwrap();
    let alone = bundle_roots(&world)[1].join("alone");
    fs::create_dir(&alone).unwrap();
    let mut gone = vec![again, dying, alone];
    gone.extend(["plain", "made"].iter().flat_map(|name| bundle_roots(&world).map(|place| place.join(name))));

    let recorded = make_bundle_dirs(&world, "recorded");
    make(&connection, record("recorded")).await;
    // Of another containerd, and with content that containerd did not create.
    let foreign = make_bundle_dirs(&world, "foreign");
    fs::remove_file(foreign.join("work")).unwrap();
    symlink("/elsewhere/foreign", foreign.join("work")).unwrap();
    fs::remove_dir(bundle_roots(&world)[1].join("foreign")).unwrap();
    let full = make_bundle_dirs(&world, "full");
    fs::write(full.join("rootfs/file"), "x").unwrap();

    let swept = world.runtime.sweep_orphans().await.unwrap();
    let mut names: Vec<PathBuf> = swept.bundle_dirs.iter().map(PathBuf::from).collect();
    names.retain(|path| *path != bundle_roots(&world)[1].join("full"));
    names.sort();
    gone.sort();
    assert_eq!(names, gone, "{swept:?}");
    assert!(!plain.exists() && !made.exists());
    assert!(recorded.join("rootfs").exists() && foreign.join("rootfs").exists());
    assert!(full.join("rootfs/file").exists());
    assert!(matches!(&swept.failed[..], [reason] if reason.contains("full")), "{swept:?}");
    assert_eq!(process(&world.runtime, &kept.id).await, ProcessState::Running { pid });

    for path in [&foreign, &full] {
        fs::remove_dir_all(path).unwrap();
    }
    delete_record(&connection, "recorded").await;
    assert_eq!(
        world.runtime.sweep_orphans().await.unwrap().bundle_dirs.len(),
        2,
        "it has no record any more"
    );
    assert_eq!(bundle_dirs(&world), before);
    end(&world.runtime, &kept).await;
    assert_eq!(bundle_dirs(&world), Vec::<PathBuf>::new());
    world.assert_clean().await;
}

/// An agent that works on all of `specs` and is killed after this time.
fn killed_agent(settings: ContainerdSettings, specs: Vec<ContainerSpec>, life: Duration) {
    // Not a wait: the time of the kill.
    agent_killed_after(settings, specs, async move { tokio::time::sleep(life).await });
}

/// An agent that works on all of `specs` and is killed then.
fn agent_killed_after(
    settings: ContainerdSettings,
    specs: Vec<ContainerSpec>,
    moment: impl Future<Output = ()> + Send + 'static,
) {
    let agent = move || {
        let agent =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        agent.block_on(async {
            let runtime = ContainerdRuntime::new(settings).unwrap();
            for spec in specs {
                let runtime = runtime.clone();
                tokio::spawn(async move {
                    while runtime.ensure_created(&spec).await.is_err()
                        || runtime.start(&spec.id).await.is_err()
                    {
                        // Not a wait: the delay of an agent before its retry.
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                });
            }
            moment.await;
        });
        // Every call is interrupted where it is.
        agent.shutdown_timeout(Duration::ZERO);
    };
    thread::spawn(agent).join().unwrap();
}

/// A containerd whose supervisors are stopped as soon as they run, before they are told what to create.
async fn with_frozen_shims() -> RuntimeFixture {
    let containerd = PrivateContainerd::start_with(|options, dir| {
        let programs = dir.join("programs");
        fs::create_dir(&programs).unwrap();
        let path = std::env::var("PATH").unwrap();
        let program = |name: &str, script: String| install(&programs.join(name), script.as_bytes());
        let first = programs.display();
        program("containerd", format!("#!/bin/sh\nPATH={first}:{path}\nexec containerd-of-machine \"$@\"\n"));
        symlink(which("containerd"), programs.join("containerd-of-machine")).unwrap();
        let real = which("containerd-shim-runc-v2").display().to_string();
        let script = format!(
            "#!/bin/sh
            for last; do :; done
            [ \"$last\" = start ] || exec {real} \"$@\"
            address=$({real} \"$@\") || exit
            while [ $# != 0 ]; do
                case $1 in -namespace) namespace=$2 ;; -id) id=$2 ;; esac
                shift
            done
            pkill -STOP -f -- \"-namespace $namespace -id $id -address\"
            echo \"$address\"\n"
        );
        program("containerd-shim-runc-v2", script);
        options.binary = Some(programs.join("containerd"));
    });
    RuntimeFixture::start_on(containerd.await, |_, _| {}).await
}

/// A program of this machine.
fn which(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path).map(|place| place.join(name)).find(|program| program.exists()).unwrap()
}

/// Whether a process with this in its command line is stopped.
fn is_a_process_stopped(line: &str) -> bool {
    fs::read_dir("/proc").unwrap().flatten().any(|process| {
        let read = |name| fs::read_to_string(process.path().join(name)).unwrap_or_default();
        read("cmdline").contains(line) && read("status").contains("State:\tT")
    })
}

/// containerd cleans up the interrupted creation, fails, and leaves both directories for ever.
#[tokio::test(flavor = "multi_thread")]
async fn uncleared_creation_is_swept() {
    let world = with_frozen_shims().await;
    let spec = sleeper("stuck");
    let name = spec.id.to_string();
    // The agent is killed while containerd waits for the supervisor's answer.
    let line = format!("\0-id\0{name}\0-address\0");
    agent_killed_after(world.containerd.settings(), vec![spec], async move {
        eventually("the supervisor is stopped", || async { is_a_process_stopped(&line) }).await;
        // Not a wait: the time of the kill.
        tokio::time::sleep(Duration::from_secs(3)).await;
    });
    eventually("containerd gives up", || async {
        let log = fs::read_to_string(world.containerd.dir().join("root/containerd.log")).unwrap();
        log.lines().any(|line| line.contains("failed to clean up") && line.contains(&format!("id={name} ")))
    })
    .await;
    for found in world.runtime.list().await.unwrap() {
        world.runtime.signal(&found.id, Signal::KILL).await.unwrap();
        eventually("it is removed", || async { world.runtime.remove(&found.id).await.is_ok() }).await;
    }
    let both: Vec<PathBuf> = bundle_roots(&world).map(|place| place.join(&name)).into();
    assert!(both.iter().all(|path| path.exists()), "{:?}", bundle_dirs(&world));
    let swept = world.runtime.sweep_orphans().await.unwrap();
    assert!(swept.shims.contains(&name) && swept.failed.is_empty(), "{swept:?}");
    assert!(both.iter().all(|path| !path.exists()), "{swept:?}");
    assert_eq!(bundle_dirs(&world), Vec::<PathBuf>::new());
    world.assert_clean().await;
}

/// Ends and removes it; returns whether nothing is left of it. Errors of either are transient.
async fn is_removed(world: &RuntimeFixture, id: &ContainerId) -> bool {
    let _ = world.runtime.signal(id, Signal::KILL).await;
    world.runtime.remove(id).await.is_ok() && world.runtime.inspect(id).await.unwrap().is_none()
}

#[tokio::test(flavor = "multi_thread")]
async fn sweep_removes_leftovers_of_killed_agents() {
    let world = RuntimeFixture::start().await;
    for round in 0..8u64 {
        let specs: Vec<ContainerSpec> = (0..4).map(|n| sleeper(&format!("r{round}-{n}"))).collect();
        for life in 0..3 {
            let moment = Duration::from_millis(10 + (round * 37 + life * 53) % 150);
            killed_agent(world.containerd.settings(), specs.clone(), moment);
        }
        for spec in specs {
            eventually("it is removed", || async { is_removed(&world, &spec.id).await }).await;
        }
    }
    // containerd may still work in a directory: a later sweep can remove it.
    eventually("nothing is left to sweep", || async {
        let swept = world.runtime.sweep_orphans().await.unwrap();
        println!("{swept:?}");
        // A request of a killed agent may be executed after all later ones.
        let late = world.runtime.list().await.unwrap();
        for found in &late {
            is_removed(&world, &found.id).await;
        }
        late.is_empty() && swept.is_empty() && swept.failed.is_empty()
    })
    .await;
    assert_eq!(bundle_dirs(&world), Vec::<PathBuf>::new());
    world.assert_clean().await;
}
