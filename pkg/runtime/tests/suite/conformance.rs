//! One suite for every implementation of [`Runtime`].

use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use warren_runtime::fake::{ContainerScript, FakeFailure, FakeRuntime, FaultPoint, RuntimeOperation};
use warren_runtime::{
    ContainerOwner, ContainerSpec, ContainerUser, Error, ProcessState, Reference, Runtime, RuntimeEvent,
    Signal,
};
use warren_types::MilliCpu;

use crate::world::{self, IMAGE, RuntimeFixture, event, eventually, exited, id, process, spec, stopped};

/// Behaviour of a container of the suite.
#[derive(Clone, Copy)]
enum Program {
    /// Runs until SIGTERM, then exits with 143.
    Sleeps,
    /// Runs until killed.
    IgnoresSignals,
    /// Exits at once with this code.
    Ends(u32),
    /// Is not in the image.
    Missing,
}

/// An implementation under test.
#[async_trait]
trait Subject: Sync {
    fn runtime(&self) -> &dyn Runtime;
    /// A spec whose container behaves like `program`.
    fn spec(&self, name: &str, program: Program) -> ContainerSpec;
    /// Waits until a started program handles SIGTERM.
    async fn ready(&self, spec: &ContainerSpec);
}

#[async_trait]
impl Subject for RuntimeFixture {
    fn runtime(&self) -> &dyn Runtime {
        &self.runtime
    }

    fn spec(&self, name: &str, program: Program) -> ContainerSpec {
        let ends;
        let script = match program {
            Program::Sleeps => "trap 'exit 143' TERM; echo ready; while :; do sleep 100 & wait $!; done",
            Program::IgnoresSignals => "trap '' TERM; echo ready; while :; do sleep 100; done",
            Program::Ends(code) => {
                ends = format!("exit {code}");
                &ends
            }
            Program::Missing => return spec(name, &["/no/such/program"]),
        };
        ContainerSpec { log: self.log(name).0, ..spec(name, &["sh", "-c", script]) }
    }

    /// Until its traps are set, the first process of a container ignores SIGTERM.
    async fn ready(&self, spec: &ContainerSpec) {
        let log = self.log(spec.id.as_str()).1.join("stdout");
        let output = || async { std::fs::read_to_string(&log).is_ok_and(|text| text.contains("ready")) };
        eventually("the program is ready", output).await;
        std::fs::remove_file(&log).unwrap();
    }
}

#[async_trait]
impl Subject for FakeRuntime {
    fn runtime(&self) -> &dyn Runtime {
        self
    }

    fn spec(&self, name: &str, program: Program) -> ContainerSpec {
        let script = match program {
            Program::Sleeps => ContainerScript::default(),
            Program::IgnoresSignals => {
                ContainerScript { ignores_signals: true, ..ContainerScript::default() }
            }
            Program::Ends(code) => {
                ContainerScript { exit_after: Some((Duration::ZERO, code)), ..ContainerScript::default() }
            }
            Program::Missing => {
                let create_error = Some(FakeFailure::CommandNotFound("/no/such/program".into()));
                ContainerScript { create_error, ..ContainerScript::default() }
            }
        };
        self.script_container(&id(name), script);
        spec(name, &["/program"])
    }

    async fn ready(&self, _: &ContainerSpec) {}
}

async fn suite(subject: &dyn Subject) {
    lifecycle_is_idempotent(subject).await;
    exits_are_reported(subject).await;
    invalid_specs_are_rejected(subject).await;
    wrong_state_is_conflict(subject).await;
    program_ignoring_sigterm_is_killed(subject).await;
    metadata_round_trips(subject).await;
    image_files_are_readable(subject).await;
    assert_eq!(subject.runtime().list().await.unwrap(), []);
    assert!(subject.runtime().sweep_orphans().await.unwrap().is_empty());
    for _twice in 0..2 {
        subject.runtime().remove_node().await.unwrap();
    }
}

async fn lifecycle_is_idempotent(subject: &dyn Subject) {
    let runtime = subject.runtime();
    let spec = subject.spec("life", Program::Sleeps);
    let mut events = runtime.events();
    for attempt in [1, 2] {
        let owner = ContainerOwner { attempt, ..spec.owner.clone() };
        let spec = ContainerSpec { owner: owner.clone(), ..spec.clone() };
        for _twice in 0..2 {
            runtime.ensure_created(&spec).await.unwrap();
            assert!(matches!(process(runtime, &spec.id).await, ProcessState::Created { .. }));
        }
        let pid = runtime.start(&spec.id).await.unwrap();
        assert_eq!(runtime.start(&spec.id).await.unwrap(), pid, "starting twice is starting once");
        runtime.ensure_created(&spec).await.unwrap();
        let found = runtime.inspect(&spec.id).await.unwrap().unwrap();
        assert_eq!(found.process, ProcessState::Running { pid });
        assert_eq!(found.owner, Some(owner));
        assert_eq!(
            found.attempt_history,
            if attempt == 1 { "" } else { "restarts=1" },
            "the attempt history outlives the process"
        );
        assert_eq!(runtime.list().await.unwrap(), [found]);
        runtime.set_attempt_history(&spec.id, "restarts=1").await.unwrap();

        subject.ready(&spec).await;
        assert!(runtime.signal(&spec.id, Signal::TERM).await.unwrap());
        assert_eq!(exited(&mut events, &spec.id).await.code, 143);
        let exit = stopped(runtime, &spec.id).await;
        assert_eq!((exit.code, exit.out_of_memory), (143, false));
        assert_eq!(exit.signal(), Some(Signal::TERM));
        assert!(!runtime.signal(&spec.id, Signal::KILL).await.unwrap(), "nobody is there to get it");
        assert_eq!(runtime.delete_process(&spec.id).await.unwrap().unwrap().code, 143);
        assert_eq!(runtime.delete_process(&spec.id).await.unwrap(), None);
        let found = runtime.inspect(&spec.id).await.unwrap().unwrap();
        assert!(found.process == ProcessState::Absent && found.has_snapshot);
        assert!(runtime.layer_usage(&spec.id).await.unwrap().is_some());
    }
    for _twice in 0..2 {
        runtime.remove_layer(&spec.id).await.unwrap();
        assert_eq!(runtime.layer_usage(&spec.id).await.unwrap(), None);
        assert!(!runtime.inspect(&spec.id).await.unwrap().unwrap().has_snapshot, "only the record is left");
    }
    for _twice in 0..2 {
        runtime.remove(&spec.id).await.unwrap();
        assert_eq!(runtime.inspect(&spec.id).await.unwrap(), None);
    }
}

async fn exits_are_reported(subject: &dyn Subject) {
    let runtime = subject.runtime();
    let mut events = runtime.events();
    for code in [0, 7] {
        let spec = subject.spec(&format!("ends-{code}"), Program::Ends(code));
        runtime.ensure_created(&spec).await.unwrap();
        runtime.start(&spec.id).await.unwrap();
        assert_eq!(exited(&mut events, &spec.id).await.code, code);
        assert_eq!(stopped(runtime, &spec.id).await.code, code);
        runtime.remove(&spec.id).await.unwrap();
    }
    let again = world::drain(&mut events);
    assert!(!again.iter().any(|event| matches!(event, RuntimeEvent::Exited { .. })), "each end is told once");
}

async fn invalid_specs_are_rejected(subject: &dyn Subject) {
    let runtime = subject.runtime();
    let image = Reference::parse("nothere:1").unwrap();
    let absent = ContainerSpec { image, ..subject.spec("absent", Program::Sleeps) };
    let error = runtime.ensure_created(&absent).await.unwrap_err();
    assert!(
        matches!(&error, Error::ImageMissing { reference } if reference.ends_with("nothere:1")),
        "{error}"
    );
    let mut small = subject.spec("small", Program::Sleeps);
    small.limits.cpu = Some(MilliCpu(1));
    let error = runtime.ensure_created(&small).await.unwrap_err();
    assert!(matches!(&error, Error::InvalidSpec { field, .. } if field == "limits.cpu"), "{error}");
    let mut flies = subject.spec("flies", Program::Sleeps);
    flies.cap_add = vec!["FLY".into()];
    let error = runtime.ensure_created(&flies).await.unwrap_err();
    assert!(matches!(&error, Error::InvalidSpec { field, .. } if field == "cap_add[0]"), "{error}");
    assert_eq!(runtime.list().await.unwrap(), [], "a refusal makes nothing");

    let missing = subject.spec("missing", Program::Missing);
    for _twice in 0..2 {
        let error = runtime.ensure_created(&missing).await.unwrap_err();
        assert!(!error.is_transient(), "{error}");
        assert!(
            matches!(&error, Error::CommandNotFound { command, .. } if command == "/no/such/program"),
            "{error}"
        );
    }
    assert_eq!(process(runtime, &missing.id).await, ProcessState::Absent);
    assert!(matches!(runtime.start(&missing.id).await.unwrap_err(), Error::NotFound { what: "process", .. }));
    runtime.remove(&missing.id).await.unwrap();
}

async fn wrong_state_is_conflict(subject: &dyn Subject) {
    let runtime = subject.runtime();
    let spec = subject.spec("fits", Program::Sleeps);
    let conflict = |result: Result<(), Error>| {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Conflict { .. }) && !error.is_transient(), "{error}");
    };
    assert!(!runtime.signal(&spec.id, Signal::TERM).await.unwrap());
    assert_eq!(runtime.delete_process(&spec.id).await.unwrap(), None);
    assert!(matches!(runtime.start(&spec.id).await.unwrap_err(), Error::NotFound { .. }));
    let error = runtime.set_attempt_history(&spec.id, "x").await.unwrap_err();
    assert!(matches!(error, Error::NotFound { what: "record", .. }), "{error}");

    runtime.ensure_created(&spec).await.unwrap();
    let foreign = ContainerOwner { task: "another".into(), ..spec.owner.clone() };
    conflict(runtime.ensure_created(&ContainerSpec { owner: foreign, ..spec.clone() }).await);
    let changed = ContainerOwner { spec_hash: "changed".into(), ..spec.owner.clone() };
    conflict(runtime.ensure_created(&ContainerSpec { owner: changed, ..spec.clone() }).await);
    let pid = runtime.start(&spec.id).await.unwrap();
    conflict(runtime.remove_layer(&spec.id).await);
    conflict(runtime.delete_process(&spec.id).await.map(|_| ()));
    conflict(runtime.remove(&spec.id).await);
    assert_eq!(
        process(runtime, &spec.id).await,
        ProcessState::Running { pid },
        "a refused removal harms nothing"
    );
    runtime.signal(&spec.id, Signal::KILL).await.unwrap();
    assert_eq!(stopped(runtime, &spec.id).await.code, 137);
    conflict(runtime.ensure_created(&spec).await);
    conflict(runtime.start(&spec.id).await.map(|_| ()));
    runtime.remove(&spec.id).await.unwrap();

    runtime.ensure_created(&spec).await.unwrap();
    runtime.remove(&spec.id).await.expect("a process that was never started is in nobody's way");
    assert_eq!(runtime.inspect(&spec.id).await.unwrap(), None);
}

async fn program_ignoring_sigterm_is_killed(subject: &dyn Subject) {
    let runtime = subject.runtime();
    let (stubborn, meek) =
        (subject.spec("stubborn", Program::IgnoresSignals), subject.spec("meek", Program::Sleeps));
    for spec in [&stubborn, &meek] {
        runtime.ensure_created(spec).await.unwrap();
        runtime.start(&spec.id).await.unwrap();
        subject.ready(spec).await;
    }
    // When the first one has ended, the other has had the same time.
    for spec in [&stubborn, &meek] {
        assert!(runtime.signal(&spec.id, Signal::TERM).await.unwrap());
    }
    stopped(runtime, &meek.id).await;
    assert!(matches!(process(runtime, &stubborn.id).await, ProcessState::Running { .. }));
    assert!(runtime.signal(&stubborn.id, Signal::KILL).await.unwrap());
    assert_eq!(stopped(runtime, &stubborn.id).await.signal(), Some(Signal::KILL));
    for spec in [&stubborn, &meek] {
        runtime.remove(&spec.id).await.unwrap();
    }
}

async fn metadata_round_trips(subject: &dyn Subject) {
    let runtime = subject.runtime();
    let labels = [("cluster".to_owned(), "blue".to_owned())].into();
    let stop_signal = Signal::parse("QUIT");
    let assignment = (0..16_384u32).map(|n| n as u8).collect();
    let spec = ContainerSpec { labels, stop_signal, assignment, ..subject.spec("given", Program::Sleeps) };
    runtime.ensure_created(&spec).await.unwrap();
    let found = runtime.inspect(&spec.id).await.unwrap().unwrap();
    assert_eq!(found.labels, spec.labels);
    assert_eq!(found.assignment, spec.assignment);
    assert_eq!(Some(found.stop_signal), stop_signal);
    assert_eq!(found.image, IMAGE);
    runtime.remove(&spec.id).await.unwrap();
}

async fn image_files_are_readable(subject: &dyn Subject) {
    let (runtime, image) = (subject.runtime(), Reference::parse(IMAGE).unwrap());
    for _twice in 0..2 {
        let files = runtime.image_files(&image).await.unwrap();
        let etc = files.directory(Path::new("/etc")).unwrap().unwrap();
        let seen = format!("/proc/self/fd/{}", etc.as_raw_fd());
        let passwd = std::fs::read_to_string(format!("{seen}/passwd")).unwrap();
        assert!(passwd.contains("web:x:33:44"), "{passwd}");
        assert!(files.directory(Path::new("/etc/passwd")).unwrap().is_none());
        assert!(files.directory(Path::new("/etc/none")).unwrap().is_none());
    }
    for (user, uid, gid) in [
        (None, 0, 0),
        (Some("web"), 33, 44),
        (Some("33"), 33, 44),
        (Some("7:9"), 7, 9),
        (Some("7:web"), 7, 44),
    ] {
        assert_eq!(runtime.resolve_user(&image, user).await.unwrap(), ContainerUser { uid, gid }, "{user:?}");
    }
    let error = runtime.resolve_user(&image, Some("nobody")).await.unwrap_err();
    assert!(matches!(&error, Error::InvalidSpec { field, .. } if field == "user"), "{error}");
    let absent = Reference::parse("nothere:1").unwrap();
    for error in [
        runtime.resolve_user(&absent, None).await.unwrap_err(),
        runtime.image_files(&absent).await.map(drop).unwrap_err(),
    ] {
        assert!(matches!(error, Error::ImageMissing { .. }), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn containerd_passes_conformance() {
    let world = RuntimeFixture::start().await;
    let info = world.runtime.info().await.unwrap();
    assert!(info.name == "containerd" && !info.version.is_empty(), "{info:?}");
    suite(&world).await;
    world.assert_clean().await;
}

#[tokio::test]
async fn fake_passes_conformance() {
    let (fake, dir) = (FakeRuntime::new(), tempfile::tempdir().unwrap());
    std::fs::create_dir(dir.path().join("etc")).unwrap();
    std::fs::write(dir.path().join("etc/passwd"), world::PASSWD).unwrap();
    std::fs::write(dir.path().join("etc/group"), world::GROUP).unwrap();
    fake.add_image_files(&Reference::parse(IMAGE).unwrap(), dir.path());
    suite(&fake).await;
}

#[tokio::test]
async fn fake_faults_occur_as_scripted() {
    let fake = FakeRuntime::new();
    fake.add_image(&Reference::parse(IMAGE).unwrap());
    let mut events = fake.events();
    let spec = Subject::spec(&fake, "a", Program::Sleeps);
    fake.fail_next(RuntimeOperation::EnsureCreated, FaultPoint::Before(FakeFailure::Timeout));
    fake.fail_next(RuntimeOperation::EnsureCreated, FaultPoint::After(FakeFailure::Unavailable));
    assert!(fake.ensure_created(&spec).await.unwrap_err().is_transient());
    assert_eq!(fake.inspect(&spec.id).await.unwrap(), None, "it failed before it took effect");
    assert!(matches!(fake.ensure_created(&spec).await.unwrap_err(), Error::Unavailable { .. }));
    assert!(
        matches!(process(&fake, &spec.id).await, ProcessState::Created { .. }),
        "only its answer was lost"
    );
    fake.ensure_created(&spec).await.unwrap();
    assert_eq!(fake.call_count(RuntimeOperation::EnsureCreated), 3);

    fake.start(&spec.id).await.unwrap();
    fake.set_reachable(false);
    assert!(matches!(fake.list().await.unwrap_err(), Error::Unavailable { .. }));
    assert!(fake.end_process(&spec.id, 137, true), "containers live and die without the runtime");
    fake.set_reachable(true);
    event(&mut events, |event| (event == RuntimeEvent::Lost).then_some(())).await;
    event(&mut events, |event| matches!(event, RuntimeEvent::OutOfMemory { .. }).then_some(())).await;
    assert!(exited(&mut events, &spec.id).await.out_of_memory);
    event(&mut events, |event| (event == RuntimeEvent::Resumed).then_some(())).await;
    assert!(fake.clone().lose_process(&spec.id));
    assert_eq!(process(&fake, &spec.id).await, ProcessState::Absent);
    assert!(fake.make_orphan(&spec.id));
    assert_eq!(fake.sweep_orphans().await.unwrap().tasks, ["a"]);
}
