//! Arbitrary sequences of commands and plans, on a state and on a member that joined in between from a
//! snapshot.

mod input;

use std::collections::BTreeSet;
use std::time::Duration;

use warren_core::{
    ApplyOutcome, Command, State, reap, reap_tokens, reconcile_feature_level, reconcile_service, schedule,
};
use warren_store::codec::{CodecError, decode, encode};
use warren_types::{Health, NodeId, NodeStatus, TaskReport, TaskState, Timestamp};

use self::input::{FuzzInput, FuzzStep};
use crate::snapshot::rewritten;

/// Steps of one input: a longer one finds nothing that two shorter ones do not.
const MAX_STEPS: usize = 80;
/// Planners stop above this size, so that the checks after each step stay fast.
const MANY_TASKS: usize = 150;

/// For any input: the state never contradicts itself, no command is applied twice, and a member that joined
/// from a snapshot has the same state.
pub fn run(bytes: &[u8]) {
    play(bytes);
}

/// The names of the commands in `bytes` that changed the state.
pub fn reached(bytes: &[u8]) -> BTreeSet<String> {
    play(bytes).reached
}

fn play(bytes: &[u8]) -> FuzzCluster {
    let mut cluster = FuzzCluster::new();
    let mut input = FuzzInput::new(bytes);
    for _ in 0..MAX_STEPS {
        let Some(step) = input.step() else { break };
        cluster.step(step);
    }
    assert_eq!(cluster.joined, cluster.state);
    cluster
}

struct FuzzCluster {
    state: State,
    /// A member that received a snapshot, and the entries after it.
    joined: State,
    term: u64,
    reached: BTreeSet<String>,
}

impl FuzzCluster {
    fn new() -> Self {
        Self { state: State::new(), joined: State::new(), term: 3, reached: BTreeSet::new() }
    }

    fn step(&mut self, step: FuzzStep) {
        let busy = self.state.task_count() > MANY_TASKS;
        let now = self.state.clock() + Duration::from_secs(1);
        match step {
            FuzzStep::Propose(command) => self.propose(&command),
            FuzzStep::Elect { term } => self.term = self.term.max(term),
            FuzzStep::Join => self.joined = rewritten(&self.state),
            FuzzStep::Skip { index } => self.skip(index),
            FuzzStep::Reconcile(id) if !busy => {
                self.apply_all(reconcile_service(&self.state, &id, now).commands)
            }
            FuzzStep::Schedule if !busy => {
                self.apply_all(schedule(&self.state, now).command(&self.state, now))
            }
            FuzzStep::Reconcile(_) | FuzzStep::Schedule => {}
            FuzzStep::Reap(id) => self.apply_all(reap(&self.state, &id, now).commands),
            FuzzStep::ReapTokens => self.apply_all(reap_tokens(&self.state, now).commands),
            FuzzStep::Level => self.apply_all(reconcile_feature_level(&self.state).commands),
            FuzzStep::SetReachability { node, down } => self.set_reachability(node, down, now),
            FuzzStep::ReportTasks { node, state, removed, health } => {
                self.report_tasks(node, state, (removed, health), now)
            }
        }
    }

    /// Reports of the node's newest session; earlier sessions come from the commands.
    fn set_reachability(&mut self, id: NodeId, down: bool, at: Timestamp) {
        let Some(session) = self.state.node(&id).map(|node| node.session) else { return };
        let status = if down { NodeStatus::Down } else { NodeStatus::Ready };
        self.propose(&Command::SetNodeStatus { term: self.term, node: id, session, status, at });
    }

    /// The worker of the node reports this state for each of its tasks.
    fn report_tasks(
        &mut self,
        id: NodeId,
        state: TaskState,
        (removed, health): (bool, Health),
        at: Timestamp,
    ) {
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
        self.propose(&command);
    }

    fn apply_all(&mut self, commands: impl IntoIterator<Item = Command>) {
        for command in commands {
            self.propose(&command);
        }
    }

    /// Entries that carry no command.
    fn skip(&mut self, index: u64) {
        let applied = warren_core::AppliedIndex { term: self.term, index };
        self.state.advance_to(applied);
        self.joined.advance_to(applied);
    }

    /// Encodes and decodes the command twice.
    fn propose(&mut self, command: &Command) {
        let bytes = encode(command);
        let command = match decode(&bytes) {
            Ok(read) => read,
            // The member stops.
            Err(CodecError::UnsupportedLevel { .. }) => return,
            Err(refused) => panic!("{command:?} cannot be decoded: {refused}"),
        };
        assert_eq!(encode(&command), bytes, "{command:?}");
        let outcome = self.apply(&command);
        if matches!(outcome, Some(ApplyOutcome::Applied { .. })) {
            let name = format!("{command:?}");
            self.reached.insert(name.split([' ', '{']).next().unwrap_or_default().to_owned());
        }
        // Each session is a new one.
        if !matches!(command, Command::OpenSession { .. }) {
            let before = self.state.digest().value;
            self.apply(&command);
            assert_eq!(self.state.digest().value, before, "{command:?} is not idempotent");
        }
    }

    fn apply(&mut self, command: &Command) -> Option<ApplyOutcome> {
        let before = self.state.clone();
        let index = before.applied().index.checked_add(1)?;
        let outcome = self.state.apply(self.term, index, command);
        assert_eq!(self.joined.apply(self.term, index, command), outcome, "{command:?}");
        assert_eq!(self.joined.digest(), self.state.digest(), "{command:?}");
        assert_eq!(self.state.check(), Ok(()), "after {command:?}");
        assert_eq!(self.state.check_after(&before), Ok(()), "after {command:?}");
        let changed = self.state.digest().value != before.digest().value;
        if changed && !matches!(outcome, ApplyOutcome::Applied { .. }) {
            panic!("{command:?} was rejected and changed the state: {outcome:?}");
        }
        Some(outcome)
    }
}
