//! Finds, starts, adopts, restarts and stops containerd.

use std::os::unix::net::UnixListener;
use std::time::Duration;

use warren_runtime::containerd::ContainerdRuntime;
use warren_runtime::supervise::{ContainerdStatus, ContainerdSupervisor, Error, SupervisorOptions};
use warren_runtime::testing::PrivateContainerd;
use warren_runtime::{Error as RuntimeError, Runtime};

use crate::world::eventually;

fn pid(supervisor: &ContainerdSupervisor) -> u32 {
    match *supervisor.status().borrow() {
        ContainerdStatus::Running { pid } => pid,
        ref other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn containerd_outlives_supervisor_and_is_adopted() {
    let mut containerd = PrivateContainerd::start().await;
    let first = pid(containerd.supervisor());
    drop(containerd.take_supervisor());
    let adopted = ContainerdSupervisor::ensure(containerd.options()).await.unwrap();
    assert_eq!(pid(&adopted), first, "the one that runs is taken over");
    assert!(adopted.endpoint().is_managed);

    // An adopted one is restarted like a started one.
    let mut status = adopted.status();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(first as i32), nix::sys::signal::SIGKILL).unwrap();
    // Only the last state can be waited for: the one in between may be over before a check.
    let again =
        status.wait_for(|status| matches!(status, ContainerdStatus::Running { pid } if *pid != first));
    tokio::time::timeout(Duration::from_secs(30), again).await.expect("it is back in time").unwrap();

    let runtime = ContainerdRuntime::new(containerd.settings()).unwrap();
    eventually("it answers", || async { runtime.info().await.is_ok() }).await;
    adopted.stop().await.unwrap();
    assert!(matches!(runtime.info().await.unwrap_err(), RuntimeError::Unavailable { .. }));
    assert!(!containerd.settings().socket.exists());

    // Its images and containers are in its own root, so it is restarted although another one is there.
    let other = PrivateContainerd::start().await;
    let options = SupervisorOptions { system_socket: other.settings().socket, ..containerd.options() };
    let again = ContainerdSupervisor::ensure(options).await.unwrap();
    assert!(again.endpoint().is_managed);
    assert_eq!(again.endpoint().socket, containerd.settings().socket);
    for _twice in 0..2 {
        let same = ContainerdSupervisor::ensure(containerd.options()).await.unwrap();
        assert_eq!(pid(&same), pid(&again), "a second one is not started beside it");
        drop(same);
    }
    again.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn external_containerd_is_used_and_not_stopped() {
    let running = PrivateContainerd::start().await;
    let socket = running.settings().socket;
    let dir = tempfile::tempdir().unwrap();
    let fresh = SupervisorOptions::new(dir.path().join("root"), dir.path().join("state"));
    let found = SupervisorOptions { system_socket: socket.clone(), ..fresh.clone() };
    let given = SupervisorOptions { socket: Some(socket.clone()), system_socket: "/none".into(), ..fresh };
    for options in [found, given] {
        let supervisor = ContainerdSupervisor::ensure(options).await.unwrap();
        assert_eq!((&supervisor.endpoint().socket, supervisor.endpoint().is_managed), (&socket, false));
        assert_eq!(*supervisor.status().borrow(), ContainerdStatus::External);
        supervisor.stop().await.unwrap();
    }
    assert!(!dir.path().join("root").exists(), "nothing was made for one of our own");
    let runtime = ContainerdRuntime::new(running.settings()).unwrap();
    runtime.info().await.expect("stopping what is not ours stops nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn start_errors_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let none = dir.path().join("none.sock");
    let fresh = || SupervisorOptions {
        system_socket: none.clone(),
        ..SupervisorOptions::new(dir.path().join("root"), dir.path().join("state"))
    };
    let error = ContainerdSupervisor::ensure(SupervisorOptions { socket: Some(none.clone()), ..fresh() })
        .await
        .unwrap_err();
    assert!(matches!(error, Error::NotAnswering { .. }), "{error}");
    let mute = dir.path().join("mute.sock");
    let _listener = UnixListener::bind(&mute).unwrap();
    let error =
        ContainerdSupervisor::ensure(SupervisorOptions { socket: Some(mute), ..fresh() }).await.unwrap_err();
    assert!(matches!(error, Error::NotAnswering { .. }), "{error}");
    let missing = SupervisorOptions { binary: Some("/no/such/containerd".into()), ..fresh() };
    let error = ContainerdSupervisor::ensure(missing).await.unwrap_err();
    assert!(matches!(error, Error::Missing { .. }) && error.to_string().contains("apt-get"), "{error}");
    let dies = SupervisorOptions { binary: Some("/bin/false".into()), ..fresh() };
    let error = ContainerdSupervisor::ensure(dies).await.unwrap_err();
    assert!(matches!(error, Error::Start { .. }), "{error}");
    std::fs::write(dir.path().join("file"), "").unwrap();
    let blocked = SupervisorOptions {
        system_socket: none.clone(),
        ..SupervisorOptions::new(dir.path().join("file"), dir.path().join("s"))
    };
    let error = ContainerdSupervisor::ensure(blocked).await.unwrap_err();
    assert!(matches!(error, Error::Path { .. }), "{error}");
}
