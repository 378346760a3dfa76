//! The folders that containerd makes for processes: none stays for ever when somebody was killed, and none goes that
//! somebody owns.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;
use warren_runtime::containerd::{Containerd, Settings};
use warren_runtime::testing::PrivateContainerd;
use warren_runtime::{ContainerId, ContainerSpec, Process, Runtime, Signal};
use warren_testkit::scratch::install;

use crate::strays::{connection, delete_record, make, record};
use crate::world::{World, end, eventually, process, run, sleeper};

/// Where bundles lie, and where the folders lie that they point to.
fn places(world: &World) -> [PathBuf; 2] {
    let namespace = world.containerd.settings().namespace;
    ["state", "root"].map(|place| {
        world.containerd.dir().join(place).join("io.containerd.runtime.v2.task").join(&namespace)
    })
}

fn folders(world: &World) -> Vec<PathBuf> {
    let entries = places(world).into_iter().flat_map(|place| fs::read_dir(place).into_iter().flatten());
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

/// Both folders, as containerd leaves them when it has started a supervisor.
fn lay(world: &World, name: &str) -> PathBuf {
    let [bundle, work] = places(world).map(|place| place.join(name));
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
async fn what_nobody_owns_goes_and_nothing_else() {
    let world = World::start().await;
    let connection = connection(&world);
    let kept = sleeper("kept");
    let pid = run(&world.runtime, &kept).await;
    let before = folders(&world);
    assert_eq!(before.len(), 2);

    let plain = lay(&world, "plain");
    // The process had been made; its file system is still mounted.
    let made = lay(&world, "made");
    fs::write(made.join("init.pid"), "1").unwrap();
    mount_on(&made.join("rootfs"));
    mount_on(&made.join("rootfs"));
    // The low-level runtime was late, and made what it mounts on where the file system had been.
    fs::create_dir_all(plain.join("rootfs/dev/pts")).unwrap();
    fs::create_dir(plain.join("rootfs/etc")).unwrap();
    fs::write(plain.join("rootfs/etc/hosts"), "").unwrap();
    // One was on its way out, and kept the next one from going the same way.
    let [again, dying] = ["again", ".again"].map(|name| places(&world)[0].join(name));
    fs::create_dir_all(again.join("rootfs")).unwrap();
    fs::create_dir(&dying).unwrap();
    fs::write(dying.join("runtime"), "x").unwrap();
    let alone = places(&world)[1].join("alone");
    fs::create_dir(&alone).unwrap();
    let mut gone = vec![again, dying, alone];
    gone.extend(["plain", "made"].iter().flat_map(|name| places(&world).map(|place| place.join(name))));

    let recorded = lay(&world, "recorded");
    make(&connection, record("recorded")).await;
    // Of another containerd, and with something in it that containerd did not put there.
    let foreign = lay(&world, "foreign");
    fs::remove_file(foreign.join("work")).unwrap();
    symlink("/elsewhere/foreign", foreign.join("work")).unwrap();
    fs::remove_dir(places(&world)[1].join("foreign")).unwrap();
    let full = lay(&world, "full");
    fs::write(full.join("rootfs/file"), "x").unwrap();

    let swept = world.runtime.sweep_strays().await.unwrap();
    let mut names: Vec<PathBuf> = swept.folders.iter().map(PathBuf::from).collect();
    names.retain(|path| *path != places(&world)[1].join("full"));
    names.sort();
    gone.sort();
    assert_eq!(names, gone, "{swept:?}");
    assert!(!plain.exists() && !made.exists());
    assert!(recorded.join("rootfs").exists() && foreign.join("rootfs").exists());
    assert!(full.join("rootfs/file").exists());
    assert!(matches!(&swept.failed[..], [reason] if reason.contains("full")), "{swept:?}");
    assert_eq!(process(&world.runtime, &kept.id).await, Process::Running { pid });

    for path in [&foreign, &full] {
        fs::remove_dir_all(path).unwrap();
    }
    delete_record(&connection, "recorded").await;
    assert_eq!(world.runtime.sweep_strays().await.unwrap().folders.len(), 2, "it has no record any more");
    assert_eq!(folders(&world), before);
    end(&world.runtime, &kept).await;
    assert_eq!(folders(&world), Vec::<PathBuf>::new());
    world.assert_clean().await;
}

/// An agent that is killed after this time, at work on all of `specs`.
fn killed_agent(settings: Settings, specs: Vec<ContainerSpec>, life: Duration) {
    // Not a wait: the moment of the kill.
    agent_killed_after(settings, specs, async move { tokio::time::sleep(life).await });
}

/// An agent that is killed then, at work on all of `specs`.
fn agent_killed_after(
    settings: Settings,
    specs: Vec<ContainerSpec>,
    moment: impl Future<Output = ()> + Send + 'static,
) {
    let agent = move || {
        let agent =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        agent.block_on(async {
            let runtime = Containerd::new(settings).unwrap();
            for spec in specs {
                let runtime = runtime.clone();
                tokio::spawn(async move {
                    while runtime.ensure_created(&spec).await.is_err()
                        || runtime.start(&spec.id).await.is_err()
                    {
                        // Not a wait: as an agent does it, a moment before it tries again.
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                });
            }
            moment.await;
        });
        // Every call is cut off where it is.
        agent.shutdown_timeout(Duration::ZERO);
    };
    thread::spawn(agent).join().unwrap();
}

/// A containerd whose supervisors are frozen as soon as they run, before they are told what to make.
async fn freezing() -> World {
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
    World::start_on(containerd.await, |_, _| {}).await
}

/// A program of this machine.
fn which(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path).map(|place| place.join(name)).find(|program| program.exists()).unwrap()
}

/// containerd clears the creation away that was cut off, gives up, and leaves both folders for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_creation_that_containerd_cannot_clear_away_is_swept() {
    let world = freezing().await;
    let spec = sleeper("stuck");
    let name = spec.id.to_string();
    // The agent is killed while containerd waits for the supervisor's answer.
    let work = places(&world)[1].join(&name);
    agent_killed_after(world.containerd.settings(), vec![spec], async move {
        eventually("there is a supervisor", || async { work.exists() }).await;
        // Not a wait: the moment of the kill.
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
    let both: Vec<PathBuf> = places(&world).map(|place| place.join(&name)).into();
    assert!(both.iter().all(|path| path.exists()), "{:?}", folders(&world));
    let swept = world.runtime.sweep_strays().await.unwrap();
    assert!(swept.shims.contains(&name) && swept.failed.is_empty(), "{swept:?}");
    assert!(both.iter().all(|path| !path.exists()), "{swept:?}");
    assert_eq!(folders(&world), Vec::<PathBuf>::new());
    world.assert_clean().await;
}

/// Ends and removes it; whether nothing is left of it. An error of either is one that trying again mends.
async fn is_removed(world: &World, id: &ContainerId) -> bool {
    let _ = world.runtime.signal(id, Signal::KILL).await;
    world.runtime.remove(id).await.is_ok() && world.runtime.inspect(id).await.unwrap().is_none()
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_killed_one_after_the_other_leave_nothing_that_a_sweep_does_not_remove() {
    let world = World::start().await;
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
    // containerd may still be at work in a folder: what one sweep cannot remove a later one can.
    eventually("nothing is left to sweep", || async {
        let swept = world.runtime.sweep_strays().await.unwrap();
        println!("{swept:?}");
        // What a killed agent asked for may be done after all that was done since.
        let late = world.runtime.list().await.unwrap();
        for found in &late {
            is_removed(&world, &found.id).await;
        }
        late.is_empty() && swept.is_empty() && swept.failed.is_empty()
    })
    .await;
    assert_eq!(folders(&world), Vec::<PathBuf>::new());
    world.assert_clean().await;
}
