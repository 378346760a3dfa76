use super::*;
use crate::args::OutputFormat;
use crate::output::tests::{rendered, table_text_of, vertical};

const AT: u64 = 1_795_184_280_120;

fn wire(number: u64, slot: u32, state: TaskState) -> v1::Task {
    v1::Task {
        id: format!("3k2v9x0000000000000000abc-{number}"),
        service_id: "3k2v9x0000000000000000abc".into(),
        service_name: "web".into(),
        slot,
        revision: 1,
        spec: Some(v1::TaskSpec { image: "nginx:1.27".into(), ..Default::default() }),
        created_at: AT + number,
        node_id: "1n".into(),
        node_name: "node-1".into(),
        address: "10.210.1.2".into(),
        desired: v1::DesiredTaskState::Running.into(),
        state: v1::TaskState::from(state).into(),
        attempt: 1,
        state_since: AT,
        ready: state == TaskState::Running,
        ..Default::default()
    }
}

#[test]
fn tasks_show_node_and_reason() {
    let mut starting = wire(2, 1, TaskState::Starting);
    (starting.attempt, starting.reason) = (3, "exited with 1".into());
    starting.exit = Some(v1::TaskExit { code: 1, out_of_memory: false });
    starting.next_attempt = Some(AT + 93_500);
    let mut waiting = wire(4, 2, TaskState::Pending);
    (waiting.node_name, waiting.address, waiting.attempt) = (String::new(), String::new(), 0);
    waiting.reason = "1 lacks CPU".into();
    (waiting.node_id, waiting.not_before) = (String::new(), Some(AT + 98_000));
    let mut lost = wire(5, 3, TaskState::Running);
    lost.lost_since = Some(AT + 60_000);
    let mut failed_on_lost = wire(6, 4, TaskState::Failed);
    failed_on_lost.lost_since = Some(AT + 60_000);
    let mut unready = wire(7, 5, TaskState::Running);
    unready.ready = false;
    let mut first = wire(1, 1, TaskState::Failed);
    first.exit = Some(v1::TaskExit { code: 137, out_of_memory: true });
    let tasks = [first, lost, starting, waiting, failed_on_lost, unready];
    let mut tasks = tasks.map(|task| TaskView::try_from(task).unwrap());
    tasks.sort_by_key(TaskView::sort_key);
    insta::assert_snapshot!(table_text_of(&tasks, false, Timestamp(AT + 90_000)), @r"
    NAME    STATE                 SINCE   NODE     ADDRESS      ATTEMPT   REASON
    web.1   STARTING              1m30s   node-1   10.210.1.2   3         exited with 1; restarts in 4s
    web.1   FAILED                1m30s   node-1   10.210.1.2   1         ended by SIGKILL, out of memory
    web.2   PENDING               1m30s                         0         1 lacks CPU; is placed in 8s
    web.3   LOST                  30s     node-1   10.210.1.2   1
    web.4   FAILED                1m30s   node-1   10.210.1.2   1
    web.5   RUNNING (not ready)   1m30s   node-1   10.210.1.2   1
    ");
    insta::assert_snapshot!(vertical(&tasks[0], Timestamp(AT + 90_000)), @r"
    NAME web.1
    STATE STARTING
    SINCE 1m30s
    NODE node-1
    ADDRESS 10.210.1.2
    ATTEMPT 3
    ENDED with 1
    DESIRED RUNNING
    REVISION 1
    IMAGE nginx:1.27
    HEALTH
    CPU
    MEMORY
    ID 3k2v9x0000000000000000abc-2
    REASON exited with 1; restarts in 4s
    ");
}

#[test]
fn documents_have_everything_and_keep_their_shape() {
    let mut task = wire(1, 1, TaskState::Failed);
    task.exit = Some(v1::TaskExit { code: 137, out_of_memory: true });
    task.reason = "was killed for lack of memory".into();
    task.not_before = Some(AT);
    task.lost_since = Some(AT);
    task.next_attempt = Some(AT);
    (task.bound_to, task.digest) = ("1n".into(), "sha256:1".into());
    task.health = v1::Health::Unhealthy.into();
    let check = |duration_us, ok, output: &str| {
        let output = output.to_owned();
        v1::CheckResult { at: AT, duration_us, ok, output }
    };
    task.checks = vec![check(900, true, ""), check(5_001_234, false, "no answer within 5s")];
    let kind = v1::SecretObjectKind::Secret.into();
    task.secret_objects =
        vec![v1::SecretObjectVersion { kind, name: "db".into(), id: "1c".into(), version_number: 3 }];
    task.usage =
        Some(v1::TaskUsage { cpu_milli: 120, memory_bytes: 12 << 20, pids: 7, ..Default::default() });
    insta::assert_snapshot!(rendered(OutputFormat::Yaml, &TaskView::try_from(task).unwrap()), @r#"
    id: 3k2v9x0000000000000000abc-1
    name: web.1
    serviceId: 3k2v9x0000000000000000abc
    serviceName: web
    slot: 1
    revision: 1
    createdAt: "2026-11-20T14:18:00.121Z"
    notBefore: "2026-11-20T14:18:00.120Z"
    nodeId: 1n
    nodeName: node-1
    address: "10.210.1.2"
    desired: RUNNING
    state: FAILED
    stateSince: "2026-11-20T14:18:00.120Z"
    ready: false
    health: unhealthy
    attempt: 1
    reason: was killed for lack of memory
    exit:
      code: 137
      signal: SIGKILL
      outOfMemory: true
    nextAttempt: "2026-11-20T14:18:00.120Z"
    boundTo: 1n
    digest: sha256:1
    removed: false
    lostSince: "2026-11-20T14:18:00.120Z"
    checks:
    - at: "2026-11-20T14:18:00.120Z"
      duration: 900us
      ok: true
    - at: "2026-11-20T14:18:00.120Z"
      duration: 5s1ms
      ok: false
      output: no answer within 5s
    usage:
      cpu: "0.12"
      memory: 12MiB
      received: 0B
      sent: 0B
      read: 0B
      written: 0B
      pids: 7
    secretObjects:
    - kind: secret
      name: db
      versionNumber: 3
      id: 1c
    spec:
      image: nginx:1.27
      pull: missing
      tty: false
      init: false
      stopGrace: 10s
      privileged: false
      seccomp: default
      readOnly: false
      restart:
        condition: any
        delay: 1s
        max: 3
        window: 5m
      logs:
        maxSize: 10MiB
        maxFiles: 5
    "#);
}

#[test]
fn running_task_that_is_not_ready_shows_reason() {
    let standing = |ready, health: v1::Health| {
        let task = v1::Task { ready, health: health.into(), ..wire(1, 1, TaskState::Running) };
        TaskView::try_from(task).unwrap().status_text()
    };
    assert_eq!(standing(true, v1::Health::Healthy), "RUNNING");
    assert_eq!(standing(false, v1::Health::None), "RUNNING (not ready)");
    assert_eq!(standing(false, v1::Health::Starting), "RUNNING (starting)");
    assert_eq!(standing(false, v1::Health::Unhealthy), "RUNNING (unhealthy)");
    assert_eq!(standing(false, v1::Health::Healthy), "RUNNING (not ready)");
}

#[test]
fn undesired_task_is_stopping_until_it_ends() {
    let status = |state, desired: v1::DesiredTaskState| {
        let task = v1::Task { desired: desired.into(), ready: false, ..wire(1, 1, state) };
        TaskView::try_from(task).unwrap().status_text()
    };
    assert_eq!(status(TaskState::Running, v1::DesiredTaskState::Shutdown), "STOPPING");
    assert_eq!(status(TaskState::Preparing, v1::DesiredTaskState::Remove), "STOPPING");
    assert_eq!(status(TaskState::Failed, v1::DesiredTaskState::Shutdown), "FAILED");
}

#[test]
fn unknown_state_is_refused() {
    let task = v1::Task { state: 513, ..wire(1, 1, TaskState::Running) };
    let failure = TaskView::try_from(task).unwrap_err().to_string();
    assert!(failure.contains("state: value 513 is not known to this version"), "{failure}");
}
