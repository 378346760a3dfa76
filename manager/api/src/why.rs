//! Why an object is as it is: the pure answer, with what nodes reported to any manager.

use std::collections::BTreeSet;

use tonic::{Request, Status};
use warren_core::State;
use warren_core::why::{Cause, LastCheck, Observations, Severity, WhyAnswer, WhyTarget, why};
use warren_proto::v1;
use warren_store::problem::status_of;
use warren_types::{NodeId, ServiceId, TaskId, Timestamp};

use super::Api;
use super::events::parse_kind;
use super::nodes::unreachable_managers_hint;

/// The most tasks whose nodes are asked for reports.
const MAX_REPORTED_TASKS: usize = 1000;

impl Api {
    pub(super) async fn answer_why(
        &self,
        request: Request<v1::WhyRequest>,
    ) -> Result<v1::WhyResponse, Status> {
        let published = self.read(&request).await?;
        let v1::WhyRequest { kind, reference } = request.into_inner();
        let state = &published.state;
        let target = WhyTarget::find(state, parse_kind(&kind)?, &reference).map_err(status_of)?;
        let observations = self.observations(state, &target).await;
        let answer = why(state, &observations, &target, self.clock.now());
        // It was found in the same state.
        let missing = || Status::internal("the object is not in the state that named it");
        let mut answer = answer.ok_or_else(missing)?;
        if let WhyTarget::Node(id) = target
            && let Some(node) = state.node(&id)
        {
            let hint = unreachable_managers_hint(state, node, self.member_id);
            answer.cause.evidence.extend((!hint.is_empty()).then_some(hint));
        }
        Ok(show_answer(answer))
    }

    /// What the nodes of the object's tasks reported, as far as it is not replicated.
    async fn observations(&self, state: &State, target: &WhyTarget) -> Observations {
        let (tasks, mut nodes) = concerned(state, target);
        nodes.extend(tasks.iter().filter_map(|id| state.task(id)?.node));
        let reports = self.fetch_node_reports(state, nodes.iter().copied()).await;
        let mut found = Observations::default();
        for task in tasks.iter().filter_map(|id| state.task(id)) {
            found
                .tasks
                .extend(self.with_latest_progress(state, task, &reports).map(|newest| (task.id, newest)));
            let telemetry = task.node.map(|node| self.task_telemetry(&reports, node, &task.id));
            let last = telemetry.and_then(|telemetry| telemetry.checks.into_iter().next_back());
            let last = last.map(|it| LastCheck { at: Timestamp(it.at), is_ok: it.ok, output: it.output });
            found.checks.extend(last.map(|check| (task.id, check)));
        }
        for node in nodes {
            let messages = self.node_usage(&reports, node).map(|usage| usage.condition_messages);
            found.conditions.extend(messages.map(|messages| (node, messages)));
        }
        found
    }
}

/// The tasks whose reports matter, and the nodes.
fn concerned(state: &State, target: &WhyTarget) -> (Vec<TaskId>, BTreeSet<NodeId>) {
    let of_service =
        |id: &ServiceId| state.tasks_of(id).filter(|task| task.holds_resources()).map(|task| task.id);
    match target {
        WhyTarget::Service(id) => (of_service(id).take(MAX_REPORTED_TASKS).collect(), BTreeSet::new()),
        WhyTarget::Task(id) => {
            let before = state.task(id).and_then(|task| state.predecessor(task)).map(|task| task.id);
            (before.into_iter().chain([*id]).collect(), BTreeSet::new())
        }
        WhyTarget::Node(id) => (Vec::new(), BTreeSet::from([*id])),
        WhyTarget::Volume(id) => {
            (Vec::new(), state.volume(id).and_then(|volume| volume.node).into_iter().collect())
        }
        WhyTarget::Network(_) => (Vec::new(), state.nodes().map(|node| node.id).collect()),
        WhyTarget::SecretObject(_) => (Vec::new(), BTreeSet::new()),
    }
}

fn show_answer(answer: WhyAnswer) -> v1::WhyResponse {
    let WhyAnswer { kind, id, name, desired, cause } = answer;
    v1::WhyResponse { kind: kind.noun().to_owned(), id, name, desired, cause: Some(show_cause(cause)) }
}

fn show_cause(cause: Cause) -> v1::Cause {
    let Cause { severity, code, sentence, since, evidence, action, log_task, causes } = cause;
    let severity = match severity {
        Severity::Ok => v1::CauseSeverity::Ok,
        Severity::Waiting => v1::CauseSeverity::Waiting,
        Severity::Problem => v1::CauseSeverity::Problem,
    };
    v1::Cause {
        severity: severity.into(),
        code: code.to_owned(),
        sentence,
        since: since.map(|at| at.0),
        evidence,
        action: action.unwrap_or_default(),
        log_task: log_task.map(|id| id.to_string()).unwrap_or_default(),
        causes: causes.into_iter().map(show_cause).collect(),
    }
}
