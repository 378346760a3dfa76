//! Why an object is as it is: the pure answer, with what nodes reported to any manager.

use std::collections::{BTreeMap, BTreeSet};

use tonic::{Request, Status};
use warren_core::why::{
    CERTIFICATE, Cause, CertificateHolder, CertificateReport, LastCheck, Observations, Severity, WhyAnswer,
    WhyTarget, why,
};
use warren_core::{Refusal, State};
use warren_proto::v1;
use warren_store::problem::status_of;
use warren_types::{Node, NodeId, NodeRole, ServiceId, TaskId, Timestamp, UserRole};

use super::Api;
use super::admission_policy::user_role;
use super::events::parse_kind;
use super::nodes::unreachable_managers_hint;

/// The most tasks whose nodes are asked for reports.
const MAX_REPORTED_TASKS: usize = 1000;
/// The background task of a manager that renews the certificates of its machine.
pub const MANAGER_RENEWAL: &str = "certificate-renewal";
/// The background task of an agent that renews its certificate.
const AGENT_RENEWAL: &str = "worker.certificate";
/// How often in a row a renewal must have failed to be told: managers may be busy, or elect a leader.
const MIN_RENEWAL_FAILURES: u64 = 3;

impl Api {
    pub(super) async fn answer_why(
        &self,
        request: Request<v1::WhyRequest>,
    ) -> Result<v1::WhyResponse, Status> {
        let (role, published) = (user_role(&request), self.read(&request).await?);
        let v1::WhyRequest { kind, reference } = request.into_inner();
        let state = &published.state;
        let target = find_target(state, role, &kind, &reference)?;
        let mut observations = self.observations(state, &target).await;
        if let WhyTarget::Certificate(CertificateHolder::Manager(_) | CertificateHolder::Node(_))
        | WhyTarget::Node(_) = target
        {
            self.observe_certificates(state, &target, &mut observations).await;
        }
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
            let Some(usage) = self.node_usage(&reports, node) else { continue };
            found.conditions.insert(node, usage.condition_messages);
            let validity = usage.certificate_issued_at.zip(usage.certificate_expires_at);
            let validity = validity.map(|(start, end)| Timestamp(start)..Timestamp(end));
            found.node_certificates.insert(node, CertificateReport { validity, renewal_error: None });
        }
        found
    }

    /// Adds the failures of renewals and, for a manager, when its certificate ends: nodes reported that of their own.
    /// For the certificate of a manager only that one is asked, and none if it is being removed.
    async fn observe_certificates(&self, state: &State, target: &WhyTarget, found: &mut Observations) {
        let member = match target {
            WhyTarget::Certificate(CertificateHolder::Manager(id)) => state.member_of_manager(id),
            _ => None,
        };
        if member.is_some_and(|member| member.removing) {
            return;
        }
        let only = member.map(|member| member.member_id);
        let certificate = async { self.manager_certificate(only?).await };
        let (validity, listed) = tokio::join!(certificate, self.background_tasks_of(only));
        let failures = RenewalFailures::of(listed.background_tasks);
        if let Some(member) = member {
            let renewal_error = failures.managers.get(member.name.as_str()).cloned();
            let report = CertificateReport { validity, renewal_error };
            found.manager_certificates.insert(member.manager_id, report);
        }
        for (id, report) in &mut found.node_certificates {
            report.renewal_error = state.node(id).and_then(|node| failures.of_node(node));
        }
    }
}

/// The errors of renewals that fail again and again, by the names of managers and of nodes.
#[derive(Default)]
struct RenewalFailures {
    managers: BTreeMap<String, String>,
    nodes: BTreeMap<String, String>,
}

impl RenewalFailures {
    fn of(background_tasks: Vec<v1::BackgroundTask>) -> Self {
        let mut failures = Self::default();
        let failing = |task: &v1::BackgroundTask| task.consecutive_failures >= MIN_RENEWAL_FAILURES;
        for task in background_tasks.into_iter().filter(failing) {
            match (task.name.as_str(), task.node.is_empty()) {
                (MANAGER_RENEWAL, true) => drop(failures.managers.insert(task.manager, task.last_error)),
                (AGENT_RENEWAL, false) => drop(failures.nodes.insert(task.node, task.last_error)),
                _ => {}
            }
        }
        failures
    }

    /// In hybrid mode the manager of the same name renews the certificate.
    fn of_node(&self, node: &Node) -> Option<String> {
        let failures = match node.role {
            NodeRole::Manager => &self.managers,
            NodeRole::Worker => &self.nodes,
        };
        failures.get(node.name.as_str()).cloned()
    }
}

/// The object, or the certificate, if the caller may know of it. Only administrators see users and their keys.
fn find_target(state: &State, role: UserRole, kind: &str, reference: &str) -> Result<WhyTarget, Status> {
    if kind != CERTIFICATE {
        return WhyTarget::find(state, parse_kind(kind)?, reference).map_err(status_of);
    }
    if role == UserRole::Admin {
        return WhyTarget::find_certificate(state, reference).map_err(status_of);
    }
    let found = CertificateHolder::find_machine(state, reference).map(WhyTarget::Certificate);
    found.map_err(|refusal| match refusal {
        Refusal::NoCertificate { .. } => Status::permission_denied(format!(
            "no manager or node is named {reference:?}, and certificates of users need the role admin; the caller has \
             the role {role}"
        )),
        other => status_of(other),
    })
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
        WhyTarget::Certificate(CertificateHolder::Node(id)) => (Vec::new(), BTreeSet::from([*id])),
        WhyTarget::Certificate(CertificateHolder::Manager(id)) => {
            let node = state.member_of_manager(id).and_then(|member| state.node_of_manager(&member.name));
            (Vec::new(), node.map(|node| node.id).into_iter().collect())
        }
        WhyTarget::SecretObject(_) | WhyTarget::Certificate(_) => (Vec::new(), BTreeSet::new()),
    }
}

fn show_answer(answer: WhyAnswer) -> v1::WhyResponse {
    let WhyAnswer { noun, id, name, desired, cause } = answer;
    v1::WhyResponse { kind: noun.to_owned(), id, name, desired, cause: Some(show_cause(cause)) }
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

#[cfg(test)]
mod tests {
    use warren_core::{Command, FEATURE_LEVEL};
    use warren_types::{ClusterId, Id, ManagerId, NodeDescription, TokenHash, UserId};

    use super::*;

    const AT: Timestamp = Timestamp(1);

    /// The manager m1, the node n1, the user ann, and a node and a user bob.
    fn state() -> State {
        let user = |number: u8, name: &str| Command::CreateUser {
            id: UserId(Id(number.into())),
            name: name.parse().unwrap(),
            role: UserRole::Viewer,
            login_hash: TokenHash([number; 32]),
            login_expires_at: Timestamp(1000),
            expires_at: None,
            at: AT,
        };
        let (ranges, feature_level) = (vec!["10.0.0.0/8".parse().unwrap()], FEATURE_LEVEL);
        let commands = [
            Command::CreateCluster { id: ClusterId(Id(1)), ranges, feature_level, at: AT },
            Command::RegisterMember {
                member: 1,
                id: ManagerId(Id(11)),
                name: "m1".parse().unwrap(),
                address: "10.0.0.1:8080".parse().unwrap(),
                level: FEATURE_LEVEL,
                at: AT,
            },
            Command::RegisterNode {
                id: NodeId(Id(7)),
                name: "n1".parse().unwrap(),
                role: NodeRole::Worker,
                description: NodeDescription::default(),
                taints: Default::default(),
                at: AT,
            },
            Command::RegisterNode {
                id: NodeId(Id(8)),
                name: "bob".parse().unwrap(),
                role: NodeRole::Worker,
                description: NodeDescription::default(),
                taints: Default::default(),
                at: AT,
            },
            user(5, "ann"),
            user(6, "bob"),
        ];
        let mut state = State::new();
        for (index, command) in (1..).zip(&commands) {
            state.apply(1, index, command);
        }
        state
    }

    #[test]
    fn only_administrators_learn_of_users() {
        let state = state();
        let code = |role: UserRole, name: &str| {
            find_target(&state, role, CERTIFICATE, name)
                .map_or_else(|status| status.code(), |_| tonic::Code::Ok)
        };
        for (name, admin, viewer) in [
            ("m1", tonic::Code::Ok, tonic::Code::Ok),
            ("n1", tonic::Code::Ok, tonic::Code::Ok),
            ("node/n1", tonic::Code::Ok, tonic::Code::Ok),
            ("ann", tonic::Code::Ok, tonic::Code::PermissionDenied),
            ("nobody", tonic::Code::NotFound, tonic::Code::PermissionDenied),
            // Several have the name, as only administrators learn.
            ("bob", tonic::Code::InvalidArgument, tonic::Code::Ok),
        ] {
            assert_eq!(
                (code(UserRole::Admin, name), code(UserRole::Viewer, name)),
                (admin, viewer),
                "{name}"
            );
        }
        let service = find_target(&state, UserRole::Admin, "service", "n1").unwrap_err();
        assert_eq!(service.code(), tonic::Code::NotFound);
    }

    #[test]
    fn failing_renewals_are_found_by_machine() {
        let task = |name: &str, node: &str, consecutive_failures: u64| v1::BackgroundTask {
            name: name.into(),
            node: node.into(),
            manager: "m1".into(),
            last_error: format!("{name} on {node}"),
            consecutive_failures,
            ..Default::default()
        };
        let failures = RenewalFailures::of(vec![
            task(MANAGER_RENEWAL, "", 4),
            task(AGENT_RENEWAL, "n1", 3),
            // It is repeated within seconds.
            task(AGENT_RENEWAL, "n2", 2),
            task("worker.sync", "n3", 3),
        ]);
        assert_eq!(failures.managers.keys().collect::<Vec<_>>(), ["m1"]);
        assert_eq!(
            failures.nodes,
            BTreeMap::from([("n1".to_owned(), "worker.certificate on n1".to_owned())])
        );
        let node = state().node(&NodeId(Id(7))).unwrap().clone();
        assert_eq!(failures.of_node(&node).unwrap(), "worker.certificate on n1");
    }
}
