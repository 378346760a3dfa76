//! Arbitrary sequences of commands, planners' work among them, on a state and on a member that joined on the
//! way.

mod input;

use std::collections::BTreeSet;
use std::time::Duration;

use warren_core::{Command, Outcome, State, reap, reap_tokens, reconcile_level, reconcile_service, schedule};
use warren_manager::raft::codec::{CodecError, decode, encode};
use warren_types::{Health, NodeId, NodeStatus, TaskReport, TaskState, Timestamp};

use self::input::{Input, Step};
use crate::snapshot::rewritten;

/// Steps of one input: a longer one finds nothing that two shorter ones do not.
const MOST_STEPS: usize = 80;
/// Planners stop here, so that checking everything after each step stays quick.
const MANY_TASKS: usize = 150;

/// Whatever comes: the state never contradicts itself, nothing counts twice, and a member that joined from a
/// snapshot has the same state.
pub fn run(bytes: &[u8]) {
    play(bytes);
}

/// The names of the commands in `bytes` that changed the state.
pub fn reached(bytes: &[u8]) -> BTreeSet<String> {
    play(bytes).reached
}

fn play(bytes: &[u8]) -> Cluster {
    let mut cluster = Cluster::new();
    let mut input = Input::new(bytes);
    for _ in 0..MOST_STEPS {
        let Some(step) = input.step() else { break };
        cluster.go(step);
    }
    assert_eq!(cluster.joined, cluster.state);
    cluster
}

struct Cluster {
    state: State,
    /// A member that was sent a snapshot, and the entries after it.
    joined: State,
    term: u64,
    reached: BTreeSet<String>,
}

impl Cluster {
    fn new() -> Self {
        Self { state: State::new(), joined: State::new(), term: 3, reached: BTreeSet::new() }
    }

    fn go(&mut self, step: Step) {
        let busy = self.state.task_count() > MANY_TASKS;
        let now = self.state.clock() + Duration::from_secs(1);
        match step {
            Step::Say(command) => self.say(&command),
            Step::Elect { term } => self.term = self.term.max(term),
            Step::Join => self.joined = rewritten(&self.state),
            Step::Skip { index } => self.skip(index),
            Step::Reconcile(id) if !busy => self.carry_out(reconcile_service(&self.state, &id, now).commands),
            Step::Schedule if !busy => self.carry_out(schedule(&self.state, now).command(&self.state, now)),
            Step::Reconcile(_) | Step::Schedule => {}
            Step::Reap(id) => self.carry_out(reap(&self.state, &id).commands),
            Step::Tokens => self.carry_out(reap_tokens(&self.state, now).commands),
            Step::Level => self.carry_out(reconcile_level(&self.state).commands),
            Step::Judge { node, down } => self.judge(node, down, now),
            Step::Work { node, state, removed, health } => self.work(node, state, (removed, health), now),
        }
    }

    /// What is said of the node's newest session; sessions that are over come from the commands.
    fn judge(&mut self, id: NodeId, down: bool, at: Timestamp) {
        let Some(session) = self.state.node(&id).map(|node| node.session) else { return };
        let status = if down { NodeStatus::Down } else { NodeStatus::Ready };
        self.say(&Command::SetNodeStatus { term: self.term, node: id, session, status, at });
    }

    /// The worker of the node says that each of its tasks came to this state.
    fn work(&mut self, id: NodeId, state: TaskState, (removed, health): (bool, Health), at: Timestamp) {
        let Some(node) = self.state.node(&id) else { return };
        let say = |task: &std::sync::Arc<warren_types::Task>| TaskReport {
            task: task.id,
            attempt: task.observed.attempt,
            state,
            since: at,
            reason: String::new(),
            ready: state == TaskState::Running,
            exit: None,
            removed,
            next_attempt: None,
            image: None,
            health,
        };
        let reports = self.state.tasks_on(&id).map(say).collect();
        let command = Command::ReportTasks { node: id, session: node.session, reports, at };
        self.say(&command);
    }

    fn carry_out(&mut self, commands: impl IntoIterator<Item = Command>) {
        for command in commands {
            self.say(&command);
        }
    }

    /// Entries that carry no command.
    fn skip(&mut self, index: u64) {
        let applied = warren_core::Applied { term: self.term, index };
        self.state.advance(applied);
        self.joined.advance(applied);
    }

    /// Takes the command through the log twice.
    fn say(&mut self, command: &Command) {
        let bytes = encode(command);
        let command = match decode(&bytes) {
            Ok(read) => read,
            // The member stops.
            Err(CodecError::Level { .. }) => return,
            Err(refused) => panic!("{command:?} cannot be read again: {refused}"),
        };
        assert_eq!(encode(&command), bytes, "{command:?}");
        let outcome = self.apply(&command);
        if matches!(outcome, Some(Outcome::Applied { .. })) {
            let name = format!("{command:?}");
            self.reached.insert(name.split([' ', '{']).next().unwrap_or_default().to_owned());
        }
        // Each session is a new one.
        if !matches!(command, Command::OpenSession { .. }) {
            let before = self.state.digest().value;
            self.apply(&command);
            assert_eq!(self.state.digest().value, before, "{command:?} was not harmless the second time");
        }
    }

    fn apply(&mut self, command: &Command) -> Option<Outcome> {
        let before = self.state.clone();
        let index = before.applied().index.checked_add(1)?;
        let outcome = self.state.apply(self.term, index, command);
        assert_eq!(self.joined.apply(self.term, index, command), outcome, "{command:?}");
        assert_eq!(self.joined.digest(), self.state.digest(), "{command:?}");
        assert_eq!(self.state.check(), Ok(()), "after {command:?}");
        assert_eq!(self.state.check_after(&before), Ok(()), "after {command:?}");
        let changed = self.state.digest().value != before.digest().value;
        if changed && !matches!(outcome, Outcome::Applied { .. }) {
            panic!("{command:?} left a trace: {outcome:?}");
        }
        Some(outcome)
    }
}
