//! The OCI runtime is a setting of the node.

use warren_runtime::containerd::{ContainerdRuntime, ContainerdSettings, OciRuntime};
use warren_runtime::{Error, ProcessState};
use warren_testkit::scratch::install;

use crate::world::{RuntimeFixture, end, process, run, sleeper};

/// Records its arguments and calls runc.
const WRAPPER: &[u8] = b"#!/bin/sh
echo \"$@\" >>\"$0.asked\"
exec runc \"$@\"
";

#[tokio::test(flavor = "multi_thread")]
async fn configured_oci_runtime_is_used() {
    let world = RuntimeFixture::start_with(|settings, dir| {
        let wrapper = dir.join("my runc");
        install(&wrapper, WRAPPER);
        settings.runtime = OciRuntime::Path(wrapper);
    })
    .await;
    let asked = || std::fs::read_to_string(world.containerd.dir().join("my runc.asked")).unwrap_or_default();
    let spec = sleeper("wrapped");
    let pid = run(&world.runtime, &spec).await;
    assert!(asked().contains(" create ") && asked().contains(" start wrapped"), "{}", asked());
    // Another agent with another setting handles existing containers.
    let other = ContainerdRuntime::new(world.containerd.settings()).unwrap();
    assert_eq!(process(&other, &spec.id).await, ProcessState::Running { pid });
    end(&other, &spec).await;
    assert!(asked().contains(" delete "), "a container keeps the program that made it: {}", asked());
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_oci_runtime_is_rejected_at_start() {
    let settings = ContainerdSettings {
        runtime: OciRuntime::parse("/no/such/runc").unwrap(),
        ..ContainerdSettings::new("/run/no.sock")
    };
    let error = ContainerdRuntime::new(settings).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::OciRuntimeMissing { .. }) && !error.is_transient(), "{error}");
    assert!(error.to_string().contains("/no/such/runc"), "{error}");
}
