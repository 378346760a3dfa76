//! Hooks in containers.

use warren_types::{DesiredTaskState, EnvVar, LifecycleHook, TaskState};

use super::*;
use crate::fixtures::task;

fn hook(words: &[&str]) -> LifecycleHook {
    LifecycleHook::new(words.iter().map(|word| (*word).to_owned()).collect())
}

fn hooked(post_start: Vec<LifecycleHook>, pre_stop: Vec<LifecycleHook>) -> TaskAssignment {
    let mut task = task(1);
    (task.spec.post_start, task.spec.pre_stop) = (post_start, pre_stop);
    task
}

fn removed(task: TaskAssignment) -> TaskAssignment {
    TaskAssignment { desired: DesiredTaskState::Remove, ..task }
}

#[tokio::test(start_paused = true)]
async fn hooks_run_one_after_the_other() {
    let machine = Machine::new();
    let wait = LifecycleHook { user: Some("5".into()), workdir: Some("/srv".into()), ..hook(&["words"]) };
    let task = hooked(vec![wait, hook(&["exit", "0"])], vec![hook(&["exit", "0"])]);
    let agent = machine.agent_without_crash(assigned(vec![task.clone()]));
    agent.wait_ready(1).await;
    assert_eq!(machine.runtime.exec_count(), 0, "all have ended");
    agent.assign(vec![removed(task)]);
    let last = agent.wait_removed(1).await;
    assert_eq!((last.state, last.reason.as_str()), (TaskState::Shutdown, "stopped by the manager"));
}

#[tokio::test(start_paused = true)]
async fn failed_hook_is_the_reason_of_the_end() {
    let cases = [
        (hook(&["exit", "3"]), "post_start hook 2 (exit) exited with code 3"),
        (hook(&["nosuch"]), "post_start hook 2 (nosuch) was not run: "),
        (
            LifecycleHook { env: vec![EnvVar { name: "A".into(), value: "1".into() }], ..hook(&["sleep"]) },
            "post_start did not end within 600s",
        ),
    ];
    for (failing, expected) in cases {
        let machine = Machine::new();
        let task = hooked(vec![hook(&["words"]), failing], vec![]);
        let agent = machine.agent_without_crash(assigned(vec![task]));
        // Longer than a test waits for a report.
        sleep(crate::tasks::hooks::POST_START_LIMIT).await;
        let report = agent.wait_for_report(1, |report| report.state == TaskState::Failed).await;
        assert!(report.reason.starts_with(expected), "{report:?}");
        assert_eq!(machine.runtime.exec_count(), 0);
    }
}

/// A hook that does not end is ended with the grace period.
#[tokio::test(start_paused = true)]
async fn endless_pre_stop_hook_does_not_keep_the_task() {
    let machine = Machine::new();
    let task = hooked(vec![], vec![hook(&["sleep"])]);
    let agent = machine.agent_without_crash(assigned(vec![task.clone()]));
    agent.wait_ready(1).await;
    let since = tokio::time::Instant::now();
    agent.assign(vec![removed(task)]);
    agent.wait_for_report(1, |report| report.reason == "stopping: running its pre_stop hooks").await;
    let last = agent.wait_removed(1).await;
    assert!(since.elapsed() >= warren_types::spec::DEFAULT_STOP_GRACE, "{:?}", since.elapsed());
    assert!(last.reason.contains("; pre_stop did not end within "), "{last:?}");
    assert_eq!(machine.runtime.exec_count(), 0);
}

/// The next agent runs hooks again whose end the earlier one did not record.
#[tokio::test(start_paused = true)]
async fn restarted_agent_runs_unfinished_hooks_again() {
    let machine = Machine::new();
    let task = hooked(vec![hook(&["sleep"])], vec![]);
    let first = machine.agent_without_crash(assigned(vec![task]));
    first.wait_for_report(1, |report| report.reason == "waiting for its post_start hooks").await;
    let pid = machine.pid(1).await;
    drop(first);
    let quick = hooked(vec![hook(&["exit", "0"])], vec![]);
    let second = machine.agent_without_crash(assigned(vec![quick]));
    second.wait_ready(1).await;
    assert_eq!(machine.pid(1).await, pid);
}
