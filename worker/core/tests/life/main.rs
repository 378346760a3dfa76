//! Drives `step` against a model of a node whose actions fail, half-succeed and are interrupted by crashes of
//! the agent, while processes exit by themselves and the desired state changes.

#![allow(clippy::unwrap_used, reason = "a test")]

mod strategies;
mod tasks;

use std::time::Duration;

use proptest::prelude::*;
use warren_task::{
    Action, ActionKind, AttemptHistory, AttemptPhase, ContainerState, FailureKind, Freshness,
    HealthObservation, HookKind, NextStep, ObservedTask, ResourceState, TerminalState, build_report,
    should_report, step, supersedes,
};
use warren_types::fixtures::image_digest as digest;
use warren_types::spec::RestartCondition;
use warren_types::{
    DesiredTaskState, Health, ImageDigest, TaskAssignment, TaskExit, TaskReport, TaskState, Timestamp,
};

use crate::strategies::{condition, event, failing_kind, lasting_health};
use crate::tasks::{DISCONNECT_LIMIT, task};

/// The real state of the node. It survives the agent, except for the ports, which the agent's own process
/// holds.
#[derive(Debug)]
struct NodeModel {
    container: ContainerState,
    stored_history: Option<AttemptHistory>,
    /// The digest of the image on the node.
    image: Option<ImageDigest>,
    /// The digest in the registry.
    registry: ImageDigest,
    /// The image of the container.
    container_image: Option<ImageDigest>,
    network: bool,
    files: bool,
    volumes: bool,
    secret_objects: bool,
    layer: bool,
    serving: bool,
    ignores_stop: bool,
    starts: u32,
}

#[derive(Debug, Clone, Copy)]
enum InjectedOutcome {
    Succeeds,
    FailsBefore,
    FailsAfter,
    CrashesBefore,
    CrashesAfter,
    Refused,
}

#[derive(Debug, Clone)]
enum Event {
    Acts(InjectedOutcome),
    Exits(i32),
    Desires(DesiredTaskState),
    Passes(u64),
    LosesProcess,
    Interrupted,
    /// The image is deleted from the node.
    LosesImage,
    /// The tmpfs with its secrets is lost.
    LosesSecretObjects,
    /// A check has ended.
    Checks(Health),
    /// The tag gets another digest.
    Moves,
    /// Managers pin the image digest: the one that this node reported, or another.
    Settles(bool),
    /// The node connects to a manager, or loses all of them.
    Finds(bool),
    /// Its writable layer is too large.
    Overflows,
}

struct Simulation {
    world: NodeModel,
    observed: ObservedTask,
    task: TaskAssignment,
    now: Timestamp,
    highest: Option<TaskReport>,
    /// Since when the node has been disconnected.
    disconnected_since: Option<Timestamp>,
}

impl Simulation {
    fn new(deaf: bool, condition: RestartCondition, has_more: bool) -> Self {
        let now = Timestamp(1_000_000);
        let world = NodeModel {
            container: ContainerState::Absent,
            stored_history: None,
            image: None,
            registry: digest('a'),
            container_image: None,
            network: false,
            files: false,
            volumes: false,
            secret_objects: false,
            layer: false,
            serving: false,
            ignores_stop: deaf,
            starts: 0,
        };
        let task = task(condition, has_more);
        Self { world, observed: ObservedTask::new(now), task, now, highest: None, disconnected_since: None }
    }

    /// Applies the effect of `action`; the asserts are actions that must never be requested.
    fn effect(&mut self, action: &Action) {
        let world = &mut self.world;
        match action {
            Action::Inspect => (),
            Action::EnsureImage => {
                world.image = Some(self.task.digest.clone().unwrap_or_else(|| world.registry.clone()));
            }
            Action::EnsureNetwork => world.network = true,
            Action::EnsureFiles => world.files = true,
            Action::ReservePorts | Action::ReleasePorts => world.serving = false,
            Action::EnsureVolumes => {
                assert!(world.volumes || world.image.is_some(), "filled from nothing");
                world.volumes = true;
            }
            Action::EnsureSecretObjects => world.secret_objects = true,
            Action::RemoveSecretObjects => {
                assert!(!world.container.is_running(), "the secrets of a running process");
                world.secret_objects = false;
            }
            Action::RouteTraffic => {
                assert!(world.network, "traffic for a task without a network");
                let health = self.observed.health(Some(&self.task));
                assert!(matches!(health, Health::None | Health::Healthy), "traffic while {health:?}");
                world.serving = true;
            }
            Action::EnsureContainer => {
                assert!(world.network && world.files, "a container without its surroundings");
                assert!(!world.container.is_running(), "made while it runs");
                if matches!(world.container, ContainerState::Absent) {
                    let settled = self.task.digest.clone();
                    assert!(settled.is_some(), "made before it was settled of what");
                    (world.stored_history, world.container_image) =
                        (Some(AttemptHistory::default()), settled);
                }
                (world.container, world.layer) = (ContainerState::Created, true);
            }
            Action::Start => {
                assert_eq!(world.container, ContainerState::Created, "started twice, or before it was made");
                assert_eq!(self.task.desired, DesiredTaskState::Running, "started although not wanted");
                let stop_after = self.task.spec.on_disconnect.stop_after();
                let over = stop_after
                    .zip(self.observed.disconnected_for)
                    .is_some_and(|(stop_after, alone)| alone >= stop_after);
                assert!(!over, "started without a manager, when another may run in its place");
                world.container = ContainerState::Running { since: self.now };
                world.starts += 1;
            }
            Action::RecordHistory(history) => {
                if world.stored_history.is_some() {
                    world.stored_history = Some(history.to_string().parse().unwrap());
                }
            }
            Action::RunHooks(_) => assert!(world.container.is_running(), "hooks of no process"),
            Action::SignalStop if world.ignores_stop => (),
            Action::SignalStop => self.exit_process(143),
            Action::Kill => self.exit_process(137),
            Action::DeleteProcess => {
                assert!(!world.container.is_running(), "cleared while it runs");
                world.container = ContainerState::Recorded;
            }
            Action::RemoveLayer => {
                let has_process =
                    matches!(world.container, ContainerState::Created) || world.container.is_running();
                assert!(!has_process, "the layer of a process");
                world.layer = false;
            }
            Action::RemoveContainer => {
                assert_eq!(world.container, ContainerState::Recorded, "removed with its process");
                (world.container, world.stored_history) = (ContainerState::Absent, None);
                world.layer = false;
            }
            Action::RemoveNetwork => {
                assert!(!world.container.is_running(), "the network of a running process");
                world.network = false;
            }
            Action::RemoveFiles => world.files = false,
        }
    }

    fn exit_process(&mut self, code: i32) {
        if self.world.container.is_running() {
            let exit = TaskExit { code, out_of_memory: false };
            self.world.container = ContainerState::Stopped { exit, at: self.now };
            self.observed.mark_stale();
        }
    }

    fn crash(&mut self) {
        self.world.serving = false;
        self.observed = ObservedTask::new(self.now);
    }

    /// What `step` would do now.
    fn next_action(&self) -> Option<ActionKind> {
        match step(Some(&self.task), &self.observed, self.now) {
            NextStep::Do(action) => Some(action.kind()),
            NextStep::WaitUntil(_) | NextStep::Settled => None,
        }
    }

    /// Calls `step` once and applies the injected outcome.
    fn run_step(&mut self, outcome: InjectedOutcome) -> NextStep {
        let disconnected_for = self.disconnected_since.map(|since| self.now.saturating_since(since));
        // Managers acknowledge one of the two ways to stop.
        let is_withdrawn = self.task.desired == DesiredTaskState::Remove;
        self.observed.record_inputs(Some(&self.task), disconnected_for, is_withdrawn, self.now);
        let answer = step(Some(&self.task), &self.observed, self.now);
        let NextStep::Do(action) = &answer else {
            assert_eq!(step(Some(&self.task), &self.observed, self.now), answer, "asked twice");
            return answer;
        };
        let outcome = match (action, outcome) {
            // Nothing can be created from a missing image.
            (Action::EnsureContainer, InjectedOutcome::Succeeds | InjectedOutcome::FailsAfter)
                if self.lacks() =>
            {
                InjectedOutcome::FailsBefore
            }
            (Action::EnsureContainer, InjectedOutcome::CrashesAfter) if self.lacks() => {
                InjectedOutcome::CrashesBefore
            }
            (Action::EnsureVolumes, outcome) if !self.world.volumes && self.world.image.is_none() => {
                match outcome {
                    InjectedOutcome::Succeeds | InjectedOutcome::FailsAfter => InjectedOutcome::FailsBefore,
                    InjectedOutcome::CrashesAfter => InjectedOutcome::CrashesBefore,
                    outcome => outcome,
                }
            }
            (_, outcome) => outcome,
        };
        if matches!(
            outcome,
            InjectedOutcome::Succeeds | InjectedOutcome::FailsAfter | InjectedOutcome::CrashesAfter
        ) {
            self.effect(action);
        }
        let kind = match outcome {
            InjectedOutcome::Refused if action.kind().is_required_to_run() => FailureKind::Permanent,
            _ => FailureKind::Transient,
        };
        match outcome {
            InjectedOutcome::Succeeds if *action == Action::Inspect => {
                self.observed.record_inspection(self.world.container, self.world.stored_history.clone());
            }
            InjectedOutcome::Succeeds if *action == Action::EnsureImage => {
                self.observed.record_image(self.world.image.clone().unwrap());
            }
            InjectedOutcome::Succeeds => {
                let stale = self.observed.freshness != Freshness::Fresh;
                self.observed.record_success(action, self.now);
                if let Action::RunHooks(kind) = action {
                    let failure = (*kind == HookKind::PreStop).then(|| "exited with code 1".to_owned());
                    self.observed.record_hooks_end(*kind, failure);
                }
                if stale || self.observed.container != self.world.container {
                    self.observed.mark_stale();
                }
            }
            InjectedOutcome::FailsBefore | InjectedOutcome::FailsAfter | InjectedOutcome::Refused => {
                self.observed.record_failure(action, kind, "no".into(), self.now);
            }
            InjectedOutcome::CrashesBefore | InjectedOutcome::CrashesAfter => self.crash(),
        }
        self.report();
        answer
    }

    /// The image of the container, or what it mounts, is missing.
    fn lacks(&self) -> bool {
        let mounts = !self.task.spec.secrets.is_empty();
        self.lacks_image() || mounts && !(self.world.secret_objects && self.world.volumes)
    }

    fn lacks_image(&self) -> bool {
        let expected = self.world.container_image.as_ref().or(self.task.digest.as_ref());
        expected.is_none() || self.world.image.as_ref() != expected
    }

    /// Keeps the highest report, as a manager does.
    fn report(&mut self) {
        let output = build_report(self.task.id, Some(&self.task), &self.observed);
        assert!(!output.ready || matches!(output.health, Health::None | Health::Healthy), "{output:?}");
        assert!(!output.ready || self.observed.is_set_up(&self.task), "{output:?}");
        if output.removed {
            assert!(self.is_empty(), "said removed, but {:?}", self.world);
        }
        if self.highest.as_ref().is_none_or(|highest| supersedes(&output, highest)) {
            self.highest = Some(output);
        }
    }

    fn is_empty(&self) -> bool {
        let NodeModel {
            container,
            stored_history: label,
            network,
            files,
            secret_objects: contents,
            serving,
            ..
        } = &self.world;
        *container == ContainerState::Absent && label.is_none() && !network && !files && !contents && !serving
    }

    fn handle(&mut self, event: &Event) {
        match event {
            Event::Acts(outcome) => {
                self.run_step(*outcome);
            }
            Event::Exits(code) => self.exit_process(*code),
            Event::Desires(desired) => self.task.desired = self.task.desired.max(*desired),
            Event::Passes(seconds) => self.now = self.now + Duration::from_secs(*seconds),
            Event::LosesProcess => {
                if self.world.container.is_running() {
                    self.world.container = ContainerState::Recorded;
                    self.observed.mark_stale();
                }
            }
            Event::Interrupted => {
                self.observed.mark_stale();
                self.observed.invalidate_resources();
            }
            Event::LosesImage => self.world.image = None,
            Event::LosesSecretObjects => {
                if !self.world.container.is_running() {
                    self.world.secret_objects = false;
                }
            }
            Event::Checks(health) => {
                if self.world.container.is_running() && self.task.spec.health.is_some() {
                    self.observed
                        .record_health(HealthObservation { health: *health, reason: "it said".into() });
                }
            }
            Event::Finds(true) => self.disconnected_since = None,
            Event::Finds(false) => self.disconnected_since = self.disconnected_since.or(Some(self.now)),
            Event::Overflows => {
                // Only layers that exist are measured.
                if self.observed.container != ContainerState::Absent {
                    self.observed.eviction = Some("too large".into());
                }
            }
            Event::Moves => self.world.registry = digest('b'),
            Event::Settles(by_another) => {
                let output = self.highest.as_ref().and_then(|text| text.image.clone());
                let settled = if *by_another { Some(digest('c')) } else { output };
                self.task.digest = self.task.digest.take().or(settled);
            }
        }
    }

    /// Managers and checks do their part.
    fn settles(&mut self) -> bool {
        let before = (self.task.digest.clone(), self.observed.health(Some(&self.task)));
        self.handle(&Event::Settles(false));
        if !matches!(before.1, Health::None | Health::Healthy) {
            self.handle(&Event::Checks(Health::Healthy));
        }
        before != (self.task.digest.clone(), self.observed.health(Some(&self.task)))
    }

    /// Without further faults the task settles; time passes only as far as `step` needs.
    fn settle(&mut self) {
        self.handle(&Event::Finds(true));
        for _ in 0..200 {
            match self.run_step(InjectedOutcome::Succeeds) {
                NextStep::Do(_) => (),
                NextStep::WaitUntil(moment) => {
                    assert!(moment > self.now, "waits for what is past");
                    self.now = moment;
                }
                NextStep::Settled if self.settles() => (),
                NextStep::Settled => return,
            }
        }
        panic!("does not settle: {:?} {:?}", self.world, self.observed);
    }

    fn settled_health(&self) -> Health {
        if self.task.spec.health.is_some() { Health::Healthy } else { Health::None }
    }

    fn assert_settled(&self) {
        let output = build_report(self.task.id, Some(&self.task), &self.observed);
        let ended = self.observed.history.terminal_state().is_some();
        match self.task.desired {
            DesiredTaskState::Remove => assert!(output.removed && self.is_empty(), "{:?}", self.world),
            // The agent died and lost the rejection of the task. Managers have it, and ignore other reports.
            DesiredTaskState::Ready | DesiredTaskState::Running if !ended && self.task.digest.is_none() => {
                assert!(self.highest.as_ref().unwrap().state.is_terminal());
                assert_eq!(self.world.container, ContainerState::Absent);
            }
            DesiredTaskState::Running if !ended => {
                assert!(output.ready && self.world.serving && self.world.container.is_running());
                assert_eq!(self.world.container_image, self.task.digest, "made of another image");
                let AttemptPhase::Started { health, .. } = self.observed.history.phase else {
                    panic!("not recorded")
                };
                assert_eq!((health, output.health), (output.health, self.settled_health()));
                assert!(should_report(Some(&self.task), &self.observed));
            }
            DesiredTaskState::Ready if !ended => assert_eq!(self.world.container, ContainerState::Created),
            _ => {
                assert!(matches!(self.world.container, ContainerState::Absent | ContainerState::Recorded));
                assert!(output.state.is_terminal() && !self.world.serving && !self.world.network);
                assert!(!self.world.secret_objects, "secrets of what does not run");
                assert!(!self.world.layer, "the layer of what has ended");
            }
        }
        if self.observed.history.terminal_state() == Some(TerminalState::Completed) {
            assert_ne!(self.task.spec.restart.condition, RestartCondition::Any, "it was to go on");
            assert_eq!(self.observed.history.exit, Some(TaskExit { code: 0, out_of_memory: false }));
        }
        assert_ne!(self.observed.network, ResourceState::Unknown);
    }
}

fn run(deaf: bool, condition: RestartCondition, has_more: bool, events: &[Event]) -> Simulation {
    let mut play = Simulation::new(deaf, condition, has_more);
    for event in events {
        play.handle(event);
    }
    play.settle();
    play.assert_settled();
    play
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// After any faults a task settles in its desired state, stays settled, and its last report is one that a
    /// manager does not drop.
    #[test]
    fn task_always_settles(
        deaf: bool,
        condition in condition(),
        has_more: bool,
        events in prop::collection::vec(event(0), 0..80),
    ) {
        let mut play = run(deaf, condition, has_more, &events);
        let last = build_report(play.task.id, Some(&play.task), &play.observed);
        let kept = play.highest.clone().unwrap();
        // An agent that crashed after the record was removed does not know the attempts any more.
        let same = kept == last || (kept.removed && last.removed);
        prop_assert!(same, "a manager would keep {:?}, not {:?}", kept, last);
        prop_assert_eq!(play.run_step(InjectedOutcome::Succeeds), NextStep::Settled);
        play.crash();
        play.settle();
        play.assert_settled();
    }

    /// If everything fails, or actions of one kind do, retries become rare: no number of actions makes a task spin.
    #[test]
    fn failures_do_not_spin(
        deaf: bool,
        has_more: bool,
        events in prop::collection::vec(event(0), 0..40),
        crash: bool,
        kind in failing_kind(),
    ) {
        let mut play = Simulation::new(deaf, RestartCondition::Any, has_more);
        for event in &events {
            play.handle(event);
        }
        if crash {
            play.crash();
        }
        play.run_step(InjectedOutcome::Succeeds);
        let (began, mut tries) = (play.now, 0);
        while play.now.saturating_since(began) < Duration::from_secs(600) {
            let fails = kind.is_none_or(|kind| play.next_action() == Some(kind));
            match play.run_step(if fails { InjectedOutcome::FailsBefore } else { InjectedOutcome::Succeeds }) {
                NextStep::Do(_) => tries += 1,
                NextStep::WaitUntil(moment) => play.now = moment,
                NextStep::Settled => break,
            }
            prop_assert!(tries < 600, "still trying: {:?}", play.observed);
        }
    }

    /// Also when actions fail permanently; and once removed, nothing is left.
    #[test]
    fn nothing_is_left_of_a_removed_task(
        deaf: bool,
        condition in condition(),
        has_more: bool,
        events in prop::collection::vec(event(3), 0..80),
    ) {
        let mut play = run(deaf, condition, has_more, &events);
        play.handle(&Event::Desires(DesiredTaskState::Remove));
        play.settle();
        play.assert_settled();
        prop_assert!(play.highest.unwrap().removed);
    }

    /// A node that stays disconnected runs no task with `stop_after` for longer than its limit, the stop
    /// included, and reports it when it reconnects.
    #[test]
    fn stop_after_is_honoured_without_manager(
        deaf: bool,
        condition in condition(),
        events in prop::collection::vec(event(0), 0..80),
    ) {
        let mut play = Simulation::new(deaf, condition, true);
        for event in &events {
            play.handle(event);
        }
        play.handle(&Event::Finds(false));
        play.now = play.now + DISCONNECT_LIMIT;
        let last = play.now + play.task.spec.stop_grace;
        for _ in 0..200 {
            match play.run_step(InjectedOutcome::Succeeds) {
                NextStep::Do(_) => (),
                NextStep::WaitUntil(moment) if moment <= last => play.now = moment,
                NextStep::WaitUntil(_) | NextStep::Settled => break,
            }
        }
        prop_assert!(!play.world.container.is_running(), "{:?} {:?}", play.world, play.observed);
        prop_assert!(!play.world.serving);
        play.settle();
        play.assert_settled();
    }

    /// A crash between any two actions of a lifecycle without other faults neither starts a process twice nor
    /// counts an attempt too many.
    #[test]
    fn a_crash_between_two_actions_changes_nothing(crash_after in 0..24usize, after: bool, has_more: bool) {
        let mut play = Simulation::new(false, RestartCondition::Any, has_more);
        play.handle(&Event::Desires(DesiredTaskState::Running));
        for _ in 0..crash_after {
            play.run_step(InjectedOutcome::Succeeds);
        }
        play.run_step(if after { InjectedOutcome::CrashesAfter } else { InjectedOutcome::CrashesBefore });
        play.settle();
        play.assert_settled();
        prop_assert_eq!((play.world.starts, play.observed.history.attempt), (1, 1));
    }

    /// The health that managers received stays true when the agent dies at any later step: a task that was
    /// ready is not reported as unready, and one that was not is not reported as ready.
    #[test]
    fn restarted_agent_reports_same_health(
        checks in prop::collection::vec((lasting_health(), 0..6usize), 1..6),
        crashes in 1..3usize,
    ) {
        let mut play = Simulation::new(false, RestartCondition::Any, true);
        play.handle(&Event::Desires(DesiredTaskState::Running));
        play.settle();
        let sent = |play: &Simulation| {
            let worth = should_report(Some(&play.task), &play.observed);
            let output = build_report(play.task.id, Some(&play.task), &play.observed);
            (worth && output.state == TaskState::Running).then_some((output.health, output.ready))
        };
        let mut last = sent(&play).unwrap();
        for (health, actions) in checks {
            play.handle(&Event::Checks(health));
            for _ in 0..actions {
                play.run_step(InjectedOutcome::Succeeds);
                last = sent(&play).unwrap_or(last);
            }
        }
        for _ in 0..crashes {
            play.crash();
            while let NextStep::Do(_) = play.run_step(InjectedOutcome::Succeeds) {
                let now = sent(&play).unwrap_or(last);
                prop_assert_eq!(now, last);
            }
        }
    }
}
