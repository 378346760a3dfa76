//! The program that makes containers is the node's choice.

use warren_runtime::containerd::{Containerd, OciRuntime, Settings};
use warren_runtime::{Error, Process};
use warren_testkit::scratch::install;

use crate::world::{World, end, process, run, sleeper};

/// Notes what it is asked for and leaves the work to runc.
const WRAPPER: &[u8] = b"#!/bin/sh
echo \"$@\" >>\"$0.asked\"
exec runc \"$@\"
";

#[tokio::test(flavor = "multi_thread")]
async fn containers_are_made_by_the_program_that_the_node_names() {
    let world = World::start_with(|settings, dir| {
        let wrapper = dir.join("my runc");
        install(&wrapper, WRAPPER);
        settings.runtime = OciRuntime::Path(wrapper);
    })
    .await;
    let asked = || std::fs::read_to_string(world.containerd.dir().join("my runc.asked")).unwrap_or_default();
    let spec = sleeper("wrapped");
    let pid = run(&world.runtime, &spec).await;
    assert!(asked().contains(" create ") && asked().contains(" start wrapped"), "{}", asked());
    // Another agent with another setting lives with what it finds.
    let other = Containerd::new(world.containerd.settings()).unwrap();
    assert_eq!(process(&other, &spec.id).await, Process::Running { pid });
    end(&other, &spec).await;
    assert!(asked().contains(" delete "), "a container keeps the program that made it: {}", asked());
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_program_is_an_error_at_the_beginning() {
    let settings =
        Settings { runtime: OciRuntime::parse("/no/such/runc").unwrap(), ..Settings::new("/run/no.sock") };
    let error = Containerd::new(settings).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::NoOciRuntime { .. }) && !error.is_transient(), "{error}");
    assert!(error.to_string().contains("/no/such/runc"), "{error}");
}
