//! Why a node is as it is.

use warren_types::{
    Availability, Node, NodeCheckOutcome, NodeCondition, NodeStatus, UNVERIFIED_TAINT, VerificationState,
};

use super::{Cause, Inquiry, count, listed};

impl Inquiry<'_> {
    pub(super) fn node(&self, node: &Node) -> Cause {
        let name = &node.name;
        match node.status {
            NodeStatus::Unknown => {
                let sentence = format!("node {name} has joined, and its agent has never connected");
                return Cause::problem("never-connected", sentence)
                    .since(node.created_at)
                    .evidence(format!("its address is {}", node.description.address))
                    .action("start its agent (`warren worker run`), and check that it reaches the managers");
            }
            NodeStatus::Down => return self.down_node(node),
            NodeStatus::Ready => {}
        }
        let causes = node.conditions.iter().map(|it| self.condition(node, *it));
        let causes = causes.chain(self.certificate_problem(node)).chain(self.availability(node));
        let causes: Vec<Cause> = causes.chain(verification(node)).chain(taints(node)).collect();
        let allocation = self.state.node_allocation(&node.id);
        let (free, total) = (allocation.free(node), node.description.resources);
        let tasks = count(allocation.tasks, "task");
        Cause::ok("node-ready", format!("node {name} is READY and has {tasks}"))
            .since(node.status_since)
            .evidence(format!(
                "free: {} of {} CPUs, {} of {}",
                free.cpu, total.cpu, free.memory, total.memory
            ))
            .evidence(format!("session {} with manager {}", node.session, self.manager_of(node)))
            .because(causes)
            .with_worst_severity()
    }

    fn manager_of(&self, node: &Node) -> String {
        let member = node.manager.and_then(|id| self.state.member(id));
        member.map_or_else(|| "(removed)".to_owned(), |member| member.name.to_string())
    }

    fn down_node(&self, node: &Node) -> Cause {
        let (name, address) = (&node.name, &node.description.address);
        let limit = self.state.cluster().map_or(0, |cluster| cluster.node_down_after.as_secs());
        let lost = self.state.tasks_on(&node.id).filter(|task| task.lost_since().is_some());
        let lost: Vec<String> = lost.map(|task| self.task_name(task)).collect();
        let cause = Cause::problem("node-down", format!("node {name} is DOWN: no manager hears its agent"))
            .since(node.status_since)
            .evidence(format!(
                "no contact for more than {limit}s; last session with manager {}",
                self.manager_of(node)
            ));
        let cause = match lost.is_empty() {
            true => cause,
            false => cause.evidence(format!("it still has the tasks {}", listed(&lost))),
        };
        cause.action(format!(
            "check that the machine at {address} runs, that its agent runs there, and that it reaches the managers; \
             if it is gone for good: `warren node rm {name}`"
        ))
    }

    fn condition(&self, node: &Node, condition: NodeCondition) -> Cause {
        let (name, what) = (&node.name, condition.as_str());
        let blocks = match condition.blocks_scheduling() {
            true => ", and gets no new tasks",
            false => "",
        };
        let cause = Cause::problem(condition_code(condition), format!("node {name} reports: {what}{blocks}"));
        let messages = self.observations.conditions.get(&node.id).into_iter().flatten();
        let cause = messages.fold(cause, |cause, message| cause.evidence(message.as_str()));
        cause.action(condition_action(condition))
    }

    fn availability(&self, node: &Node) -> Option<Cause> {
        let name = &node.name;
        let action = format!("allow tasks again with `warren node update {name} --availability active`");
        match node.availability {
            Availability::Active => None,
            Availability::Pause => {
                let sentence = format!(
                    "node {name} is paused: it keeps its tasks and gets no new ones, as a user set it"
                );
                Some(Cause::ok("paused", sentence).action(action))
            }
            Availability::Drain => {
                let left: Vec<String> = self
                    .state
                    .tasks_on(&node.id)
                    .filter(|task| task.holds_resources())
                    .map(|task| self.task_name(task))
                    .collect();
                let cause = match left.is_empty() {
                    true => Cause::ok("drained", format!("node {name} is drained, as a user set it")),
                    false => {
                        let sentence = format!(
                            "node {name} is being drained; {} left",
                            count(left.len() as u64, "task")
                        );
                        Cause::waiting("draining", sentence).evidence(listed(&left))
                    }
                };
                Some(cause.action(action))
            }
        }
    }
}

/// `disk-pressure`
fn condition_code(condition: NodeCondition) -> &'static str {
    match condition {
        NodeCondition::RuntimeUnavailable => "runtime-unavailable",
        NodeCondition::NetworkUnavailable => "network-unavailable",
        NodeCondition::DiskPressure => "disk-pressure",
        NodeCondition::MemoryPressure => "memory-pressure",
        NodeCondition::ClockSkew => "clock-skew",
        NodeCondition::RangeConflict => "range-conflict",
        NodeCondition::NetworkDegraded => "network-degraded",
        NodeCondition::PeersUnreachable => "peers-unreachable",
    }
}

fn condition_action(condition: NodeCondition) -> &'static str {
    match condition {
        NodeCondition::RuntimeUnavailable => "start containerd on that machine, and see its log",
        NodeCondition::NetworkUnavailable => "correct what the message names on that machine",
        NodeCondition::DiskPressure => "free space there: `warren image prune`, `warren volume ls --all`",
        NodeCondition::MemoryPressure => "limit or move tasks of that node: `warren node ps NODE`",
        NodeCondition::ClockSkew => "set the clock of that machine, for example with NTP",
        NodeCondition::RangeConflict => "remove that route, or give the cluster another range",
        NodeCondition::NetworkDegraded => {
            "correct what the message names: routes, ports or firewall of that machine"
        }
        NodeCondition::PeersUnreachable => {
            "allow the UDP port of the overlay (4789, or 51820 with WireGuard) between the machines"
        }
    }
}

/// Whether its checks let it have tasks.
fn verification(node: &Node) -> Option<Cause> {
    let (name, checked) = (&node.name, node.verification.as_deref()?);
    let failed = checked.results.iter().filter(|result| result.outcome == NodeCheckOutcome::Failed);
    let cause = match checked.state {
        VerificationState::Verified => return None,
        VerificationState::Failed => {
            let times = count(checked.failures, "time");
            let sentence = format!("node {name} is not verified: checks failed {times} in a row");
            let cause = Cause::problem("verification-failed", sentence);
            let cause =
                failed.fold(cause, |cause, it| cause.evidence(format!("{}: {}", it.name, it.message)));
            cause.action(format!("correct what the checks name, then `warren node verify {name}`"))
        }
        state => Cause::waiting("verifying", format!("node {name} gets tasks once it is verified"))
            .evidence(format!("verification: {}", state.as_str())),
    };
    Some(cause.since(checked.since))
}

fn taints(node: &Node) -> Option<Cause> {
    let of_users = node.taints.iter().filter(|taint| taint.key != UNVERIFIED_TAINT);
    let taints: Vec<String> = of_users.map(ToString::to_string).collect();
    let sentence = format!("node {} is tainted: only services that tolerate it get tasks there", node.name);
    (!taints.is_empty()).then(|| Cause::ok("tainted", sentence).evidence(taints.join(", ")))
}
