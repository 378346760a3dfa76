//! Why a task is as it is.

use std::fmt::Display;
use std::time::Duration;

use warren_types::spec::{IMAGE_NOT_ADMITTED, IMAGE_NOT_RESOLVED};
use warren_types::{
    DesiredTaskState, Health, NodeCondition, NodeStatus, RestartCondition, Service, Task, TaskExit, TaskState,
};

use super::worker_reason::{failed_step, is_pulling};
use super::{Cause, Inquiry};
use crate::explain::explain_task;
use crate::reconcile::lost;
use crate::settling::settling_time;

/// How long a node may take to accept a task until that is a problem.
const ACCEPT_TIME: Duration = Duration::from_secs(30);
/// How long a task that was restarted must have run to count as well, if its restart window is longer.
const RESTARTED_TIME: Duration = Duration::from_secs(5 * 60);

impl<'a> Inquiry<'a> {
    /// `web.2`
    pub(super) fn task_name(&self, task: &Task) -> String {
        format!("{}.{}", self.service_name(task), task.slot)
    }

    pub(super) fn task(&self, task: &'a Task) -> Cause {
        let name = self.task_name(task);
        if task.observed.state.is_terminal() {
            return self.ended_task(task, &name);
        }
        if task.lost_since().is_some() {
            return self.lost_task(task, &name);
        }
        if task.desired > DesiredTaskState::Running {
            return self.stopping_task(task, &name);
        }
        if task.node.is_none() {
            return self.unplaced_task(task, &name);
        }
        match task.observed.state {
            TaskState::Running => self.running_task(task, &name),
            _ => self.starting_task(task, &name),
        }
        .because(self.node_problem(task))
        .with_worst_severity()
    }

    /// What is wrong with the node of a task, as far as it concerns the task.
    fn node_problem(&self, task: &Task) -> Option<Cause> {
        let node = task.node.and_then(|id| self.state.node(&id))?;
        let is_bad =
            |it: &NodeCondition| !matches!(it, NodeCondition::DiskPressure | NodeCondition::MemoryPressure);
        let is_degraded = node.status != NodeStatus::Ready || node.conditions.iter().any(is_bad);
        is_degraded.then(|| self.node(node))
    }

    fn lost_task(&self, task: &Task, name: &str) -> Cause {
        let node = task.node.and_then(|id| self.state.node(&id));
        let service = self.state.service(&task.id.service);
        let replaced = service.and_then(|service| lost::explain_wait(service, task, self.now));
        let since = task.lost_since().unwrap_or(self.now);
        let node_name = self.node_name(task.node);
        Cause::problem("task-lost", format!("{name} is on node {node_name}, which is not reachable"))
            .since(since)
            .evidence(replaced.unwrap_or_default())
            .evidence(format!("it was {} then", task.observed.state.as_str()))
            .because(node.map(|node| self.node(node)))
    }

    fn stopping_task(&self, task: &Task, name: &str) -> Cause {
        let spec = &task.revision.task;
        let limits = format!("drain delay {:?}, grace period {:?}", spec.drain_delay, spec.stop_grace);
        if task.node.is_none() {
            return Cause::waiting("stopping", format!("{name} is stopped before it got a node"));
        }
        let reason = task.observed.reason();
        let failed = failed_step(reason);
        let cause = match failed {
            Some(step) => Cause::problem(step.code, format!("{name} {}", step.sentence)).action(step.action),
            None => Cause::waiting("stopping", format!("{name} is being stopped")),
        };
        cause.evidence(reason).evidence(limits)
    }

    fn unplaced_task(&self, task: &Task, name: &str) -> Cause {
        if let Some(until) = task.not_before().filter(|until| *until > self.now) {
            let why = explain_task(self.state, None, task, self.now);
            let earlier = self.state.previous_task(task);
            return Cause::problem(
                "back-off",
                format!("{name} is started again at {until}, after a back-off"),
            )
            .since(task.created_at)
            .evidence(why)
            .because(earlier.map(|earlier| self.task(earlier)));
        }
        let Some(reason) = self.refusals.get(task) else {
            return Cause::waiting("placing", format!("{name} has no node yet")).since(task.created_at);
        };
        let remedies = self.refusals.remedies(task);
        let cause = Cause::problem("not-placed", format!("no node is suitable for {name}"))
            .since(task.created_at)
            .evidence(&**reason);
        match remedies {
            [] => cause,
            remedies => cause.action(remedies.join("; or ")),
        }
    }

    fn starting_task(&self, task: &Task, name: &str) -> Cause {
        let (observed, node) = (&task.observed, self.node_name(task.node));
        let reason = observed.reason();
        if let Some(step) = failed_step(reason) {
            return self.failed_step(task, name, step.code, step.sentence, step.action);
        }
        if let Some(cause) = self.restarting_task(task, name) {
            return cause;
        }
        if reason.starts_with(IMAGE_NOT_ADMITTED) {
            return image_not_admitted(name).since(observed.since).evidence(reason);
        }
        if reason.starts_with(IMAGE_NOT_RESOLVED) {
            let service = self.service_name(task);
            return Cause::problem(
                "image-not-resolved",
                format!("managers do not know what the image of {name} is"),
            )
            .since(observed.since)
            .evidence(reason)
            .action(format!(
                "check name and tag of the image, and that managers reach its registry; without one \
                     `warren image import`, or `warren service update {service} --resolve-image worker`"
            ));
        }
        let (since, ago) = (observed.since, self.ago(observed.since));
        let cause = match observed.state {
            TaskState::New | TaskState::Pending | TaskState::Assigned => {
                let sentence = format!("node {node} has not accepted {name} yet");
                match self.now.saturating_since(since) > ACCEPT_TIME {
                    true => Cause::problem("not-accepted", sentence).action(format!(
                        "check the agent on the machine of {node}; see `warren why node/{node}`"
                    )),
                    false => Cause::waiting("not-accepted", sentence),
                }
            }
            _ if is_pulling(reason) => Cause::waiting(
                "pulling-image",
                format!("{name} waits for its image on node {node} for {ago}"),
            )
            .action("the next start on that node needs no pull; see `warren image ls`"),
            TaskState::Ready if task.desired == DesiredTaskState::Ready => {
                let sentence =
                    format!("{name} is prepared and waits until it may replace the task before it");
                let earlier = self.state.predecessor(task);
                Cause::waiting("standby", sentence).because(earlier.map(|earlier| self.task(earlier)))
            }
            TaskState::Accepted | TaskState::Preparing => {
                let what = "its image, network, volumes and secrets are being prepared";
                Cause::waiting("preparing", format!("{name} is prepared on node {node} for {ago}: {what}"))
            }
            _ => Cause::waiting("starting", format!("{name} is being started on node {node} for {ago}")),
        };
        cause.since(since).evidence(reason)
    }

    fn failed_step(
        &self,
        task: &Task,
        name: &str,
        code: &'static str,
        sentence: &str,
        action: &str,
    ) -> Cause {
        let service = self.service_name(task);
        let node = self.node_name(task.node);
        let action = action.replace("SERVICE", &service).replace("node/NODE", &format!("node/{node}"));
        Cause::problem(code, format!("{name} {sentence} on node {node}"))
            .since(task.observed.since)
            .evidence(task.observed.reason())
            .action(action)
    }

    /// Of a task whose process ended before and is started again.
    fn restarting_task(&self, task: &Task, name: &str) -> Option<Cause> {
        let observed = &task.observed;
        let is_retried = observed.attempt > 1 || observed.next_attempt().is_some();
        if !is_retried || observed.state < TaskState::Starting {
            return None;
        }
        let sentence = match observed.next_attempt() {
            Some(at) => format!("the process of {name} ended; it is started again at {at}"),
            None => format!("the process of {name} ended and is started again"),
        };
        let cause = Cause::problem("restarting", sentence).since(observed.since);
        Some(self.with_exit(task, cause.evidence(observed.reason())))
    }

    /// Adds how the process ended, and what to do about that.
    fn with_exit(&self, task: &Task, cause: Cause) -> Cause {
        let service = self.service_name(task);
        let limit = task.revision.task.limits.memory;
        let attempts = format!("attempt {}", task.observed.attempt);
        let cause = cause.log_of(task.id).evidence(attempts);
        match (task.observed.exit(), limit) {
            (Some(TaskExit { out_of_memory: true, .. }), Some(limit)) => cause
                .evidence(format!("it ran out of memory (limit {limit})"))
                .action(format!("raise its limit: `warren service update {service} --memory SIZE`")),
            (Some(TaskExit { out_of_memory: true, .. }), None) => cause
                .evidence("it ran out of memory, and has no limit: the node had none left")
                .action(format!(
                    "give it a limit and a reservation: `warren service update {service} --memory SIZE`"
                )),
            (Some(TaskExit { code, .. }), _) => cause.evidence(format!("exit code {code}")).action(format!(
                "read its output: `warren service logs {service}`; correct it with `warren service update`"
            )),
            (None, _) => cause.action(format!("read its output: `warren service logs {service}`")),
        }
    }

    fn running_task(&self, task: &Task, name: &str) -> Cause {
        let (observed, node) = (&task.observed, self.node_name(task.node));
        let reason = observed.reason();
        if let Some(step) = failed_step(reason) {
            return self.failed_step(task, name, step.code, step.sentence, step.action);
        }
        if !observed.ready {
            return self.unready_task(task, name);
        }
        let service = self.state.service(&task.id.service);
        let ran = self.now.saturating_since(observed.since);
        let window = task.revision.task.restart.window.min(RESTARTED_TIME);
        let settles =
            service.and_then(|service: &std::sync::Arc<Service>| settling_time(service, task, self.now));
        let is_restarted = observed.attempt > 1 && observed.exit().is_some();
        if is_restarted && ran < window {
            let sentence = format!("{name} runs again since {}, after its process ended", observed.since);
            return self.with_exit(task, Cause::problem("restarted", sentence).since(observed.since));
        }
        if let Some(left) = settles.filter(|left| !left.is_zero()) {
            let seconds = left.as_millis().div_ceil(1000);
            let sentence = format!("{name} runs on node {node}, and counts as ready in {seconds}s");
            return Cause::waiting("settling", sentence)
                .since(observed.since)
                .evidence("it has no health check, so it must run for some time (--update-monitor)");
        }
        let cause =
            Cause::ok("running", format!("{name} runs on node {node} and is ready")).since(observed.since);
        let cause = match observed.health {
            Health::None => cause,
            health => cause.evidence(format!("health: {}", health.as_str())),
        };
        match is_restarted {
            true => cause.evidence(format!("attempt {}, since its process ended before", observed.attempt)),
            false => cause,
        }
    }

    /// A process that runs and gets no traffic.
    fn unready_task(&self, task: &Task, name: &str) -> Cause {
        let (observed, service) = (&task.observed, self.service_name(task));
        let reason = observed.reason();
        let check = self.observations.checks.get(&task.id);
        let checked = check.map(|check| {
            let outcome = if check.is_ok { "succeeded" } else { "failed" };
            format!("last health check at {}: {outcome}: {}", check.at, check.output.trim())
        });
        let cause = match (observed.health, reason) {
            (Health::Unhealthy, _) => Cause::problem(
                "unhealthy",
                format!("the health check of {name} fails, so it gets no clients"),
            )
            .log_of(task.id)
            .action(format!(
                "read its output (`warren service logs {service}`), or correct the check (`warren service \
                         update {service} --health-cmd ...`)"
            )),
            (Health::Starting, _) => {
                let sentence = format!("no health check of {name} has succeeded yet");
                let start_period = task.revision.task.health.as_ref().map(|check| check.start_period);
                let ran = self.now.saturating_since(observed.since);
                let is_slow = start_period.is_some_and(|period| ran > period.max(RESTARTED_TIME));
                match is_slow {
                    true => Cause::problem("health-starting", sentence).log_of(task.id),
                    false => Cause::waiting("health-starting", sentence),
                }
            }
            (_, reason) if reason.contains("post_start") => {
                Cause::waiting("post-start", format!("the post_start hooks of {name} have not ended"))
            }
            _ => Cause::waiting("not-ready", format!("{name} runs and gets no clients yet")),
        };
        cause.since(observed.since).evidence(reason).evidence(checked.unwrap_or_default())
    }

    fn ended_task(&self, task: &Task, name: &str) -> Cause {
        let observed = &task.observed;
        let service = self.service_name(task);
        let reason = explain_task(self.state, None, task, self.now);
        let cause = match observed.state {
            TaskState::Complete => {
                let policy = &task.revision.task.restart;
                let again = match policy.condition {
                    RestartCondition::Any => "",
                    _ => ", and its restart policy ends it then",
                };
                Cause::ok("completed", format!("{name} ended with success{again}"))
            }
            TaskState::Shutdown if observed.health == Health::Unhealthy => {
                Cause::problem("unhealthy", format!("{name} was stopped, since its health check failed"))
                    .log_of(task.id)
                    .action(format!(
                        "read its output (`warren service logs {service}`), or correct its health check"
                    ))
            }
            TaskState::Shutdown => Cause::ok("stopped", format!("{name} was stopped, as desired")),
            _ => match failed_step(observed.reason()) {
                Some(step) => self.failed_step(task, name, step.code, step.sentence, step.action),
                None => {
                    let code = match observed.exit() {
                        Some(exit) if exit.out_of_memory => "out-of-memory",
                        _ => "failed",
                    };
                    let failed =
                        Cause::problem(code, format!("{name} failed on node {}", self.node_name(task.node)));
                    self.with_exit(task, failed)
                }
            },
        };
        let cause = cause.since(observed.since);
        if cause.evidence.contains(&reason) { cause } else { cause.evidence(reason) }
    }
}

/// The image of a task or service lacks a signature, as far as managers know.
pub(super) fn image_not_admitted(name: impl Display) -> Cause {
    let sentence =
        format!("managers know of no signature of the image of {name} that the admission policy demands");
    let action =
        "sign it with `cosign sign` and a key of the rule, which `warren cluster policy show` prints";
    Cause::problem("image-not-admitted", sentence).action(action)
}
