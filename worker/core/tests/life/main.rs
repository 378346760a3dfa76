//! Drives `step` against a model of a node whose actions fail, half-succeed and are cut short by crashes of
//! the agent, while processes end by themselves and managers change their minds.

#![allow(clippy::unwrap_used, reason = "a test")]

mod chance;

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use warren_task::{
    Action, Checked, Container, Found, Ledger, Phase, Presence, Severity, Sight, Step, Verdict,
    is_worth_telling, report, step, supersedes,
};
use warren_types::spec::{
    ContentMount, HealthCheck, Mount, MountSource, Probe, RestartCondition, RestartPolicy,
};
use warren_types::{
    Desired, Exit, Health, Id, ImageDigest, OnDisconnect, Protocol, PublishMode, PublishedPort, ServiceId,
    TaskAssignment, TaskId, TaskReport, TaskSpec, TaskState, Timestamp,
};

use crate::chance::{condition, event, lasting_health};

/// How long a task that has everything runs on without a manager.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is really there. It outlives the agent, but for the ports, which the agent's own process holds.
#[derive(Debug)]
struct World {
    container: Container,
    label: Option<Ledger>,
    /// What the image is that is here.
    image: Option<ImageDigest>,
    /// What the registry says now.
    registry: ImageDigest,
    /// What the container was made of.
    made_of: Option<ImageDigest>,
    network: bool,
    files: bool,
    volumes: bool,
    contents: bool,
    serving: bool,
    deaf: bool,
    starts: u32,
}

#[derive(Debug, Clone, Copy)]
enum Fate {
    Succeeds,
    FailsBefore,
    FailsAfter,
    CrashesBefore,
    CrashesAfter,
    Refused,
}

#[derive(Debug, Clone)]
enum Event {
    Acts(Fate),
    Exits(i32),
    Desires(Desired),
    Passes(u64),
    LosesProcess,
    Stumbles,
    /// The image is deleted from the node.
    LosesImage,
    /// The tmpfs with its secrets is gone.
    LosesContents,
    /// A check is over.
    Checks(Health),
    /// The tag gets another meaning.
    Moves,
    /// Managers settle what the image is: what this node said, or what another did.
    Settles(bool),
    /// The node finds a manager, or loses all of them.
    Finds(bool),
}

struct Play {
    world: World,
    found: Found,
    task: TaskAssignment,
    now: Timestamp,
    highest: Option<TaskReport>,
    /// Since when there has been no manager.
    alone_since: Option<Timestamp>,
}

impl Play {
    fn new(deaf: bool, condition: RestartCondition, has_more: bool) -> Self {
        let now = Timestamp(1_000_000);
        let world = World {
            container: Container::Absent,
            label: None,
            image: None,
            registry: digest('a'),
            made_of: None,
            network: false,
            files: false,
            volumes: false,
            contents: false,
            serving: false,
            deaf,
            starts: 0,
        };
        let task = task(condition, has_more);
        Self { world, found: Found::new(now), task, now, highest: None, alone_since: None }
    }

    /// Does the effect of `action`; the asserts are what must never be asked of a node.
    fn effect(&mut self, action: &Action) {
        let world = &mut self.world;
        match action {
            Action::Inspect => (),
            Action::EnsureImage => {
                world.image = Some(self.task.digest.clone().unwrap_or_else(|| world.registry.clone()));
            }
            Action::EnsureNetwork => world.network = true,
            Action::EnsureFiles => world.files = true,
            Action::HoldPorts | Action::ReleasePorts => world.serving = false,
            Action::EnsureVolumes => {
                assert!(world.volumes || world.image.is_some(), "filled from nothing");
                world.volumes = true;
            }
            Action::EnsureContents => world.contents = true,
            Action::RemoveContents => {
                assert!(!world.container.is_running(), "the secrets of a running process");
                world.contents = false;
            }
            Action::Serve => {
                assert!(world.network, "traffic for a task without a network");
                let health = self.found.health(Some(&self.task));
                assert!(matches!(health, Health::None | Health::Healthy), "traffic while {health:?}");
                world.serving = true;
            }
            Action::EnsureContainer => {
                assert!(world.network && world.files, "a container without its surroundings");
                assert!(!world.container.is_running(), "made while it runs");
                if matches!(world.container, Container::Absent) {
                    let settled = self.task.digest.clone();
                    assert!(settled.is_some(), "made before it was settled of what");
                    (world.label, world.made_of) = (Some(Ledger::first()), settled);
                }
                world.container = Container::Created;
            }
            Action::Start => {
                assert_eq!(world.container, Container::Created, "started twice, or before it was made");
                assert_eq!(self.task.desired, Desired::Running, "started although not wanted");
                let patience = self.task.spec.on_disconnect.stop_after();
                let over =
                    patience.zip(self.found.alone_for).is_some_and(|(patience, alone)| alone >= patience);
                assert!(!over, "started without a manager, when another may run in its place");
                world.container = Container::Running { since: self.now };
                world.starts += 1;
            }
            Action::RecordLedger(ledger) => {
                if world.label.is_some() {
                    world.label = Some(ledger.to_string().parse().unwrap());
                }
            }
            Action::SignalStop if world.deaf => (),
            Action::SignalStop => self.exits(143),
            Action::Kill => self.exits(137),
            Action::DeleteProcess => {
                assert!(!world.container.is_running(), "cleared while it runs");
                world.container = Container::Recorded;
            }
            Action::RemoveContainer => {
                assert_eq!(world.container, Container::Recorded, "removed with its process");
                (world.container, world.label) = (Container::Absent, None);
            }
            Action::RemoveNetwork => {
                assert!(!world.container.is_running(), "the network of a running process");
                world.network = false;
            }
            Action::RemoveFiles => world.files = false,
        }
    }

    fn exits(&mut self, code: i32) {
        if self.world.container.is_running() {
            let exit = Exit { code, out_of_memory: false };
            self.world.container = Container::Stopped { exit, at: self.now };
            self.found.overtaken();
        }
    }

    fn crash(&mut self) {
        self.world.serving = false;
        self.found = Found::new(self.now);
    }

    /// Asks `step` once and lets the answer meet its fate.
    fn act(&mut self, fate: Fate) -> Step {
        self.found.alone_for = self.alone_since.map(|since| self.now.since(since));
        let answer = step(Some(&self.task), &self.found, self.now);
        let Step::Do(action) = &answer else {
            assert_eq!(step(Some(&self.task), &self.found, self.now), answer, "asked twice");
            return answer;
        };
        let fate = match (action, fate) {
            // Nothing can be made of what is not here.
            (Action::EnsureContainer, Fate::Succeeds | Fate::FailsAfter) if self.lacks() => Fate::FailsBefore,
            (Action::EnsureContainer, Fate::CrashesAfter) if self.lacks() => Fate::CrashesBefore,
            (Action::EnsureVolumes, fate) if !self.world.volumes && self.world.image.is_none() => {
                match fate {
                    Fate::Succeeds | Fate::FailsAfter => Fate::FailsBefore,
                    Fate::CrashesAfter => Fate::CrashesBefore,
                    fate => fate,
                }
            }
            (_, fate) => fate,
        };
        if matches!(fate, Fate::Succeeds | Fate::FailsAfter | Fate::CrashesAfter) {
            self.effect(action);
        }
        let severity = match fate {
            Fate::Refused if action.verb().brings_up() => Severity::Permanent,
            _ => Severity::Transient,
        };
        match fate {
            Fate::Succeeds if *action == Action::Inspect => {
                self.found.inspected(self.world.container, self.world.label.clone());
            }
            Fate::Succeeds if *action == Action::EnsureImage => {
                self.found.obtained(self.world.image.clone().unwrap());
            }
            Fate::Succeeds => {
                let stale = self.found.sight != Sight::Fresh;
                self.found.succeeded(action, self.now);
                if stale || self.found.container != self.world.container {
                    self.found.overtaken();
                }
            }
            Fate::FailsBefore | Fate::FailsAfter | Fate::Refused => {
                self.found.failed(action, severity, "no".into(), self.now);
            }
            Fate::CrashesBefore | Fate::CrashesAfter => self.crash(),
        }
        self.tell();
        answer
    }

    /// What the container is made of, or what it mounts, is not here.
    fn lacks(&self) -> bool {
        let mounts = !self.task.spec.secrets.is_empty();
        self.lacks_image() || mounts && !(self.world.contents && self.world.volumes)
    }

    fn lacks_image(&self) -> bool {
        let wanted = self.world.made_of.as_ref().or(self.task.digest.as_ref());
        wanted.is_none() || self.world.image.as_ref() != wanted
    }

    /// Keeps the highest report, as a manager does.
    fn tell(&mut self) {
        let said = report(self.task.id, Some(&self.task), &self.found);
        assert!(!said.ready || matches!(said.health, Health::None | Health::Healthy), "{said:?}");
        if said.removed {
            assert!(self.is_empty(), "said removed, but {:?}", self.world);
        }
        if self.highest.as_ref().is_none_or(|highest| supersedes(&said, highest)) {
            self.highest = Some(said);
        }
    }

    fn is_empty(&self) -> bool {
        let World { container, label, network, files, contents, serving, .. } = &self.world;
        *container == Container::Absent && label.is_none() && !network && !files && !contents && !serving
    }

    fn meet(&mut self, event: &Event) {
        match event {
            Event::Acts(fate) => {
                self.act(*fate);
            }
            Event::Exits(code) => self.exits(*code),
            Event::Desires(desired) => self.task.desired = self.task.desired.max(*desired),
            Event::Passes(seconds) => self.now = self.now + Duration::from_secs(*seconds),
            Event::LosesProcess => {
                if self.world.container.is_running() {
                    self.world.container = Container::Recorded;
                    self.found.overtaken();
                }
            }
            Event::Stumbles => {
                self.found.overtaken();
                self.found.distrust_surroundings();
            }
            Event::LosesImage => self.world.image = None,
            Event::LosesContents => {
                if !self.world.container.is_running() {
                    self.world.contents = false;
                }
            }
            Event::Checks(health) => {
                if self.world.container.is_running() && self.task.spec.health.is_some() {
                    self.found.checked(Checked { health: *health, reason: "it said".into() });
                }
            }
            Event::Finds(true) => self.alone_since = None,
            Event::Finds(false) => self.alone_since = self.alone_since.or(Some(self.now)),
            Event::Moves => self.world.registry = digest('b'),
            Event::Settles(by_another) => {
                let said = self.highest.as_ref().and_then(|said| said.image.clone());
                let settled = if *by_another { Some(digest('c')) } else { said };
                self.task.digest = self.task.digest.take().or(settled);
            }
        }
    }

    /// Managers and checks do their part.
    fn settles(&mut self) -> bool {
        let before = (self.task.digest.clone(), self.found.health(Some(&self.task)));
        self.meet(&Event::Settles(false));
        if !matches!(before.1, Health::None | Health::Healthy) {
            self.meet(&Event::Checks(Health::Healthy));
        }
        before != (self.task.digest.clone(), self.found.health(Some(&self.task)))
    }

    /// Without further faults the task comes to rest; time passes only as far as `step` asks for.
    fn settle(&mut self) {
        self.meet(&Event::Finds(true));
        for _ in 0..200 {
            match self.act(Fate::Succeeds) {
                Step::Do(_) => (),
                Step::WaitUntil(moment) => {
                    assert!(moment > self.now, "waits for what is past");
                    self.now = moment;
                }
                Step::Settled if self.settles() => (),
                Step::Settled => return,
            }
        }
        panic!("does not settle: {:?} {:?}", self.world, self.found);
    }

    fn health_at_rest(&self) -> Health {
        if self.task.spec.health.is_some() { Health::Healthy } else { Health::None }
    }

    fn at_rest(&self) {
        let said = report(self.task.id, Some(&self.task), &self.found);
        let ended = self.found.ledger.verdict().is_some();
        match self.task.desired {
            Desired::Remove => assert!(said.removed && self.is_empty(), "{:?}", self.world),
            // The agent died and forgot that it had rejected the task. Managers did not, and do not listen.
            Desired::Ready | Desired::Running if !ended && self.task.digest.is_none() => {
                assert!(self.highest.as_ref().unwrap().state.is_terminal());
                assert_eq!(self.world.container, Container::Absent);
            }
            Desired::Running if !ended => {
                assert!(said.ready && self.world.serving && self.world.container.is_running());
                assert_eq!(self.world.made_of, self.task.digest, "made of another image");
                let Phase::Started { health, .. } = self.found.ledger.phase else { panic!("not recorded") };
                assert_eq!((health, said.health), (said.health, self.health_at_rest()));
                assert!(is_worth_telling(Some(&self.task), &self.found));
            }
            Desired::Ready if !ended => assert_eq!(self.world.container, Container::Created),
            _ => {
                assert!(matches!(self.world.container, Container::Absent | Container::Recorded));
                assert!(said.state.is_terminal() && !self.world.serving && !self.world.network);
                assert!(!self.world.contents, "secrets of what does not run");
            }
        }
        if self.found.ledger.verdict() == Some(Verdict::Completed) {
            assert_ne!(self.task.spec.restart.condition, RestartCondition::Any, "it was to go on");
            assert_eq!(self.found.ledger.exit, Some(Exit { code: 0, out_of_memory: false }));
        }
        assert_ne!(self.found.network, Presence::Unknown);
    }
}

fn digest(digit: char) -> ImageDigest {
    format!("sha256:{}", digit.to_string().repeat(64)).parse().unwrap()
}

fn task(condition: RestartCondition, has_more: bool) -> TaskAssignment {
    let port = PublishedPort {
        host_ip: None,
        host_port: 8080,
        container_port: 80,
        protocol: Protocol::Tcp,
        mode: PublishMode::Host,
    };
    TaskAssignment {
        id: TaskId { service: ServiceId(Id(1)), number: 1 },
        service: "web".parse().unwrap(),
        slot: 1,
        revision: 1,
        spec: TaskSpec {
            restart: RestartPolicy { condition, ..RestartPolicy::default() },
            ..if has_more { full() } else { TaskSpec::new("demo:1".parse().unwrap()) }
        },
        digest: None,
        ports: vec![port],
        address: [10, 210, 0, 2].into(),
        desired: Desired::Ready,
        service_labels: BTreeMap::new(),
        volumes: Vec::new(),
    }
}

/// With everything that a task can have around it.
fn full() -> TaskSpec {
    let source = MountSource::Volume { name: "data".into(), subpath: None, no_copy: false };
    TaskSpec {
        mounts: vec![Mount { target: "/data".into(), source, read_only: false }],
        secrets: vec![ContentMount::new("db".parse().unwrap())],
        health: Some(HealthCheck::new(Probe::Tcp { port: 80 })),
        on_disconnect: OnDisconnect::StopAfter(PATIENCE),
        ..TaskSpec::new("demo:1".parse().unwrap())
    }
}

fn run(deaf: bool, condition: RestartCondition, has_more: bool, events: &[Event]) -> Play {
    let mut play = Play::new(deaf, condition, has_more);
    for event in events {
        play.meet(event);
    }
    play.settle();
    play.at_rest();
    play
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happened, a task comes to rest as wanted, is at rest the second time, and its last report is
    /// one that a manager does not drop.
    #[test]
    fn a_task_always_comes_to_rest(
        deaf: bool,
        condition in condition(),
        has_more: bool,
        events in prop::collection::vec(event(0), 0..80),
    ) {
        let mut play = run(deaf, condition, has_more, &events);
        let last = report(play.task.id, Some(&play.task), &play.found);
        let kept = play.highest.clone().unwrap();
        // An agent that crashed after the record was gone does not know the attempts any more.
        let same = kept == last || (kept.removed && last.removed);
        prop_assert!(same, "a manager would keep {:?}, not {:?}", kept, last);
        prop_assert_eq!(play.act(Fate::Succeeds), Step::Settled);
        play.crash();
        play.settle();
        play.at_rest();
    }

    /// Where everything fails, the tries become rare: no number of things to do makes a task spin.
    #[test]
    fn failures_do_not_spin(
        deaf: bool,
        has_more: bool,
        events in prop::collection::vec(event(0), 0..40),
        crash: bool,
    ) {
        let mut play = Play::new(deaf, RestartCondition::Any, has_more);
        for event in &events {
            play.meet(event);
        }
        if crash {
            play.crash();
        }
        play.act(Fate::Succeeds);
        let (began, mut tries) = (play.now, 0);
        while play.now.since(began) < Duration::from_secs(600) {
            match play.act(Fate::FailsBefore) {
                Step::Do(_) => tries += 1,
                Step::WaitUntil(moment) => play.now = moment,
                Step::Settled => break,
            }
            prop_assert!(tries < 600, "still trying: {:?}", play.found);
        }
    }

    /// Also when actions are refused for good; and once removed, nothing is left.
    #[test]
    fn nothing_is_left_of_a_removed_task(
        deaf: bool,
        condition in condition(),
        has_more: bool,
        events in prop::collection::vec(event(3), 0..80),
    ) {
        let mut play = run(deaf, condition, has_more, &events);
        play.meet(&Event::Desires(Desired::Remove));
        play.settle();
        play.at_rest();
        prop_assert!(play.highest.unwrap().removed);
    }

    /// A node that stays without managers runs nothing that minds for longer than its time, the stop included, and says
    /// so when it finds one.
    #[test]
    fn nothing_that_minds_outlasts_its_time_without_a_manager(
        deaf: bool,
        condition in condition(),
        events in prop::collection::vec(event(0), 0..80),
    ) {
        let mut play = Play::new(deaf, condition, true);
        for event in &events {
            play.meet(event);
        }
        play.meet(&Event::Finds(false));
        play.now = play.now + PATIENCE;
        let last = play.now + play.task.spec.stop_grace;
        for _ in 0..200 {
            match play.act(Fate::Succeeds) {
                Step::Do(_) => (),
                Step::WaitUntil(moment) if moment <= last => play.now = moment,
                Step::WaitUntil(_) | Step::Settled => break,
            }
        }
        prop_assert!(!play.world.container.is_running(), "{:?} {:?}", play.world, play.found);
        prop_assert!(!play.world.serving);
        play.settle();
        play.at_rest();
    }

    /// A crash between any two actions of a life without other faults neither starts a process twice nor
    /// counts an attempt too many.
    #[test]
    fn a_crash_between_two_actions_changes_nothing(crash_after in 0..24usize, after: bool, has_more: bool) {
        let mut play = Play::new(false, RestartCondition::Any, has_more);
        play.meet(&Event::Desires(Desired::Running));
        for _ in 0..crash_after {
            play.act(Fate::Succeeds);
        }
        play.act(if after { Fate::CrashesAfter } else { Fate::CrashesBefore });
        play.settle();
        play.at_rest();
        prop_assert_eq!((play.world.starts, play.found.ledger.attempt), (1, 1));
    }

    /// What managers heard of a task's health stays true when the agent dies at any step after that: a task that was
    /// ready is not said to be unready, and one that was not is not said to be ready.
    #[test]
    fn a_restarted_agent_says_what_the_one_before_it_said(
        checks in prop::collection::vec((lasting_health(), 0..6usize), 1..6),
        crashes in 1..3usize,
    ) {
        let mut play = Play::new(false, RestartCondition::Any, true);
        play.meet(&Event::Desires(Desired::Running));
        play.settle();
        let told = |play: &Play| {
            let worth = is_worth_telling(Some(&play.task), &play.found);
            let said = report(play.task.id, Some(&play.task), &play.found);
            (worth && said.state == TaskState::Running).then_some((said.health, said.ready))
        };
        let mut last = told(&play).unwrap();
        for (health, actions) in checks {
            play.meet(&Event::Checks(health));
            for _ in 0..actions {
                play.act(Fate::Succeeds);
                last = told(&play).unwrap_or(last);
            }
        }
        for _ in 0..crashes {
            play.crash();
            while let Step::Do(_) = play.act(Fate::Succeeds) {
                let now = told(&play).unwrap_or(last);
                prop_assert_eq!(now, last);
            }
        }
    }
}
