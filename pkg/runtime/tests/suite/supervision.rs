//! Finding, starting, adopting, restarting and stopping containerd.

use std::os::unix::net::UnixListener;
use std::time::Duration;

use warren_runtime::containerd::Containerd;
use warren_runtime::supervise::{Error, Options, Status, Supervisor};
use warren_runtime::testing::PrivateContainerd;
use warren_runtime::{Error as RuntimeError, Runtime};

use crate::world::eventually;

fn pid(supervisor: &Supervisor) -> u32 {
    match *supervisor.status().borrow() {
        Status::Running { pid } => pid,
        ref other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_outlives_its_supervisor_is_adopted_and_restarted() {
    let mut containerd = PrivateContainerd::start().await;
    let first = pid(containerd.supervisor());
    drop(containerd.take_supervisor());
    let adopted = Supervisor::ensure(containerd.options()).await.unwrap();
    assert_eq!(pid(&adopted), first, "the one that runs is taken over");
    assert!(adopted.endpoint().ours);

    // One adopted is restarted like one started.
    let mut status = adopted.status();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(first as i32), nix::sys::signal::SIGKILL).unwrap();
    // Only the last state can be waited for: the one in between may be over before anybody looks.
    let again = status.wait_for(|status| matches!(status, Status::Running { pid } if *pid != first));
    tokio::time::timeout(Duration::from_secs(30), again).await.expect("it is back in time").unwrap();

    let runtime = Containerd::new(containerd.settings()).unwrap();
    eventually("it answers", || async { runtime.info().await.is_ok() }).await;
    adopted.stop().await.unwrap();
    assert!(matches!(runtime.info().await.unwrap_err(), RuntimeError::Unavailable { .. }));
    assert!(!containerd.settings().socket.exists());

    // Its images and containers are in its own root, so it is started again although another one is there.
    let other = PrivateContainerd::start().await;
    let options = Options { system_socket: other.settings().socket, ..containerd.options() };
    let again = Supervisor::ensure(options).await.unwrap();
    assert!(again.endpoint().ours);
    assert_eq!(again.endpoint().socket, containerd.settings().socket);
    for _twice in 0..2 {
        let same = Supervisor::ensure(containerd.options()).await.unwrap();
        assert_eq!(pid(&same), pid(&again), "a second one is not started beside it");
        drop(same);
    }
    again.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_containerd_that_runs_is_used_and_left_alone() {
    let running = PrivateContainerd::start().await;
    let socket = running.settings().socket;
    let dir = tempfile::tempdir().unwrap();
    let fresh = Options::new(dir.path().join("root"), dir.path().join("state"));
    let found = Options { system_socket: socket.clone(), ..fresh.clone() };
    let given = Options { socket: Some(socket.clone()), system_socket: "/none".into(), ..fresh };
    for options in [found, given] {
        let supervisor = Supervisor::ensure(options).await.unwrap();
        assert_eq!((&supervisor.endpoint().socket, supervisor.endpoint().ours), (&socket, false));
        assert_eq!(*supervisor.status().borrow(), Status::Foreign);
        supervisor.stop().await.unwrap();
    }
    assert!(!dir.path().join("root").exists(), "nothing was made for one of our own");
    let runtime = Containerd::new(running.settings()).unwrap();
    runtime.info().await.expect("stopping what is not ours stops nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let none = dir.path().join("none.sock");
    let fresh = || Options {
        system_socket: none.clone(),
        ..Options::new(dir.path().join("root"), dir.path().join("state"))
    };
    let error = Supervisor::ensure(Options { socket: Some(none.clone()), ..fresh() }).await.unwrap_err();
    assert!(matches!(error, Error::NotAnswering { .. }), "{error}");
    let mute = dir.path().join("mute.sock");
    let _listener = UnixListener::bind(&mute).unwrap();
    let error = Supervisor::ensure(Options { socket: Some(mute), ..fresh() }).await.unwrap_err();
    assert!(matches!(error, Error::NotAnswering { .. }), "{error}");
    let missing = Options { binary: Some("/no/such/containerd".into()), ..fresh() };
    let error = Supervisor::ensure(missing).await.unwrap_err();
    assert!(matches!(error, Error::Missing { .. }) && error.to_string().contains("apt-get"), "{error}");
    let dies = Options { binary: Some("/bin/false".into()), ..fresh() };
    let error = Supervisor::ensure(dies).await.unwrap_err();
    assert!(matches!(error, Error::Start { .. }), "{error}");
    std::fs::write(dir.path().join("file"), "").unwrap();
    let blocked = Options {
        system_socket: none.clone(),
        ..Options::new(dir.path().join("file"), dir.path().join("s"))
    };
    let error = Supervisor::ensure(blocked).await.unwrap_err();
    assert!(matches!(error, Error::Path { .. }), "{error}");
}
